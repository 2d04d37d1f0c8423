"""The fates of a model's tensors, summed up over runs of layers that were treated alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from offload_runtime.compiler import Fate
from offload_runtime.offload_plan import TensorVerdict


@dataclass(frozen=True)
class LayerRun:
    """Tensors of consecutive layers that share one fate under one rule.

    ``layers`` is written as ``0-30``, or ``outside`` for what is in no layer. ``num_tensors`` and the bytes
    are totals over those layers; ``rule`` is None where the default decided.
    """

    layers: str
    fate: Fate
    rule: str | None
    num_tensors: int
    num_bytes: int
    moved_bytes: int


def layer_runs(verdicts: Iterable[TensorVerdict]) -> tuple[LayerRun, ...]:
    """Sum up the fates of tensors by layer, and join consecutive layers that were treated alike.

    Two layers are alike when the same rules gave the same fates to equally many tensors of the same bytes.
    What is in no layer comes last.
    """
    by_layer: dict[int | None, Counter[tuple[Fate, str | None, int, int]]] = {}
    for verdict in verdicts:
        key = (verdict.fate, verdict.rule, verdict.activation.num_bytes, verdict.moved_bytes)
        by_layer.setdefault(verdict.activation.layer, Counter())[key] += 1
    numbered = sorted(layer for layer in by_layer if layer is not None)

    # Layers that are consecutive have one position minus rank; a gap in the numbers starts a new run.
    def alike(item: tuple[int, int]) -> tuple[int, frozenset[tuple[Any, int]]]:
        rank, layer = item
        return layer - rank, frozenset(by_layer[layer].items())

    runs: list[LayerRun] = []
    for _, members in groupby(enumerate(numbered), key=alike):
        layers = [layer for _, layer in members]
        label = str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
        runs += _rows(label, [by_layer[layer] for layer in layers])
    if None in by_layer:
        runs += _rows("outside", [by_layer[None]])
    return tuple(runs)


def _rows(label: str, layers: list[Counter[tuple[Fate, str | None, int, int]]]) -> list[LayerRun]:
    totals: dict[tuple[Fate, str | None], list[int]] = {}
    for layer in layers:
        for (fate, rule, num_bytes, moved_bytes), count in layer.items():
            total = totals.setdefault((fate, rule), [0, 0, 0])
            total[0] += count
            total[1] += count * num_bytes
            total[2] += count * moved_bytes
    rows = [LayerRun(label, fate, rule, *total) for (fate, rule), total in totals.items()]
    return sorted(rows, key=lambda row: (-row.num_bytes, row.fate, row.rule or ""))
