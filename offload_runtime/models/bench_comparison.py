"""Two results side by side: for each side they share, what changed, and whether that is more than noise.

Milliseconds of two runs say little about each other; a side's time over its own run's baseline does. So times are
compared as those ratios, and the noise is what both baselines differed from themselves by.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.models.bench_identity import differences, setting_facts, shape_facts
from offload_runtime.models.bench_result import BenchResult, Side
from offload_runtime.models.bench_statistics import noise, summarise

__all__ = ["Change", "Comparison", "SideChange", "compare_results"]

Verdict = Literal["worse", "better", "mixed", "same", "unknown"]
Change = Literal["worse", "better", "same", "unknown"]


@dataclass(frozen=True)
class SideChange:
    """One side in both results.

    ``ratios`` are its step times over the baseline's in A and in B, ``ratio_change`` is B's over A's; the same
    for peaks. ``reason`` says in words why a side is worse or better where no figure does.
    """

    name: str
    ratios: tuple[float | None, float | None]
    ratio_change: float | None
    time: Change
    peaks: tuple[int | None, int | None]
    peak_change: float | None
    memory: Change
    verdict: Verdict
    reason: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All sides of two results. Noise is in fractions, that of A and of B added; None where none was measured."""

    names: tuple[str, str]
    baseline: str
    step_noise: float | None
    peak_noise: float | None
    sides: tuple[SideChange, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def regressions(self) -> tuple[SideChange, ...]:
        """Return the sides that B has worse in time or memory."""
        return tuple(side for side in self.sides if "worse" in (side.time, side.memory, side.verdict))

    def to_data(self) -> dict[str, Any]:
        """Return the plain values that ``offload compare --format json`` puts under ``data``."""
        data = asdict(self)
        del data["diagnostics"]
        return {**data, "regressions": [side.name for side in self.regressions]}


def compare_results(a: BenchResult, b: BenchResult, names: tuple[str, str]) -> Comparison:
    """Compare ``b`` with ``a``; ``names`` are what the two are called.

    Raises RefusedError (BEN913) where they measured different things.
    """
    _refuse_unlike(a, b, names)
    noise_a, noise_b = noise(a), noise(b)
    step_noise = _added(noise_a.step_fraction, noise_b.step_fraction)
    peak_noise = _added(noise_a.peak_fraction, noise_b.peak_fraction)
    in_b = {side.name for side in b.sides}
    shared = [side.name for side in a.sides if side.name in in_b and side.kind != "control"]
    return Comparison(
        names=names,
        baseline=a.baseline,
        step_noise=step_noise,
        peak_noise=peak_noise,
        sides=tuple(_side_change(a, b, name, step_noise, peak_noise) for name in shared),
        only_in_a=_others(a, shared),
        only_in_b=_others(b, shared),
        diagnostics=_conditions(a, b, names),
    )


def _refuse_unlike(a: BenchResult, b: BenchResult, names: tuple[str, str]) -> None:
    unlike = differences(shape_facts(a), shape_facts(b), _inside(names))
    if unlike:
        message = f"{names[0]} and {names[1]} measured different things: {'; '.join(unlike)}"
        hint = "compare results of one model and shape against one baseline"
        raise RefusedError(Diagnostic("BEN913", "error", message, hint=hint))


def _conditions(a: BenchResult, b: BenchResult, names: tuple[str, str]) -> tuple[Diagnostic, ...]:
    unlike = differences(setting_facts(a), setting_facts(b), _inside(names))
    if not unlike:
        return ()
    hint = "what differs below may come from that"
    message = f"measured under different conditions: {'; '.join(unlike)}"
    return (Diagnostic("BEN942", "warning", message, hint=hint),)


def _inside(names: tuple[str, str]) -> tuple[str, str]:
    return f"in {names[0]}", f"in {names[1]}"


def _others(result: BenchResult, shared: list[str]) -> tuple[str, ...]:
    return tuple(side.name for side in result.sides if side.name not in shared and side.kind != "control")


def _side_change(
    a: BenchResult, b: BenchResult, name: str, step_noise: float | None, peak_noise: float | None
) -> SideChange:
    before, after = summarise(a, name), summarise(b, name)
    # The baseline's ratio to itself is 1 by definition; only its peak can change.
    ratios = (None, None) if name == a.baseline else (before.ratio, after.ratio)
    ratio_change = _quotient(ratios)
    peaks = (before.peak_device_bytes, after.peak_device_bytes)
    time, memory = _judge(ratio_change, step_noise), _judge(_quotient(peaks), peak_noise)
    verdict, reason = _runnable(a.side(name), b.side(name))
    return SideChange(
        name=name,
        ratios=ratios,
        ratio_change=ratio_change,
        time=time,
        peaks=peaks,
        peak_change=_quotient(peaks),
        memory=memory,
        verdict=verdict or _verdict(time, memory),
        reason=reason,
    )


def _runnable(before: Side, after: Side) -> tuple[Verdict | None, str | None]:
    """Judge a side that runs in one result only, or in neither."""
    if before.runs and after.runs:
        return None, None
    if before.runs:
        return "worse", f"no longer {_trouble(after)}"
    if after.runs:
        return "better", f"now {_trouble(before)}"
    return "unknown", "runs in neither"


def _trouble(side: Side) -> str:
    return "fits" if side.fits is False else "runs"


def _judge(change: float | None, fraction: float | None) -> Change:
    if change is None or fraction is None:
        return "unknown"
    if change > 1 + fraction:
        return "worse"
    return "better" if change < 1 - fraction else "same"


def _verdict(time: Change, memory: Change) -> Verdict:
    if {time, memory} == {"worse", "better"}:
        return "mixed"
    order: tuple[Change, ...] = ("worse", "better", "same", "unknown")
    return min(time, memory, key=order.index)


def _quotient(pair: tuple[float | None, float | None]) -> float | None:
    before, after = pair
    return after / before if before and after is not None else None


def _added(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
