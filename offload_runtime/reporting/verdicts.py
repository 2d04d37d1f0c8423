"""Group the verdicts of a run: by fate, by rule, by layer.

Every function takes verdicts and returns frozen rows in a fixed order; rendering is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

from offload_runtime.compiler import Fate
from offload_runtime.offload_plan import TensorVerdict

FATES: tuple[Fate, ...] = get_args(Fate)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Tally:
    """A number of tensors and their bytes, and the bytes that one step moves to the host for them."""

    num_tensors: int
    num_bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class FateRow:
    """What happens to one group of tensors: `label` names the group (a rule, a layer)."""

    label: str
    fate: Fate
    rule: str | None
    tally: Tally


def tally(verdicts: Iterable[TensorVerdict]) -> Tally:
    """Add up tensors and bytes."""
    listed = list(verdicts)
    return Tally(
        num_tensors=len(listed),
        num_bytes=sum(verdict.activation.num_bytes for verdict in listed),
        moved_bytes=sum(verdict.moved_bytes for verdict in listed),
    )


def by_fate(verdicts: Sequence[TensorVerdict]) -> tuple[tuple[Fate, Tally], ...]:
    """Tally each fate, all of them, in the order save, recompute, offload, skip."""
    return tuple((fate, tally(v for v in verdicts if v.fate == fate)) for fate in FATES)


def by_rule(verdicts: Sequence[TensorVerdict]) -> tuple[FateRow, ...]:
    """Tally by deciding rule and fate; rules in the order in which they first decide something.

    A rule with two fates (part of what it wanted offloaded did not fit the budget) gives two rows. What no
    rule decided comes last, under the label `(no rule)`.
    """
    order = {rule: i for i, rule in enumerate(dict.fromkeys(v.rule for v in verdicts if v.rule is not None))}
    groups = _group(verdicts, lambda v: (v.rule, v.fate))
    rows = [
        FateRow(rule if rule is not None else "(no rule)", fate, rule, tally(members))
        for (rule, fate), members in groups
    ]
    return tuple(sorted(rows, key=lambda row: (order.get(row.rule or "", len(order)), FATES.index(row.fate))))


def by_layer(verdicts: Sequence[TensorVerdict]) -> tuple[FateRow, ...]:
    """Tally by layer, fate and rule, in layer order; what lies in no layer comes last, as `outside`."""
    return tuple(
        FateRow("outside" if layer is None else str(layer), *row)
        for layer, rows in _layers(verdicts)
        for row in rows
    )


_LayerRow = tuple[Fate, str | None, Tally]


def _layers(verdicts: Sequence[TensorVerdict]) -> list[tuple[int | None, list[_LayerRow]]]:
    layers = []
    for layer, members in _group(verdicts, lambda v: v.activation.layer):
        groups = _group(members, lambda v: (v.fate, v.rule))
        rows = [(fate, rule, tally(group)) for (fate, rule), group in groups]
        layers.append((layer, sorted(rows, key=lambda row: (FATES.index(row[0]), row[1] or "~"))))
    return sorted(layers, key=lambda item: (item[0] is None, item[0] or 0))


def _group(
    verdicts: Iterable[TensorVerdict], key: Callable[[TensorVerdict], Key]
) -> list[tuple[Key, list[TensorVerdict]]]:
    groups: dict[Key, list[TensorVerdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key(verdict), []).append(verdict)
    return list(groups.items())
