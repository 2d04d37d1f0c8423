"""Two measurements side by side, as text. The data that programs read is `Comparison.to_data`."""

from __future__ import annotations

from offload_runtime.models.bench_comparison import Comparison, SideChange
from offload_runtime.reporting.bench import format_ratio
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

__all__ = ["render_comparison"]


def render_comparison(comparison: Comparison) -> str:
    """Write one row for each side of both results, the noise, and what of it all is worse or better."""
    a, b = comparison.names
    columns = [
        Column("side"),
        Column("time in A", "right"),
        Column("in B", "right"),
        Column("B / A", "right"),
        Column("time"),
        Column("peak in A", "right"),
        Column("in B", "right"),
        Column("B / A", "right"),
        Column("memory"),
        Column("verdict"),
    ]
    parts = [
        f"A is {a}, B is {b}; times are those of {comparison.baseline} in the same result",
        render_table(columns, [_row(side, comparison.step_noise) for side in comparison.sides])
        if comparison.sides
        else "",
        "\n".join(_missing(comparison)),
        _noise(comparison),
        _verdict(comparison),
    ]
    return "\n\n".join(part for part in parts if part)


def _row(side: SideChange, step_noise: float | None) -> list[str]:
    is_untimed = step_noise is None and side.reason is None
    return [
        side.name,
        *map(format_ratio, side.ratios),
        format_ratio(side.ratio_change),
        "not measured" if is_untimed else _word(side.time),
        *("" if peak is None else format_size_short(peak) for peak in side.peaks),
        format_ratio(side.peak_change),
        _word(side.memory),
        side.verdict if side.reason is None else f"{side.verdict}: {side.reason}",
    ]


def _word(change: str) -> str:
    return "" if change == "unknown" else change


def _missing(comparison: Comparison) -> list[str]:
    pairs = zip("AB", (comparison.only_in_a, comparison.only_in_b), strict=True)
    return [f"  only in {name}: {', '.join(sides)}" for name, sides in pairs if sides]


def _noise(comparison: Comparison) -> str:
    if comparison.step_noise is None:
        return "noise: times were not measured in both, so that only peaks are compared"
    step, peak = 100 * comparison.step_noise, 100 * (comparison.peak_noise or 0)
    return f"noise: {step:.2f} % of a step time, {peak:.2f} % of a peak; what changed by less is the same"


def _verdict(comparison: Comparison) -> str:
    worse = [side.name for side in comparison.regressions]
    if worse:
        return f"verdict: B is worse in {', '.join(worse)}"
    better = [side.name for side in comparison.sides if side.verdict == "better"]
    if better:
        return f"verdict: B is better in {', '.join(better)}, and worse in none"
    if all(side.verdict == "unknown" for side in comparison.sides):
        return "verdict: nothing can be compared"
    if comparison.step_noise is None:
        return "verdict: peaks in B are those in A; times were not measured"
    return "verdict: B is the same as A, within the noise"
