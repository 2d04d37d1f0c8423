"""What another policy would do differently with the saved tensors of one model: as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from offload_runtime.compiler import Fate, SavedActivation
from offload_runtime.offload_plan import TensorVerdict
from offload_runtime.record import Report
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.reporting.verdicts import FATES, Tally, tally
from offload_runtime.units import format_size_short

DifferenceGrouping = Literal["change", "tensor"]
DIFFERENCE_GROUPINGS: tuple[DifferenceGrouping, ...] = get_args(DifferenceGrouping)


@dataclass(frozen=True)
class TensorChange:
    """One tensor that the two policies treat differently; a side is None where only the other one sees it."""

    graph: int
    before: TensorVerdict | None
    after: TensorVerdict | None

    @property
    def activation(self) -> SavedActivation:
        """The tensor, which is the same on both sides."""
        seen = self.before or self.after
        assert seen is not None, "a change has a side"
        return seen.activation

    @property
    def fates(self) -> tuple[Fate | None, Fate | None]:
        """The fate before and after."""
        return (self.before.fate if self.before else None, self.after.fate if self.after else None)

    @property
    def rules(self) -> tuple[str | None, str | None]:
        """The deciding rule before and after."""
        return (self.before.rule if self.before else None, self.after.rule if self.after else None)

    @property
    def changes_fate(self) -> bool:
        """Tell whether the tensor goes elsewhere, and not by another rule only."""
        return self.fates[0] != self.fates[1]


@dataclass(frozen=True)
class PolicyDifference:
    """Two explanations of one model, and the tensors on which they differ, in forward order."""

    before: Report
    after: Report
    changes: tuple[TensorChange, ...]

    @property
    def fate_changes(self) -> tuple[TensorChange, ...]:
        """The tensors whose fate differs."""
        return tuple(change for change in self.changes if change.changes_fate)


def policy_difference(before: Report, after: Report) -> PolicyDifference:
    """Compare two explanations of one capture: tensors are the same where graph and name are."""
    old, new = _by_tensor(before), _by_tensor(after)
    changes = (TensorChange(key[0], old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]))
    return PolicyDifference(
        before, after, tuple(c for c in changes if c.changes_fate or c.rules[0] != c.rules[1])
    )


def difference_data(difference: PolicyDifference) -> dict[str, Any]:
    """Return the difference for programs: every tensor that changes, whatever a person asked to see."""
    before, after = difference.before, difference.after
    return {
        "before": {"policy": before.policy, "policy_hash": before.policy_hash},
        "after": {"policy": after.policy, "policy_hash": after.policy_hash},
        "mode": after.mode,
        "num_tensors": len(_by_tensor(before).keys() | _by_tensor(after).keys()),
        "num_fate_changes": len(difference.fate_changes),
        "num_rule_changes": len(difference.changes) - len(difference.fate_changes),
        "planned_bytes": {"before": before.planned_bytes, "after": after.planned_bytes},
        "fates": {
            fate: {"before": _tally_data(old), "after": _tally_data(new)}
            for fate, old, new in _tallies(difference)
        },
        "changes": [_change_data(change) for change in difference.changes],
    }


def render_difference(
    difference: PolicyDifference, model: str, *, by: DifferenceGrouping = "change", limit: int | None = None
) -> str:
    """Write the summary, the bytes by fate before and after, and what changes; ``limit`` caps the rows of that."""
    parts = [_summary(difference, model), _fate_table(difference)]
    if difference.changes:
        table = _tensor_table if by == "tensor" else _change_table
        parts.append(table(difference, limit))
    return "\n\n".join(parts)


def _by_tensor(report: Report) -> Mapping[tuple[int, str], TensorVerdict]:
    return {(graph.graph, v.activation.name): v for graph in report.graphs for v in graph.tensors}


def _tallies(difference: PolicyDifference) -> list[tuple[Fate, Tally, Tally]]:
    return [
        (
            fate,
            tally(v for v in difference.before.tensors if v.fate == fate),
            tally(v for v in difference.after.tensors if v.fate == fate),
        )
        for fate in FATES
    ]


def _tally_data(side: Tally) -> dict[str, int]:
    return {"num_tensors": side.num_tensors, "num_bytes": side.num_bytes, "moved_bytes": side.moved_bytes}


def _change_data(change: TensorChange) -> dict[str, Any]:
    activation = change.activation
    return {
        "name": activation.name,
        "graph": change.graph,
        "op": activation.op,
        "op_class": activation.op_class,
        "module": activation.module,
        "layer": activation.layer,
        "num_bytes": activation.num_bytes,
        "before": _side_data(change.before),
        "after": _side_data(change.after),
    }


def _side_data(verdict: TensorVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "fate": verdict.fate,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "moved_bytes": verdict.moved_bytes,
    }


def _summary(difference: PolicyDifference, model: str) -> str:
    before, after = difference.before, difference.after
    moved = [format_size_short(report.planned_bytes) for report in (before, after)]
    num_rules_only = len(difference.changes) - len(difference.fate_changes)
    by_rule = f", {num_rules_only} by another rule alone" if num_rules_only else ""
    return (
        f"{before.policy} -> {after.policy} on {model}, mode {after.mode}: "
        f"{len(difference.fate_changes)} of {len(_by_tensor(after))} tensors change fate{by_rule}; "
        f"offloaded each step {moved[0]} -> {moved[1]}"
    )


def _fate_table(difference: PolicyDifference) -> str:
    columns = [
        Column("fate"),
        *(Column(title, "right") for title in ("tensors before", "after", "bytes before")),
    ]
    columns += [Column("after", "right"), Column("change", "right")]
    rows = [
        [
            fate,
            str(old.num_tensors),
            str(new.num_tensors),
            format_size_short(old.num_bytes),
            format_size_short(new.num_bytes),
            _signed(new.num_bytes - old.num_bytes),
        ]
        for fate, old, new in _tallies(difference)
        if old.num_tensors or new.num_tensors
    ]
    return render_table(columns, rows)


def _signed(num_bytes: int) -> str:
    if num_bytes == 0:
        return ""
    return f"{'-' if num_bytes < 0 else '+'}{format_size_short(abs(num_bytes))}"


def _change_table(difference: PolicyDifference, limit: int | None) -> str:
    """Tabulate groups of tensors that change alike; changes of fate come first, the most bytes first in each."""
    groups: dict[tuple[Any, ...], list[TensorChange]] = {}
    for change in difference.changes:
        groups.setdefault((change.fates, change.rules, change.activation.op_class), []).append(change)
    ordered = sorted(
        groups.items(),
        key=lambda item: (not item[1][0].changes_fate, -sum(c.activation.num_bytes for c in item[1])),
    )
    columns = [Column("fate"), Column("rule"), Column("class"), Column("layers")]
    columns += [Column("tensors", "right"), Column("bytes", "right")]
    rows = [
        [
            _arrow(*members[0].fates),
            _arrow(*members[0].rules),
            members[0].activation.op_class,
            _layers([member.activation.layer for member in members]),
            str(len(members)),
            format_size_short(sum(member.activation.num_bytes for member in members)),
        ]
        for _, members in ordered
    ]
    return _limited(columns, rows, limit)


def _tensor_table(difference: PolicyDifference, limit: int | None) -> str:
    """Tabulate tensors, the largest first where not all are shown."""
    several = difference.after.num_graphs > 1
    columns = [Column(t) for t in ("tensor", "op", "module", "layer")]
    columns += [Column("bytes", "right"), Column("fate"), Column("rule"), Column("reason")]
    listed = list(difference.changes)
    if limit is not None:
        listed.sort(key=lambda change: -change.activation.num_bytes)
    rows = []
    for change in listed:
        activation = change.activation
        row = [activation.name, activation.op, activation.module]
        row += ["" if activation.layer is None else str(activation.layer)]
        row += [format_size_short(activation.num_bytes), _arrow(*change.fates), _arrow(*change.rules)]
        row += [change.after.reason if change.after else ""]
        rows.append([str(change.graph), *row] if several else row)
    return _limited([Column("graph"), *columns] if several else columns, rows, limit)


def _arrow(before: str | None, after: str | None) -> str:
    return before or "-" if before == after else f"{before or '-'} -> {after or '-'}"


def _layers(layers: Sequence[int | None]) -> str:
    """Write layer ids as ranges: ``0-3, 7, outside``."""
    numbered = sorted({layer for layer in layers if layer is not None})
    runs: list[list[int]] = []
    for layer in numbered:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join([*texts, *(["outside"] if None in layers else [])])


def _limited(columns: Sequence[Column], rows: Sequence[Sequence[str]], limit: int | None) -> str:
    shown = rows if limit is None else rows[:limit]
    left_out = len(rows) - len(shown)
    return render_table(columns, shown) + (f"\n  ... and {left_out} more" if left_out else "")
