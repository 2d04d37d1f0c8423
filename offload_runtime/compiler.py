"""From a policy, however it was given, to the value that answers: what happens to this activation?"""

from __future__ import annotations

import hashlib
import importlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from offload_runtime.errors import Diagnostic, PolicyError, RefusedError
from offload_runtime.matching import SavedActivation, UnknownKeyError, matches
from offload_runtime.policy import DEFAULT_RULE, LAYER_OUTPUTS_RULE, Action, Activations, Policy, Rule

__all__ = [
    "Action",
    "CompiledPolicy",
    "Decision",
    "Fate",
    "PolicyFunction",
    "SavedActivation",
    "compile_policy",
    "load_policy",
]

Fate = Literal["save", "recompute", "offload", "skip"]
Source = Literal["rule", "default", "layer_outputs", "function"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants for one activation, before budget and planner.

    ``rule`` names the rule that decided; it is None when the default, ``layer_outputs`` or a Python callable did,
    as ``source`` says.
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

    ``hash`` is a SHA-256 over the typed content, the same in every process: two spellings of one policy share it,
    and it is part of every cache key. A policy made from a Python callable has a hash of its own in each process,
    because no one can tell whether two callables do the same.
    """

    policy: Policy
    hash: str
    function: PolicyFunction | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return self.policy.name

    def decide(self, activation: SavedActivation) -> Decision:
        """Return what the first matching rule, else ``layer_outputs``, else the default wants.

        Raises RefusedError when a rule's layers are relative to a total that ``activation`` does not carry.
        """
        if self.function is not None:
            return _checked_answer(self.function(activation), activation, self.name)
        activations = self.policy.activations
        if activations is None:
            return Decision("auto", source=DEFAULT_RULE)
        for rule in activations.rules:
            if _rule_matches(rule, activation):
                return Decision(rule.action, rule.must, rule.name)
        if activation.crosses_layer and activations.layer_outputs is not None:
            return Decision(activations.layer_outputs, source=LAYER_OUTPUTS_RULE)
        return Decision(activations.default, source=DEFAULT_RULE)

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


def load_policy(
    source: str | Path | Mapping[str, Any] | CompiledPolicy | Policy | PolicyFunction,
    *,
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> CompiledPolicy:
    """Read, check and compile a policy.

    ``source`` is a path, the name of a shipped policy, a mapping in the form of the file, or a Python callable
    ``SavedActivation -> action``. ``overrides`` are ``{"limits.budget": "8GiB"}`` or ``["limits.budget=8GiB"]``,
    checked like the file. Raises PolicyError (something in it is wrong) or UnreadableError (it cannot be read),
    each with every finding.
    """
    from offload_runtime.policy_reading import read_policy

    if isinstance(source, CompiledPolicy):
        return source
    if isinstance(source, Policy):
        return compile_policy(source)
    return compile_policy(read_policy(source, overrides))


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Compile a typed policy."""
    return CompiledPolicy(policy, policy_hash(policy))


def policy_hash(policy: Policy) -> str:
    """Return the SHA-256 (hex) of what ``policy`` means."""
    return hashlib.sha256(repr(policy).encode()).hexdigest()


def _rule_matches(rule: Rule, activation: SavedActivation) -> bool:
    return matches(rule.match, activation)


def _checked_answer(answer: object, activation: SavedActivation, name: str) -> Decision:
    if isinstance(answer, Decision):
        return answer
    return Decision(answer, source="function")


def _torch_part() -> Any:
    """Import what needs torch only when it is asked for; by name, so that this layer stays free of torch."""
    return importlib.import_module("offload_runtime.graph.checkpoint_policy")
