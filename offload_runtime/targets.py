"""What each front end cannot honour, as a table of clauses; what other systems cannot is in their own files.

A clause that is given and not honoured is refused by name, with its line, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offload_runtime.errors import Diagnostic, Span
from offload_runtime.policy import Policy


@dataclass(frozen=True, slots=True)
class RefusedClause:
    """A clause that a target cannot honour: where it stands, when it is given, why not, and the cure."""

    path: str
    is_given: Callable[[Policy], bool]
    reason: str
    cure: str


_SECTIONS_NOT_HONOURED = tuple(
    RefusedClause(section, is_given, f"{section} is not honoured by this runtime yet", f"remove {section}")
    for section, is_given in (
        ("optimizer_state", lambda policy: policy.optimizer_state is not None),
        ("gradients", lambda policy: policy.gradients is not None),
        ("parameters", lambda policy: policy.parameters is not None),
    )
)
_ACTIVATIONS_NEEDED = (
    RefusedClause(
        "activations",
        lambda policy: policy.activations is None,
        "there is no such section, and it is all that this front end acts on",
        "add activations: {default: auto}",
    ),
)
_RUNTIME = _SECTIONS_NOT_HONOURED + _ACTIVATIONS_NEEDED

EXPORT_TARGETS = ("deepspeed", "fsdp2", "megatron-bridge", "torchtitan")
TARGETS: Mapping[str, tuple[RefusedClause, ...]] = MappingProxyType({"graph": _RUNTIME, "inductor": _RUNTIME})


def check_target(policy: Policy, target: str) -> tuple[Diagnostic, ...]:
    """Return an error for each clause of ``policy`` that ``target`` cannot honour.

    Raises ValueError for a target that is not in ``TARGETS``.
    """
    if target not in TARGETS:
        raise ValueError(f"target is one of {', '.join([*TARGETS, *EXPORT_TARGETS])}, not {target!r}")
    return tuple(
        Diagnostic.at(
            policy.span_of(clause.path) or _whole_file(policy),
            "POL190",
            f"{target} {_verb(clause, policy)} {clause.path}: {clause.reason}",
            path=clause.path,
            hint=clause.cure,
        )
        for clause in TARGETS[target]
        if clause.is_given(policy)
    )


def _verb(clause: RefusedClause, policy: Policy) -> str:
    return "cannot honour" if policy.span_of(clause.path) is not None else "cannot do without"


def _whole_file(policy: Policy) -> Span | None:
    """Return the file of a policy, for what is missing in it and has no line."""
    name = policy.span_of("name")
    return None if name is None else Span(name.file)
