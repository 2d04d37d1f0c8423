"""The shipped targets, out of their files. The files are ours: what is wrong in one is a bug, and a test finds it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from offload_runtime.document import ListNode, MapNode, Node, ScalarNode
from offload_runtime.export.target import (
    ClauseRow,
    Constraint,
    Emission,
    Failure,
    Source,
    Target,
    TargetMechanism,
    TargetSetting,
    Verdict,
)
from offload_runtime.policy_reading import read_predicate
from offload_runtime.predicates import Predicate, Scalar
from offload_runtime.strict_yaml import read_yaml_file
from offload_runtime.targets import EXPORT_TARGETS

__all__ = ["EXPORT_TARGETS", "TARGET_DIRECTORY", "load_target", "target_failures"]

TARGET_DIRECTORY = Path(__file__).parent.parent / "targets_data"


@lru_cache(maxsize=len(EXPORT_TARGETS))
def load_target(name: str) -> Target:
    """Return the shipped target ``name``; ValueError for one that does not exist."""
    if name not in EXPORT_TARGETS:
        raise ValueError(f"target is one of {', '.join(EXPORT_TARGETS)}, not {name!r}")
    document = read_yaml_file(TARGET_DIRECTORY / f"{name}.yaml", file=f"targets_data/{name}.yaml")
    assert not document.diagnostics, document.diagnostics
    root = document.root
    assert isinstance(root, MapNode), "a target is a mapping"
    return _read_target(root)


def target_failures() -> tuple[tuple[str, Failure], ...]:
    """Return the known failures of all targets, as (name of the target, failure)."""
    return tuple((name, failure) for name in EXPORT_TARGETS for failure in load_target(name).failures)


def _read_target(root: MapNode) -> Target:
    return Target(
        name=_needed(root, "name"),
        title=_needed(root, "title"),
        version=_needed(root, "version"),
        checked=_needed(root, "checked"),
        trial=_needed(root, "trial"),
        sources=tuple(Source(_needed(row, "id"), _needed(row, "text")) for row in _rows(root, "sources")),
        formats=cast(Any, _texts(root, "formats")),
        settings=tuple(_read_setting(row) for row in _rows(root, "settings")),
        clauses=tuple(_read_clause(row) for row in _rows(root, "clauses")),
        emits=tuple(_read_emission(row) for row in _rows(root, "emits")),
        constraints=tuple(_read_constraint(row) for row in _rows(root, "constraints")),
        failures=tuple(_read_failure(row) for row in _rows(root, "failures")),
        mechanisms=tuple(_read_mechanism(row) for row in _rows(root, "mechanisms")),
        notes=tuple((_predicate(row, "when"), _needed(row, "text")) for row in _rows(root, "notes")),
    )


def _read_setting(row: MapNode) -> TargetSetting:
    return TargetSetting(
        key=_needed(row, "key"),
        type=cast(Any, _needed(row, "type")),
        summary=_needed(row, "summary"),
        source=_needed(row, "source"),
        default=_scalar(row, "default"),
        minimum=cast(Any, _scalar(row, "minimum")),
        maximum=cast(Any, _scalar(row, "maximum")),
        below=_text(row, "below"),
        choices=_texts(row, "choices"),
        error=_text(row, "error"),
        fact=_text(row, "fact"),
        stands_for_no=_text(row, "stands_for_no"),
        words=_pairs(row, "words"),
        also_on_by=_text(row, "also_on_by"),
        cure=_text(row, "cure"),
        since=_text(row, "since"),
    )


def _read_clause(row: MapNode) -> ClauseRow:
    cases = tuple((_predicate(case, "when"), _read_verdict(case)) for case in _rows(row, "cases"))
    return ClauseRow(_needed(row, "path"), _read_verdict(row), cases)


def _read_verdict(row: MapNode) -> Verdict:
    fate = cast(Any, _needed(row, "fate"))
    return Verdict(fate, _text(row, "reason"), _text(row, "cure"), _text(row, "note"))


def _read_emission(row: MapNode) -> Emission:
    return Emission(
        key=_needed(row, "key"),
        when=_predicate(row, "when") if "when" in row.entries else None,
        value=_scalar(row, "value"),
        taken_from=_text(row, "from"),
        conversion=cast(Any, _text(row, "as")),
        unset=_scalar(row, "unset") is True,
        needs=_text(row, "needs"),
        clause=_text(row, "clause"),
        cure=_text(row, "cure"),
    )


def _read_constraint(row: MapNode) -> Constraint:
    return Constraint(
        name=_needed(row, "name"),
        when=_predicate(row, "when"),
        holds=_predicate(row, "holds"),
        message=_needed(row, "message"),
        cure=_needed(row, "cure"),
        clauses=_texts(row, "clauses"),
        source=_needed(row, "source"),
        error=_text(row, "error"),
        settled_by=_text(row, "settled_by"),
        since=_text(row, "since"),
    )


def _read_failure(row: MapNode) -> Failure:
    return Failure(
        error=_needed(row, "error"),
        cause=_needed(row, "cause"),
        confirm=_needed(row, "confirm"),
        fix=_needed(row, "fix"),
        source=_needed(row, "source"),
        constraint=_text(row, "constraint"),
    )


def _read_mechanism(row: MapNode) -> TargetMechanism:
    return TargetMechanism(
        name=_needed(row, "name"),
        moves=_needed(row, "moves"),
        source=_needed(row, "source"),
        when=_predicate(row, "when") if "when" in row.entries else None,
        needs=_text(row, "needs"),
        enabled_when=_predicate(row, "enabled_when") if "enabled_when" in row.entries else None,
        part_of=_text(row, "part_of"),
        chosen_by=_text(row, "chosen_by"),
    )


def _rows(row: MapNode, key: str) -> tuple[MapNode, ...]:
    node = row.get(key)
    items: tuple[Node, ...] = node.items if isinstance(node, ListNode) else ()
    return tuple(item for item in items if isinstance(item, MapNode))


def _predicate(row: MapNode, key: str) -> Predicate:
    node = row.get(key)
    predicate = read_predicate(node) if node is not None else None
    assert predicate is not None, f"{key} of {row.path} is no condition"
    return predicate


def _scalar(row: MapNode, key: str) -> Scalar | None:
    node = row.get(key)
    return node.value if isinstance(node, ScalarNode) else None


def _text(row: MapNode, key: str) -> str | None:
    value = _scalar(row, key)
    return value if isinstance(value, str) else None


def _needed(row: MapNode, key: str) -> str:
    text = _text(row, key)
    assert text is not None, f"{key} of {row.path} is missing"
    return text


def _pairs(row: MapNode, key: str) -> tuple[tuple[str, str], ...]:
    node = row.get(key)
    return tuple((name, _needed(node, name)) for name in node.entries) if isinstance(node, MapNode) else ()


def _texts(row: MapNode, key: str) -> tuple[str, ...]:
    node = row.get(key)
    items = node.items if isinstance(node, ListNode) else ()
    return tuple(str(item.value) for item in items if isinstance(item, ScalarNode))
