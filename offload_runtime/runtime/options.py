"""What a user passes to ``torch.compile(..., backend="offload", options={...})``, read and checked."""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, RefusedError, UsageError, value_text
from offload_runtime.facts import FACTS
from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_plan import Variant
from offload_runtime.policy import Policy
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate
from offload_runtime.runtime.machine_facts import known_facts
from offload_runtime.runtime.setting import read_hardware_option
from offload_runtime.targets import check_target
from offload_runtime.units import parse_size

__all__ = ["ENVIRONMENT", "BackendOptions", "Mode", "read_options", "refuse_unsupported"]

Mode = Literal["graph", "inductor"]
MODES: tuple[Mode, ...] = ("graph", "inductor")
ENVIRONMENT = {
    "policy": "OFFLOAD_POLICY",
    "mode": "OFFLOAD_MODE",
    "optimizer_state_bytes": "OFFLOAD_OPTIMIZER_STATE_BYTES",
}
"""The variable that stands for an option which is left out."""
_KEYS = ("policy", "mode", "hardware", "optimizer_state_bytes", "verify", "model", "variant", "profile")


@dataclass(frozen=True)
class BackendOptions:
    """Options of one ``torch.compile`` call.

    ``model`` is the root module where the caller gave it (names by parameter identity, layer totals). ``verify`` runs
    the first step on the checking engine. ``variant`` chooses the policy itself, its numeric reference (offloads
    replaced by saves) or the baseline without it. ``profile`` times copies and stalls. ``hardware`` is the profile to
    plan for; None takes that of the device in use. ``optimizer_state_bytes`` is what the optimizer will allocate on the
    device after the first step; 0 for one without state, or whose state is there already when the model is compiled;
    None where nobody said.
    """

    policy: CompiledPolicy
    mode: Mode = "graph"
    verify: bool = False
    model: weakref.ref[torch.nn.Module] | None = None
    variant: Variant = "policy"
    profile: bool = False
    hardware: HardwareProfile | None = None
    optimizer_state_bytes: int | None = None

    def root(self) -> torch.nn.Module | None:
        """Return the root module, if it was given and is still alive."""
        return self.model() if self.model is not None else None


def read_options(options: Mapping[str, Any] | None) -> BackendOptions:
    """Check the options; what they leave out, the environment may give.

    ``OFFLOAD_POLICY`` stands for ``policy``, ``OFFLOAD_MODE`` for ``mode``, and ``OFFLOAD_OPTIMIZER_STATE_BYTES``, a
    size such as 12GiB, for ``optimizer_state_bytes``.
    Raises UsageError for an unknown option or value, PolicyError or UnreadableError for a bad policy, and
    RefusedError for a policy that this runtime cannot honour.
    """
    given = dict(options or {})
    for key in given:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(_KEYS)}"
            raise UsageError(Diagnostic("CLI610", "error", f"unknown backend option {key!r}", hint=hint))
    hardware = read_hardware_option(given.get("hardware"))
    source = given.get("policy", os.environ.get(ENVIRONMENT["policy"]))
    if source is None:
        raise UsageError(
            Diagnostic(
                "CLI611",
                "error",
                "the offload backend was given no policy",
                hint='pass options={"policy": ...} to torch.compile, or set OFFLOAD_POLICY to a path or a shipped name',
            )
        )
    mode = given.get("mode") or os.environ.get(ENVIRONMENT["mode"], "graph")
    variant = given.get("variant", "policy")
    model = given.get("model")
    _require_choice("mode", mode, MODES)
    _require_choice("variant", variant, ("policy", "reference", "baseline"))
    for key in ("verify", "profile"):
        if not isinstance(given.get(key, False), bool):
            message = f"option {key!r} is {value_text(given[key])}"
            raise UsageError(Diagnostic("CLI612", "error", message, hint="choose True or False"))
    if model is not None and not isinstance(model, torch.nn.Module):
        raise UsageError(
            Diagnostic(
                "CLI612",
                "error",
                f"option 'model' is a {type(model).__name__}",
                hint="pass the root nn.Module",
            )
        )
    policy = load_policy(source)
    if variant != "baseline":
        refuse_unsupported(policy.policy, mode)
    return BackendOptions(
        policy,
        cast(Mode, mode),
        bool(given.get("verify", False)),
        weakref.ref(model) if model is not None else None,
        cast(Variant, variant),
        bool(given.get("profile", False)),
        hardware,
        _read_state_bytes(given),
    )


def _read_state_bytes(given: Mapping[str, Any]) -> int | None:
    """Return what the options, or else the environment, say of the optimizer's state; None where they say nothing."""
    key = "optimizer_state_bytes"
    said = given.get(key, os.environ.get(ENVIRONMENT[key]))
    return _read_size(key, said) if key in given or said is not None else None


def _read_size(key: str, given: object) -> int:
    """Return a size in bytes, given as a number or as text such as 12GiB."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    try:
        if isinstance(given, str):
            return parse_size(given)
    except ValueError:
        pass
    message = f"option {key!r} is {value_text(given)}"
    raise UsageError(
        Diagnostic("CLI612", "error", message, hint="give a number of bytes, or a size such as 12GiB")
    )


def _require_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(
            Diagnostic(
                "CLI612",
                "error",
                f"option {key!r} is {value_text(value)}",
                hint=f"choose one of {', '.join(choices)}",
            )
        )


def refuse_unsupported(policy: Policy, mode: str, hardware: HardwareProfile | None = None) -> None:
    """Raise RefusedError, naming every clause that this runtime does not carry out in ``mode``.

    ``requires`` is asked of this process and its machine, or of ``hardware`` where the policy is planned for that.
    """
    findings = list(check_target(policy, mode))
    if policy.requires is not None:
        facts = {**known_facts(hardware), "mode": mode}
        findings += _check_requires(policy, policy.requires, facts)
    if findings:
        raise RefusedError(*findings)


def _check_requires(policy: Policy, predicate: Predicate, facts: Mapping[str, Scalar]) -> list[Diagnostic]:
    holds = evaluate(predicate, facts)
    if holds:
        return []
    named = sorted({comparison.fact for comparison in comparisons(predicate)})
    if holds is None:
        unknown = [fact for fact in named if fact not in facts]
        described = ", ".join(f"{fact} ({_origin(fact)})" for fact in unknown)
        message = f"'requires' cannot be checked: unknown here: {described}"
        hint = "leave out what nobody can know here; `offload facts` shows what is known"
    else:
        shown = ", ".join(f"{fact}={facts[fact]}" for fact in named if fact in facts)
        message, hint = (
            f"'requires' does not hold: {shown}",
            "change the run, or the policy's requires",
        )
    return [Diagnostic.at(policy.span_of("requires"), "RUN520", message, path="requires", hint=hint)]


def _origin(fact: str) -> str:
    """Say who would know a fact; a policy that was read names only facts of the table."""
    return {
        "machine": "of the machine",
        "model": "of the model",
        "configuration": "of the training configuration",
        "measurement": "measured in a run",
    }[FACTS[fact].source]
