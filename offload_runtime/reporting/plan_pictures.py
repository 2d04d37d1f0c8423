"""The pictures of a plan: frontier, memory over the step, timeline, fates by layer, each in a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offload_runtime.models.frontier_result import FrontierFloor, FrontierPlan, FrontierResult
from offload_runtime.models.plan_result import PlanResult, StepForecast
from offload_runtime.reporting.plots import (
    FateShare,
    Floor,
    Frontier,
    FrontierPoint,
    FrontierSeries,
    MemoryLimit,
    draw_fates,
    draw_frontier,
    draw_memory,
    draw_timeline,
    write_figure,
)
from offload_runtime.units import format_size_short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_NAMED = 3  # of what holds the floor: more would not fit beside it

__all__ = ["frontier_picture", "picture_path", "write_pictures"]


def write_pictures(
    result: PlanResult | None, frontier: FrontierResult | None, prefix: Path
) -> tuple[Path, ...]:
    """Write one file for each picture, ``PREFIX-memory.png`` and so on, and return their paths.

    Raises UsageError for a suffix other than .png and .svg, and where a file cannot be written.
    """
    written = []
    for name, figure in _figures(result, frontier):
        path = picture_path(prefix, name)
        write_figure(figure, path)
        written.append(path)
    return tuple(written)


def picture_path(prefix: Path, name: str) -> Path:
    """Return the file of one picture: the name stands between the prefix and its suffix."""
    return prefix.with_name(f"{prefix.stem}-{name}{prefix.suffix}")


def _figures(result: PlanResult | None, frontier: FrontierResult | None) -> Iterator[tuple[str, Figure]]:
    if frontier is not None:
        yield "frontier", draw_frontier(frontier_picture(frontier))
    if result is None:
        return
    subject = _subject(result)
    if frontier is None:
        yield "frontier", draw_frontier(_two_points(result, subject))
    before, after = result.baseline_step, result.policy_step
    yield (
        "memory",
        draw_memory(
            after.trace,
            before.simulation,
            after.simulation,
            before_trace=before.trace,
            limits=_limits(result),
            subject=subject,
        ),
    )
    yield "timeline", draw_timeline(after.trace, after.simulation, subject=subject)
    shares = [
        FateShare(verdict.activation.layer, verdict.fate, verdict.activation.num_bytes)
        for verdict in result.verdicts
        if verdict.fate != "skip"
    ]
    yield "fates", draw_fates(shares, num_layers=result.num_layers, subject=subject)


def frontier_picture(result: FrontierResult) -> Frontier:
    """Return what the picture of a sweep compares; points with a label say what was asked."""
    current = result.current if result.current is not None and not result.current.changes_nothing else None
    return Frontier(
        series=(
            FrontierSeries(f"planned ({result.planned_policy})", _points(result.planned)),
            FrontierSeries(f"largest first ({result.largest_first_policy})", _points(result.largest_first)),
        ),
        baseline=_point(result.baseline, "baseline"),
        current=None if current is None else _point(current.policy, current.policy_name),
        infeasible_bytes=tuple(plan.asked_bytes for plan in result.planned if plan.forecast is None),
        floor=_floor(result.floor),
        capacity_bytes=result.capacity_bytes,
        subject=f"{result.model}, mode {result.mode}, on {result.hardware}; predicted",
    )


def _floor(floor: FrontierFloor | None) -> Floor | None:
    if floor is None:
        return None
    held = [
        f"{format_size_short(holding.num_bytes)} {_short(holding.what)}"
        for holding in floor.holdings[:NUM_NAMED]
    ]
    return Floor(floor.num_bytes, ", ".join(held) or "the optimizer's step")


def _short(what: str) -> str:
    """Leave out of an operator's name what says little: its namespace and the default overload."""
    return what.replace("aten.", "").removesuffix(".default").strip("_")


def _points(plans: tuple[FrontierPlan, ...]) -> tuple[FrontierPoint, ...]:
    return tuple(_point(plan.forecast) for plan in plans if plan.forecast is not None)


def _point(forecast: StepForecast, label: str = "") -> FrontierPoint:
    return FrontierPoint(forecast.peak_device_bytes, forecast.step_ms, label)


def _two_points(result: PlanResult, subject: str) -> Frontier:
    return Frontier(
        series=(),
        baseline=_point(result.baseline, "baseline"),
        current=_point(result.policy, result.policy_name),
        capacity_bytes=result.capacity_bytes,
        subject=subject,
    )


def _limits(result: PlanResult) -> list[MemoryLimit]:
    limits = [MemoryLimit(f"memory of {result.hardware}", result.capacity_bytes)]
    if result.target_bytes is not None:
        limits.insert(0, MemoryLimit("target (limits.device_peak)", result.target_bytes))
    return limits


def _subject(result: PlanResult) -> str:
    layers = "" if result.num_layers is None else f", {result.num_layers} layers"
    target = "" if result.target_bytes is None else f", target {format_size_short(result.target_bytes)}"
    where = f"mode {result.mode}, on {result.hardware}; predicted"
    return f"{result.policy_name}{target} on {result.model}{layers}, {where}"
