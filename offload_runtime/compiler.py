"""From a policy, however it was given, to the value that answers: what happens to this activation?"""

from __future__ import annotations

import hashlib
import importlib
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

from offload_runtime.errors import Diagnostic, PolicyError, RefusedError, error_text, value_text
from offload_runtime.findings import raise_errors
from offload_runtime.judgement import judge_matches
from offload_runtime.matching import ALL_KEYS, SavedActivation, UnknownKeyError, matches
from offload_runtime.meaning import check_meaning
from offload_runtime.policy import Action, Activations, Policy, Rule
from offload_runtime.policy_loading import read_policy
from offload_runtime.policy_text import format_policy

__all__ = [
    "Action",
    "CompiledPolicy",
    "Decision",
    "Fate",
    "PolicyFunction",
    "PolicySource",
    "SavedActivation",
    "compile_policy",
    "judge_matches",
    "load_policy",
]

Fate = Literal["save", "recompute", "offload", "skip"]
Source = Literal["rule", "default", "layer_outputs", "function"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants for one activation, before budget and planner.

    ``rule`` names the rule that decided; it is None when the default, ``layer_outputs`` or a Python callable
    did, as ``source`` says.
    """

    action: Action
    must: bool = False
    rule: str | None = None
    source: Source = "rule"

    @property
    def decided_by(self) -> str:
        """Name what decided: the rule, or ``default``, ``layer_outputs``, ``function``."""
        return self.rule or self.source


PolicyFunction = Callable[[SavedActivation], "Action | Decision"]


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy that answers. Frozen, hashable, printable, free of torch.

    ``hash`` is a SHA-256 over the typed content, the same in every process: two spellings of one policy share
    it, and it is part of every cache key. A policy made from a Python callable has a hash of its own in each
    process, because no one can tell whether two callables do the same. ``warnings`` are the findings that did
    not stop it.
    """

    policy: Policy
    hash: str
    function: PolicyFunction | None = field(default=None, repr=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return self.policy.name

    def decide(self, activation: SavedActivation) -> Decision:
        """Return what the first matching rule, else ``layer_outputs``, else the default wants.

        Raises RefusedError when a rule's layers are relative to a total that ``activation`` does not carry.
        """
        if self.function is not None:
            return _checked_answer(_ask(self.function, activation, self.name), activation, self.name)
        for rule in self.policy.rules:
            if _rule_matches(rule, activation):
                return Decision(rule.action, rule.must, rule.name)
        return decide_without_rules(self.policy.activations, activation)

    def matches(self, activation: SavedActivation) -> tuple[str, ...]:
        """Return the names of all rules that match, in order; the first of them decides."""
        return tuple(rule.name for rule in self.policy.rules if _rule_matches(rule, activation))

    def policy_fn(self, node: Any) -> Any:
        """Return the ``torch.utils.checkpoint.CheckpointPolicy`` for an FX node, as SAC tagging calls it."""
        return _torch_part().policy_fn(self, node)

    def context_fn(self) -> Any:
        """Return the two contexts that eager ``torch.utils.checkpoint(..., context_fn=...)`` takes.

        Raises RefusedError for a policy that offloads: eager checkpointing would silently recompute instead.
        """
        return _torch_part().context_fn(self)

    def __str__(self) -> str:
        """Return the policy as YAML, bases merged in; a comment says where a Python callable decides instead."""
        text = format_policy(self.policy)
        return (
            text if self.function is None else f"# a Python callable decides each action, not default\n{text}"
        )


PolicySource = str | Path | Mapping[str, Any] | Policy | CompiledPolicy | PolicyFunction


def load_policy(source: PolicySource, *, overrides: Mapping[str, Any] | Sequence[str] = ()) -> CompiledPolicy:
    """Read, check and compile a policy.

    ``source`` is a path, the name of a shipped policy, a mapping in the form of the file, or a Python
    callable ``SavedActivation -> action``. ``overrides`` are ``{"limits.budget": "8GiB"}`` or
    ``["limits.budget=8GiB"]``, checked like the file. Raises PolicyError (something in it is wrong) or
    UnreadableError (it cannot be read), each with every finding; ValueError for a source of another kind.
    """
    if isinstance(source, str | Path | Mapping):
        reading = read_policy(source, overrides)
        return _compiled(reading.policy, reading.diagnostics)
    if isinstance(source, CompiledPolicy | Policy):
        if overrides:
            raise ValueError("overrides apply to a path, a name or a mapping; this policy is read already")
        return source if isinstance(source, CompiledPolicy) else compile_policy(source)
    if callable(source):
        return compile_function(source, overrides)
    raise ValueError(f"a policy is a path, a name, a mapping or a callable, not a {type(source).__name__}")


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Compile a typed policy; raises PolicyError when its clauses contradict each other."""
    return _compiled(policy, ())


def compile_function(
    function: PolicyFunction, overrides: Mapping[str, Any] | Sequence[str] = ()
) -> CompiledPolicy:
    """Compile a Python callable that maps a SavedActivation to an action (or a Decision).

    ``overrides`` give it limits and a schedule.
    """
    name = getattr(function, "__name__", type(function).__name__)
    data = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "function",
        "activations": {"default": "auto"},
    }
    reading = read_policy(data, overrides)
    raise_errors(reading.diagnostics)
    assert reading.policy is not None
    policy = Policy(
        name=name,
        limits=reading.policy.limits,
        schedule=reading.policy.schedule,
        activations=reading.policy.activations,
        spans=reading.policy.spans,
    )
    return CompiledPolicy(policy, _digest(f"{_function_identity(function)} {policy!r}"), function)


def policy_hash(policy: Policy) -> str:
    """Return the SHA-256 (hex) of what ``policy`` means, its summary and places left out."""
    return _digest(format_policy(policy))


def decide_without_rules(activations: Activations | None, activation: SavedActivation) -> Decision:
    """Return the decision where no rule matched."""
    if activations is None:
        return Decision("auto", source="default")
    if activation.crosses_layer and activations.layer_outputs is not None:
        return Decision(activations.layer_outputs, source="layer_outputs")
    return Decision(activations.default, source="default")


def _compiled(policy: Policy | None, diagnostics: tuple[Diagnostic, ...]) -> CompiledPolicy:
    if policy is not None:
        is_whole = not any(diagnostic.is_error for diagnostic in diagnostics)
        diagnostics = (*diagnostics, *check_meaning(policy, is_whole=is_whole))
    raise_errors(diagnostics)
    assert policy is not None
    return CompiledPolicy(policy, policy_hash(policy), warnings=diagnostics)


def _rule_matches(rule: Rule, activation: SavedActivation) -> bool:
    try:
        return matches(rule.match, activation, ALL_KEYS)
    except UnknownKeyError:
        where = activation.module or "the root module"
        message = f"rule {rule.name!r} names layers relative to their number, unknown in the graph of {where}"
        hint = 'pass the whole model in options["model"], or name layers by number'
        raise RefusedError(Diagnostic.at(rule.match.span, "POL170", message, hint=hint)) from None


def _ask(function: PolicyFunction, activation: SavedActivation, name: str) -> object:
    try:
        return function(activation)
    except Exception as error:  # a user's code may raise anything; it is named, and kept as the cause
        message = f"policy function {name!r} raised {type(error).__name__} for {activation.name!r}: {error_text(error)}"
        hint = "it is called with one SavedActivation and returns an action; its own traceback stands above"
        raise PolicyError(Diagnostic("POL171", "error", message, hint=hint)) from error


def _checked_answer(answer: object, activation: SavedActivation, name: str) -> Decision:
    if isinstance(answer, Decision):
        return answer
    if isinstance(answer, str) and answer in get_args(Action):
        return Decision(cast(Action, answer), source="function")
    message = f"policy function {name!r} answered {value_text(answer)} for {activation.name!r}"
    hint = f"return one of {', '.join(get_args(Action))}, or a Decision"
    raise PolicyError(Diagnostic("POL171", "error", message, hint=hint))


_FUNCTION_NONCES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _function_identity(function: PolicyFunction) -> str:
    """Return a text that this callable object alone has, in this process alone."""
    if isinstance(function, types.MethodType):
        return uuid.uuid4().hex
    try:
        return _FUNCTION_NONCES.setdefault(function, uuid.uuid4().hex)
    except TypeError:
        return uuid.uuid4().hex


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _torch_part() -> Any:
    """Import what needs torch only when it is asked for; by name, so that this layer stays free of torch."""
    return importlib.import_module("offload_runtime.graph.checkpoint_policy")
