"""A commented policy from a few wishes: beside each line stands what it does.

wishes -> lines of YAML -> checked as any file is -> text
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from offload_runtime.compiler import load_policy
from offload_runtime.errors import Diagnostic, PolicyError
from offload_runtime.policy import Policy
from offload_runtime.strict_yaml import read_yaml
from offload_runtime.validate import validate_policy

__all__ = ["PolicyWishes", "write_policy"]

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*|(0|[1-9][0-9]*)(\.[0-9]+)?( ?[KMGTP]?i?B|%)?")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))
_HEAVY_OPS = ("matmul", "attention", "convolution")
_START = "sac-default"
_LONG_DEFER = "8"
_MOE_DEFER = "1"


@dataclass(frozen=True)
class PolicyWishes:
    """What a policy is to say, in the words of its file; None leaves a clause at its default, or to the preset.

    ``preset`` is a policy to start from: a shipped name or a path. ``ops`` are the op classes and overloads that are
    offloaded, ``layers`` the layers in which. ``moe``: the model is a mixture of experts.
    """

    name: str
    summary: str | None = None
    preset: str | None = None
    budget: str | None = None
    device_peak: str | None = None
    step_overhead: str | None = None
    host: str | None = None
    defer: str | None = None
    prefetch: str | None = None
    keep_last: str | None = None
    ops: tuple[str, ...] = ()
    layers: str | None = None
    moe: bool = False

    @property
    def limits_by_time(self) -> bool:
        """Tell whether a limit is asked for that only the planner can hold."""
        return self.device_peak is not None or self.step_overhead is not None


def write_policy(wishes: PolicyWishes, *, file: str | None = None) -> tuple[str, tuple[Diagnostic, ...]]:
    """Return a valid policy that says what is wished, and warnings about it.

    ``file`` is where it will stand: its bases are relative to that. Raises PolicyError where a wish is none that a
    policy can have, and UnreadableError for a preset that does not exist.
    """
    base = load_policy(wishes.preset).policy if wishes.preset is not None else None
    text = "".join(f"{line}\n".replace(" \n", "\n") for line in _lines(wishes, base, file))
    findings = tuple(_placeless(finding) for finding in validate_policy(read_yaml(text, file)))
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        raise PolicyError(*errors)
    return text, findings


def _placeless(finding: Diagnostic) -> Diagnostic:
    """Take the place away: it is one in a text that nobody has seen yet; the path names the wish."""
    where = f"{finding.path}: " if finding.path and finding.path not in finding.message else ""
    return replace(finding, message=f"{where}{finding.message}", file=None, line=None, column=None)


def _lines(wishes: PolicyWishes, base: Policy | None, file: str | None) -> Iterator[str]:
    planned = wishes.limits_by_time or (base is not None and base.schedule.select == "planned")
    shown = file or "policy.yaml"
    yield "# What happens to the tensors that forward saves for backward: save, recompute or offload."
    yield f"# Check it: offload validate {shown}"
    if planned:  # a small model lies below its limits, where there is nothing to see
        yield f"# See it:   offload plan {shown} --model MODEL --hardware HARDWARE --mode inductor"
    else:
        yield f"# See it:   offload explain {shown} --model builtin:llama-tiny"
    yield "apiVersion: offload/v1"
    yield "kind: Policy"
    yield f"name: {_scalar(wishes.name)}"
    yield f"summary: {_scalar(wishes.summary or _summary(wishes, planned))}"
    if wishes.preset is not None:
        yield f"extends: [{_scalar(wishes.preset)}] # what is not said here is said there"
    elif not planned:
        yield f"extends: [{_START}] # saves what is expensive to compute again, recomputes the rest"
    yield ""
    yield from _limits(wishes, planned)
    yield ""
    yield from _schedule(wishes, base, planned)
    yield ""
    yield from _activations(wishes, base, planned)


def _summary(wishes: PolicyWishes, planned: bool) -> str:
    start = f"Like {wishes.preset}, with" if wishes.preset is not None else "With"
    what = [
        f"{key.replace('_', ' ')} {value}"
        for key in ("budget", "device_peak", "step_overhead", "host")
        if (value := getattr(wishes, key)) is not None
    ]
    by = "the planner's choice" if planned else "the largest tensors offloaded first"
    return f"{start} {' and '.join([by, *what])}."


def _limits(wishes: PolicyWishes, planned: bool) -> Iterator[str]:
    told = {
        "budget": ("10GB", "activation bytes offloaded per rank and step; unlimited is a word"),
        "host": ("64GiB", "pinned host bytes, rounding included; by default 80 % of what the cgroup allows"),
    }
    by_time = {
        "device_peak": ("40GiB", "the least predicted time within it; auto is free memory minus 6 %"),
        "step_overhead": (
            "5%",
            "the least peak for at most this much more time of forward and backward than torch.compile",
        ),
    }
    if wishes.device_peak is not None and wishes.step_overhead is not None:
        by_time["step_overhead"] = (
            "5%",
            "and at most this much more time of forward and backward, or the plan is refused with both floors",
        )
    yield from _section("limits", wishes, {**by_time, **told} if planned else told)


def _schedule(wishes: PolicyWishes, base: Policy | None, planned: bool) -> Iterator[str]:
    yield "schedule:"
    select = "planned" if planned else "largest_first"
    choice = (
        "save, recompute and offload decided together, by predicted time; needs a hardware profile"
        if planned
        else "the largest tensors first, until the budget is spent"
    )
    yield f"  select: {select} # {choice}"
    defer = wishes.defer
    if defer is None and base is None and not planned:
        defer = _MOE_DEFER if wishes.moe else _LONG_DEFER
    elif defer is None and wishes.moe:
        defer = _MOE_DEFER
    reason = (
        "layers by which device memory is released later; experts leave little to hide a copy behind: keep it at 1"
        if wishes.moe
        else "layers by which device memory is released later: more hides the copy, less saves memory sooner"
    )
    inherited = base.schedule if base is not None else None
    yield _clause("defer", defer, str(inherited.defer) if inherited else "auto", reason)
    told = {
        "prefetch": "layers ahead of its use in backward at which a tensor starts to come back",
        "keep_last": "offloads in the last layers become saves: backward needs them at once",
    }
    for key, comment in told.items():
        default = str(getattr(inherited, key)) if inherited else "1"
        yield _clause(key, getattr(wishes, key), default, comment)


def _activations(wishes: PolicyWishes, base: Policy | None, planned: bool) -> Iterator[str]:
    own_rules = bool(wishes.ops or wishes.layers)
    if base is not None and not own_rules:
        yield f"# Rules are those of {wishes.preset}. One of the same name replaces its rule, others go first:"
        yield "# activations:"
        yield from (f"# {line}" for line in ("  rules:", *_heavy_rule(wishes)))
        return
    yield "activations:"
    if base is None and planned:
        yield "  default: auto # the planner may save, recompute or offload"
    elif base is None and not wishes.ops:
        yield "  layer_outputs: offload # what crosses from one layer into the next, where no rule matches"
    if own_rules or not planned:
        yield "  rules: # the first that matches decides; rules of a base come after these"
        yield from _heavy_rule(wishes)
    elif wishes.moe:
        yield "  rules: # the first that matches decides"
    if base is None and planned and wishes.moe:
        yield "    - name: routing # a choice of experts that is made twice may come out differently"
        yield "      match: {op: routing}"
        yield "      action: save"
        yield "      must: true"


def _heavy_rule(wishes: PolicyWishes) -> Iterator[str]:
    ops = ", ".join(_scalar(op) for op in wishes.ops or _HEAVY_OPS)
    yield "    - name: heavy"
    yield "      match: # keys all have to hold, of a list any"
    yield f"        op: [{ops}] # classes (offload list op-classes), or overloads such as aten.mm.default"
    if wishes.layers is not None:
        yield f"        layers: {json.dumps(wishes.layers)} # ids, or a Python slice over them"
    else:
        yield '        # layers: ":75%" # ids, or a Python slice over them'
    yield "        bytes: {min: 4KiB} # below, a copy costs more than it saves"
    yield "        layout: dense # what can be copied as it lies"
    yield "      action: offload"


def _section(title: str, wishes: PolicyWishes, told: dict[str, tuple[str, str]]) -> Iterator[str]:
    given = any(getattr(wishes, key) is not None for key in told)
    yield f"{title}:" if given else f"# {title}:"
    for key, (example, comment) in told.items():
        clause = _clause(key, getattr(wishes, key), example, comment)
        yield clause if given else clause.replace("  # ", "#   ", 1)


def _clause(key: str, value: str | None, example: str, comment: str) -> str:
    """Write a clause, or show it as a comment where it is left at its default."""
    if value is None:
        return f"  # {key}: {example} # {comment}"
    return f"  {key}: {_scalar(value)} # {comment}"


def _scalar(text: str) -> str:
    """Write a value so that every reader of YAML takes it for this text or number."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
