"""A paired measurement as text and as the frontier picture. The data that programs read is `result_data`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from offload_runtime.models.bench_result import BenchResult, Environment, Side
from offload_runtime.models.bench_statistics import Noise, SideSummary, noise, summarise
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

__all__ = ["NOT_TIMED", "draw_bench", "format_ratio", "frontier_line", "noise_line", "render_bench"]

_SHAPE = re.compile(r" \([^()]*\)$")  # layers, batch and type, at the end of a description

NOT_TIMED = (
    "without an accelerator nothing was timed; peaks are the simulator's, for the sides that go through the "
    "offload back end"
)


def render_bench(result: BenchResult) -> str:
    """Write the measurement: what was run and where, one row for each side, the noise, what it shows."""
    summaries = [summarise(result, side.name) for side in result.sides]
    parts = [
        _heading(result),
        _table(result, summaries),
        "\n".join(_refusals(result)),
        noise_line(result, noise(result)) if result.timed else NOT_TIMED,
        frontier_line(result, summaries),
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(result: BenchResult) -> str:
    model, environment = result.model, result.environment
    rounds = f"{len(result.rounds)} of {result.num_rounds} rounds of {_count(result.steps, 'step')}"
    optimizer = "forward and backward" if model.optimizer == "none" else f"with {model.optimizer}"
    where = f"torch {environment.torch}, offload-runtime {environment.package}, {_machine(environment)}"
    return (
        f"{model.spec}: {model.description}, {model.num_parameters:,} parameters, {optimizer}\n"
        f"mode {result.mode}, {rounds} in {_count(result.num_runs, 'run')}; {where}"
    )


def _machine(environment: Environment) -> str:
    if environment.gpu is None:
        return "no accelerator"
    link = ""
    if environment.link_gen is not None and environment.link_width is not None:
        link = f", PCIe {environment.link_gen} x{environment.link_width}"
    memory = f" of {format_size_short(environment.gpu_bytes)}" if environment.gpu_bytes is not None else ""
    if environment.device_memory_bytes is not None:
        memory += f", kept to {format_size_short(environment.device_memory_bytes)}"
    return f"{environment.gpu}{memory}{link}"


def _table(result: BenchResult, summaries: Sequence[SideSummary]) -> str:
    timed = result.timed
    base_peak = summaries[0].peak_device_bytes
    columns = [Column("side"), Column("peak", "right"), Column("change", "right"), Column("moved", "right")]
    if timed:
        times = ("step ms", "x baseline", "rounds", "IQR ms", "min ms", "compile s")
        columns[1:1] = [Column(title, "right") for title in times]
    predicts = any(side.predicted is not None for side in result.sides)
    if predicts:
        columns += [Column("predicted peak", "right"), Column("predicted ms", "right")]
    rows = []
    for side, summary in zip(result.sides, summaries, strict=True):
        memory = [
            _peak(side, summary),
            _change(base_peak, summary.peak_device_bytes),
            format_size_short(side.moved_bytes) if side.moved_bytes else "",
        ]
        times_told = _times(result, side, summary) if timed else ()
        rows.append([side.name, *times_told, *memory, *(_predicted(side, summary) if predicts else ())])
    return render_table(columns, rows)


def _times(result: BenchResult, side: Side, summary: SideSummary) -> list[str]:
    ratios = [ratio for ratio in summary.ratio_by_round if ratio is not None]
    spread = f"{format_ratio(min(ratios))}..{format_ratio(max(ratios))}" if ratios else ""
    is_baseline = side.name == result.baseline
    return [
        _ms(summary.median_ms),
        "" if is_baseline else format_ratio(summary.ratio),
        "" if is_baseline else spread,
        _ms(summary.iqr_ms),
        _ms(summary.min_ms),
        " ".join(f"{seconds:.1f}" for seconds in side.compile_s),
    ]


def _predicted(side: Side, summary: SideSummary) -> list[str]:
    """Return what was predicted, each with its error where it was measured."""
    predicted = side.predicted
    if predicted is None:
        return ["", ""]
    peak = format_size_short(predicted.peak_device_bytes)
    measured_ms = summary.median_ms
    return [
        f"{peak}{_error(predicted.peak_device_bytes, summary.peak_device_bytes if measured_ms else None)}",
        f"{predicted.step_ms:.1f}{_error(predicted.step_ms, measured_ms)}",
    ]


def _error(predicted: float, measured: float | None) -> str:
    return f" ({100 * (predicted / measured - 1):+.1f} %)" if measured else ""


def _peak(side: Side, summary: SideSummary) -> str:
    if side.refused is not None:
        return "refused"
    if side.fits is False:
        return "out of memory"
    return "" if summary.peak_device_bytes is None else format_size_short(summary.peak_device_bytes)


def _refusals(result: BenchResult) -> list[str]:
    return [f"  {side.name} was refused: {side.refused}" for side in result.sides if side.refused is not None]


def noise_line(result: BenchResult, measured: Noise) -> str:
    """Say below which difference sides are equal, or why nobody knows."""
    if measured.step_fraction is None:
        return f"noise: not known, because {result.baseline} was not measured twice in one round"
    share = f"{100 * measured.step_fraction:.2f} %"
    return (
        f"noise: {result.baseline} differs from itself by up to {share} in a round; a side that differs less is "
        "no faster and no slower"
    )


def frontier_line(result: BenchResult, summaries: Sequence[SideSummary]) -> str:
    """Name the sides that no other beats in both memory and time; empty where nothing was timed."""
    if not result.timed:
        return ""
    best = _frontier(result, summaries)
    if not best:
        return ""
    named = ", ".join(
        f"{summary.side} ({format_size_short(summary.peak_device_bytes or 0)} at {format_ratio(summary.ratio)}x)"
        for summary in best
    )
    return f"no side needs both less memory and less time than: {named}"


def _frontier(result: BenchResult, summaries: Sequence[SideSummary]) -> list[SideSummary]:
    """Return the sides that no other beats in both memory and time, the largest peak first."""
    points = [
        (summary.peak_device_bytes, summary.ratio, summary)
        for summary in summaries
        if summary.side != result.control
        and summary.peak_device_bytes is not None
        and summary.ratio is not None
    ]
    best = [
        (peak, summary)
        for peak, ratio, summary in points
        if not any(
            other_peak <= peak and other_ratio <= ratio and (other_peak, other_ratio) != (peak, ratio)
            for other_peak, other_ratio, _ in points
        )
    ]
    return [summary for _, summary in sorted(best, key=lambda pair: -pair[0])]


def draw_bench(result: BenchResult, path: Path, *, source: str = "") -> bool:
    """Draw the sides as memory against time into the PNG or SVG at ``path``; False where nothing was timed.

    Policies are one series, each kind of peer another. ``source`` says in the file what it was
    drawn from. Raises UsageError for a file that cannot be written, RefusedError without matplotlib.
    """
    from offload_runtime.reporting.plots import (
        Frontier,
        FrontierPoint,
        FrontierSeries,
        draw_frontier,
        write_figure,
    )

    summaries = {side.name: summarise(result, side.name) for side in result.sides}
    base_ms = summaries[result.baseline].median_ms
    series: dict[str, list[FrontierPoint]] = {"policies": []}
    baseline = None
    for side in result.sides:
        summary = summaries[side.name]
        peak_bytes, step_ms = summary.peak_device_bytes, _paired_ms(summary, base_ms)
        if peak_bytes is None or step_ms is None or side.kind == "control":
            continue
        if side.name == result.baseline:
            baseline = FrontierPoint(peak_bytes, step_ms, side.name)
            continue
        kind, _, argument = side.name.partition(":") if side.kind == "peer" else ("policies", "", side.name)
        series.setdefault(kind, []).append(FrontierPoint(peak_bytes, step_ms, argument))
    if baseline is None and not any(series.values()):
        return False
    drawn = tuple(FrontierSeries(name, tuple(points)) for name, points in series.items() if points)
    shape = _SHAPE.search(result.model.description)
    subject = f"{result.model.spec}{shape[0] if shape else ''}, mode {result.mode}, {result.environment.gpu}, measured"
    write_figure(draw_frontier(Frontier(drawn, baseline, subject=subject)), path, source=source)
    return True


def _paired_ms(summary: SideSummary, base_ms: float | None) -> float | None:
    """Return the step time by which the picture shows the same ratio as the table does."""
    return summary.median_ms if base_ms is None or summary.ratio is None else summary.ratio * base_ms


def format_ratio(ratio: float | None) -> str:
    """Write a ratio to four places, nothing for None."""
    return "" if ratio is None else f"{ratio:.4f}"


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.2f}"


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None or before == after:
        return ""
    return f"{100 * (after - before) / before:+.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
