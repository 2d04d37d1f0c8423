"""Medians, spreads and paired ratios of a measurement, and how far the baseline differs from itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from offload_runtime.models.bench_result import BenchResult, Turn

__all__ = ["Noise", "SideSummary", "noise", "summarise"]


@dataclass(frozen=True)
class SideSummary:
    """One side over all rounds.

    Times are of single steps; ``iqr_ms`` needs two. ``ratio`` is the median of ``ratio_by_round``, each the
    median of the side's turn over that of the baseline's turn in the same round, so that what drifts from
    round to round cancels; None in rounds where one of them took no turn. The peak is the largest of all
    turns. All are None where nothing was measured, or the side does not fit.
    """

    side: str
    num_steps: int
    median_ms: float | None
    iqr_ms: float | None
    min_ms: float | None
    ratio: float | None
    ratio_by_round: tuple[float | None, ...]
    peak_device_bytes: int | None


@dataclass(frozen=True)
class Noise:
    """How far equal things measured differently, as fractions.

    ``step_fraction`` is the largest distance from 1 of any round's ratio of the baseline to itself.
    ``peak_fraction`` is the largest spread between the turns of one side, relative to its largest peak. None
    where nothing of the kind was measured.
    """

    step_fraction: float | None
    peak_fraction: float | None
    ratio_by_round: tuple[float | None, ...]


def summarise(result: BenchResult, name: str) -> SideSummary:
    """Sum up the turns of the side called ``name``."""
    runs = result.side(name).runs
    turns = list(_turns(result, name)) if runs else []
    times = [step_ms for turn in turns for step_ms in turn.step_ms or ()]
    ratios = _ratios(result, name) if runs else (None,) * len(result.rounds)
    known = [ratio for ratio in ratios if ratio is not None]
    return SideSummary(
        side=name,
        num_steps=len(times),
        median_ms=median(times) if times else None,
        iqr_ms=_interquartile_range(times),
        min_ms=min(times, default=None),
        ratio=median(known) if known else None,
        ratio_by_round=ratios,
        peak_device_bytes=max(_peaks(turns), default=None),
    )


def noise(result: BenchResult) -> Noise:
    """Compare the baseline's turns with its own, and the peaks of each side with each other."""
    ratios = _ratios(result, result.control)
    steps = [abs(ratio - 1) for ratio in ratios if ratio is not None]
    spreads = [
        (max(peaks) - min(peaks)) / max(peaks)
        for side in result.sides
        if side.runs and (peaks := list(_peaks(_turns(result, side.name)))) and max(peaks)
    ]
    return Noise(max(steps, default=None), max(spreads, default=None), ratios)


def _turns(result: BenchResult, name: str) -> Iterator[Turn]:
    for taken in result.rounds:
        turn = taken.turn_of(name)
        if turn is not None:
            yield turn


def _ratios(result: BenchResult, name: str) -> tuple[float | None, ...]:
    return tuple(_ratio(taken.turn_of(name), taken.turn_of(result.baseline)) for taken in result.rounds)


def _ratio(turn: Turn | None, baseline: Turn | None) -> float | None:
    if turn is None or baseline is None or not turn.step_ms or not baseline.step_ms:
        return None
    base_ms = median(baseline.step_ms)
    return median(turn.step_ms) / base_ms if base_ms else None


def _peaks(turns: Sequence[Turn] | Iterator[Turn]) -> Iterator[int]:
    return (turn.peak_device_bytes for turn in turns if turn.peak_device_bytes is not None)


def _interquartile_range(times: Sequence[float]) -> float | None:
    if len(times) < 2:
        return None
    low, _, high = quantiles(times, n=4, method="inclusive")
    return high - low
