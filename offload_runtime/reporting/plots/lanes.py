"""What the timeline draws, worked out of a simulation: bars by layer, copies, stalls, and which layers are numbered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from offload_runtime.step import Copy, Simulation, StepTrace

__all__ = ["Bar", "Stall", "compute_bars", "copy_bars", "find_stalls", "numbered_bars"]

SHORTEST_SHARE = 1e-6  # of the step: a shorter gap is rounding
STRIDES = (1, 2, 4, 5, 8, 10, 20, 40, 50, 100, 200, 500)


@dataclass(frozen=True)
class Bar:
    """What runs in one go and belongs to one layer (None: outside of them, or not known)."""

    start_ms: float
    end_ms: float
    layer: int | None
    backward: bool = False

    @property
    def duration_ms(self) -> float:
        """How long it runs."""
        return self.end_ms - self.start_ms

    @property
    def middle_ms(self) -> float:
        """The time half way."""
        return (self.start_ms + self.end_ms) / 2


@dataclass(frozen=True)
class Stall:
    """A time in which compute stands still, and the copy that ends with it, if there is one."""

    start_ms: float
    end_ms: float
    copy: Copy | None = None

    @property
    def duration_ms(self) -> float:
        """How long compute stands still."""
        return self.end_ms - self.start_ms


def compute_bars(trace: StepTrace, simulation: Simulation) -> list[Bar]:
    """Join neighbouring kernels of one layer and one direction, unless compute stands still between them."""
    shortest = SHORTEST_SHARE * simulation.step_ms
    bars: list[Bar] = []
    times = zip(trace.kernels, simulation.starts_ms, simulation.ends_ms, strict=True)
    for index, (kernel, start, end) in enumerate(times):
        backward = index >= trace.num_forward
        last = bars[-1] if bars else None
        if (
            last
            and (last.layer, last.backward) == (kernel.layer, backward)
            and start - last.end_ms <= shortest
        ):
            start = bars.pop().start_ms
        bars.append(Bar(start, end, kernel.layer, backward))
    return bars


def copy_bars(trace: StepTrace, simulation: Simulation, direction: Literal["d2h", "h2d"]) -> list[Bar]:
    """Return one bar for each copy in ``direction``, with the layer that made what it moves, by start."""
    layer_of = {item.name: trace.kernels[item.created].layer for item in trace.items}
    copies = sorted(
        (copy for copy in simulation.copies if copy.direction == direction), key=lambda copy: copy.start_ms
    )
    return [Bar(copy.start_ms, copy.end_ms, layer_of.get(copy.item)) for copy in copies]


def find_stalls(simulation: Simulation) -> list[Stall]:
    """Return the gaps between kernels, each with the copy that is waited for and ends where the next kernel starts."""
    shortest = SHORTEST_SHARE * simulation.step_ms
    waited = [copy for copy in simulation.copies if copy.stall_ms > 0]
    gaps = zip((0.0, *simulation.ends_ms), simulation.starts_ms, strict=False)
    return [
        Stall(start, end, next((copy for copy in waited if abs(copy.end_ms - end) <= shortest), None))
        for start, end in gaps
        if end - start > shortest
    ]


def numbered_bars(bars: Sequence[Bar], ms_per_digit: float) -> list[Bar]:
    """Choose the bars that carry their layer's number, so that numbers of ``ms_per_digit`` a digit do not touch.

    Each layer is numbered once in each direction, at its longest bar; where that is too tight, every second
    layer, every fourth, and so on.
    """
    longest: dict[tuple[bool, int], Bar] = {}
    for bar in _joined(bars):
        if bar.layer is not None:
            key = (bar.backward, bar.layer)
            if key not in longest or bar.duration_ms > longest[key].duration_ms:
                longest[key] = bar
    ordered = sorted(longest.values(), key=lambda bar: bar.middle_ms)
    return [
        bar
        for backward in (False, True)
        for bar in _thinned([bar for bar in ordered if bar.backward == backward], ms_per_digit)
    ]


def _thinned(bars: Sequence[Bar], ms_per_digit: float) -> list[Bar]:
    for stride in STRIDES:
        shown = [bar for bar in bars if (bar.layer or 0) % stride == 0]
        if _apart(shown, ms_per_digit):
            return shown
    return []


def _joined(bars: Sequence[Bar]) -> list[Bar]:
    """Join bars of one layer that follow each other, with a gap or without."""
    joined: list[Bar] = []
    for bar in bars:
        if joined and (joined[-1].layer, joined[-1].backward) == (bar.layer, bar.backward):
            joined[-1] = Bar(joined[-1].start_ms, bar.end_ms, bar.layer, bar.backward)
        else:
            joined.append(bar)
    return joined


def _apart(bars: Sequence[Bar], ms_per_digit: float) -> bool:
    """Tell whether the numbers of ``bars``, and a space of one digit between two of them, find room."""
    halves = [(len(str(bar.layer)) + 1) / 2 * ms_per_digit for bar in bars]
    return all(
        right.middle_ms - left.middle_ms >= halves[index] + halves[index + 1]
        for index, (left, right) in enumerate(itertools.pairwise(bars))
    )
