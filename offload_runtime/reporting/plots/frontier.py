"""The frontier: how much device memory each choice needs, and what it costs in time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offload_runtime.reporting.plots.labels import GUIDE, PointLabel, place_labels
from offload_runtime.reporting.plots.quantities import MemoryUnit, format_ms, memory_unit
from offload_runtime.reporting.plots.style import (
    AFTER,
    FAINT,
    INK,
    MUTED,
    RIVALS,
    WARNING,
    drawing,
    new_figure,
    set_titles,
    text_colour,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Floor", "Frontier", "FrontierPoint", "FrontierSeries", "draw_frontier"]

MARKERS = ("s", "D", "^", "v", "P", "p")
OFF_SCALE = 1.25  # a peer this many times slower than the fastest is shown at the upper edge
EDGE_HEIGHT = 0.97  # of the axes: there the first of such peers stands
EDGE_ROW = 0.06  # lower than it the next one, where the two are closer than
EDGE_REACH = 0.35  # of the width, since the words beside them need it
FLOOR_SHARE = 0.21  # of the width is kept for what is said about the floor
FLOOR_CHARACTERS = 24


@dataclass(frozen=True)
class FrontierPoint:
    """One way to run the step: its peak of device memory and its step time; ``label`` stands beside it."""

    peak_bytes: int
    step_ms: float
    label: str = ""


@dataclass(frozen=True)
class FrontierSeries:
    """Points of one kind, such as one selection under several targets."""

    name: str
    points: tuple[FrontierPoint, ...]


@dataclass(frozen=True)
class Floor:
    """The least peak that any choice can reach, and in words what holds it."""

    num_bytes: int
    cause: str


@dataclass(frozen=True)
class Frontier:
    """What is compared: ``series`` (the first one is ours, the others are peers) against a ``baseline``.

    ``current`` is the policy at hand. ``infeasible_bytes`` are the targets that cannot be reached. ``capacity_bytes``
    is the memory of the device. ``subject`` says what was run, where, and whether it was measured or predicted.
    """

    series: tuple[FrontierSeries, ...]
    baseline: FrontierPoint | None = None
    current: FrontierPoint | None = None
    infeasible_bytes: tuple[int, ...] = ()
    floor: Floor | None = None
    capacity_bytes: int | None = None
    subject: str = ""

    def points(self) -> Iterator[FrontierPoint]:
        """Yield every point, of all series, the baseline and the current policy."""
        for series in self.series:
            yield from series.points
        yield from (point for point in (self.baseline, self.current) if point is not None)

    @property
    def slowest_shown_ms(self) -> float:
        """The step time up to which points are drawn to scale: all of ours, and peers that are not far slower."""
        fastest = min((point.step_ms for point in self.points()), default=0.0)
        ours = [point.step_ms for point in (self.series[0].points if self.series else ())]
        ours += [point.step_ms for point in (self.baseline, self.current) if point is not None]
        return max([OFF_SCALE * fastest, *ours])


def draw_frontier(frontier: Frontier) -> Figure:
    """Draw peak device memory against step time; on the right the time relative to the baseline.

    Raises RefusedError (CLI620) without matplotlib.
    """
    known = [point.peak_bytes for point in frontier.points()] + list(frontier.infeasible_bytes)
    known += [frontier.floor.num_bytes] if frontier.floor else []
    unit = memory_unit(max(known, default=0))
    with drawing():
        figure = new_figure(9.6, 5.8)
        axes = figure.add_subplot()
        set_titles(axes, _finding(frontier, unit), frontier.subject)
        axes.set_xlabel(f"peak device memory ({unit.name}); less is better")
        axes.set_ylabel("step time (ms); less is better")
        if known:
            _set_limits(axes, frontier, unit, known)
            _draw_points(axes, frontier, unit)
            _draw_bounds(axes, frontier, unit)
            _draw_off_scale(axes, frontier, unit)
            _add_relative_axis(axes, frontier)
            if axes.get_legend_handles_labels()[0]:
                figure.legend(loc="outside lower center", ncols=3)
            place_labels(axes, list(_labels(frontier, unit)))
        else:
            axes.text(0.5, 0.5, "no points to show", transform=axes.transAxes, ha="center", color=MUTED)
    return figure


def _finding(frontier: Frontier, unit: MemoryUnit) -> str:
    baseline = frontier.baseline
    ours = frontier.series[0].points if frontier.series else ()
    best = frontier.current or min(ours, key=lambda point: (point.peak_bytes, point.step_ms), default=None)
    if best is None:
        return "No target can be reached" if frontier.infeasible_bytes else "Nothing to compare"
    name = (best.label or "this policy") if best is frontier.current else frontier.series[0].name
    if baseline is None:
        return f"{name}: a peak of {unit.text(best.peak_bytes)} and {format_ms(best.step_ms)} a step"
    time = f"the step takes {best.step_ms / baseline.step_ms:.3f} of the time"
    before, after = unit.number(baseline.peak_bytes), unit.number(best.peak_bytes)
    if before == after:
        return f"{name}: the peak stays at {after} {unit.name}; {time}"
    verb = "falls" if best.peak_bytes < baseline.peak_bytes else "rises"
    return f"{name}: the peak {verb} from {before} to {after} {unit.name}; {time}"


def _set_limits(axes: Axes, frontier: Frontier, unit: MemoryUnit, known: list[int]) -> None:
    """Leave room: on the left for the words about the floor, above for peers off the scale, below for labels."""
    low, high = unit.scale(min(known)), unit.scale(max(known))
    if frontier.capacity_bytes is not None and frontier.capacity_bytes < 1.15 * max(known):
        high = max(high, unit.scale(frontier.capacity_bytes))
    span = max(high - low, 0.08 * high)
    spare = (span - (high - low)) / 2
    left, right = low - 0.06 * span - spare, high + 0.1 * span + spare
    if frontier.floor is not None:
        floor = unit.scale(frontier.floor.num_bytes)
        left = min(left, (floor - FLOOR_SHARE * right) / (1 - FLOOR_SHARE))
    axes.set_xlim(left, right)
    times = [point.step_ms for point in frontier.points()]
    if times:
        fast = min(times)
        slow = max(time for time in times if time <= frontier.slowest_shown_ms)
        span = max(slow - fast, 0.03 * fast)
        axes.set_ylim(fast - 0.25 * span, slow + 0.25 * span)
    else:
        axes.set_yticks([])


def _draw_bounds(axes: Axes, frontier: Frontier, unit: MemoryUnit) -> None:
    left, right = axes.get_xlim()
    upwards = axes.get_xaxis_transform()
    if frontier.floor is not None:
        floor = unit.scale(frontier.floor.num_bytes)
        axes.axvspan(left, floor, color=FAINT, alpha=0.6, linewidth=0, zorder=0)
        axes.axvline(floor, color=MUTED, linewidth=1.4, gid="floor")
        words = f"floor: {unit.text(frontier.floor.num_bytes)}"
        said: dict[str, Any] = {"transform": upwards, "va": "top", "ha": "left", "color": INK}
        start = left + 0.012 * (right - left)
        axes.text(start, 0.97, words, fontweight="bold", **said)
        axes.text(start, 0.915, textwrap.fill(frontier.floor.cause, FLOOR_CHARACTERS), fontsize=8.5, **said)
    if frontier.capacity_bytes is not None and unit.scale(frontier.capacity_bytes) < right:
        capacity = unit.scale(frontier.capacity_bytes)
        words = f"device memory, {unit.text(frontier.capacity_bytes)}: beyond it nothing fits"
        axes.axvspan(
            capacity, right, facecolor="none", edgecolor=WARNING, alpha=0.35, hatch="//", linewidth=0
        )
        axes.axvline(capacity, color=WARNING, linestyle="--", label=words)
    if frontier.infeasible_bytes:
        axes.plot(
            [unit.scale(target) for target in frontier.infeasible_bytes],
            [0.04] * len(frontier.infeasible_bytes),
            transform=upwards,
            linestyle="none",
            marker="x",
            markersize=8,
            markeredgewidth=2,
            color=WARNING,
            label="target that cannot be reached",
        )


def _draw_points(axes: Axes, frontier: Frontier, unit: MemoryUnit) -> None:
    """Draw ours, the policy, the baseline, then the peers: the order of the legend."""
    for index, series in enumerate(frontier.series[:1]):
        _draw_series(axes, series, index, frontier.slowest_shown_ms, unit)
    for point, marker, size, colour, zorder, name in (
        (frontier.current, "*", 19, AFTER, 7, "this policy"),
        (frontier.baseline, "s", 10, INK, 6, "baseline"),
    ):
        if point is not None:
            axes.plot(
                unit.scale(point.peak_bytes),
                point.step_ms,
                marker,
                markersize=size,
                color=colour,
                markeredgecolor="white",
                zorder=zorder,
                label=name,
            )
    for index, series in enumerate(frontier.series[1:], start=1):
        _draw_series(axes, series, index, frontier.slowest_shown_ms, unit)


def _draw_series(axes: Axes, series: FrontierSeries, index: int, slowest_ms: float, unit: MemoryUnit) -> None:
    ours = index == 0
    shown = sorted((p for p in series.points if p.step_ms <= slowest_ms), key=lambda point: point.peak_bytes)
    axes.plot(
        [unit.scale(point.peak_bytes) for point in shown],
        [point.step_ms for point in shown],
        color=_colour(index),
        linewidth=2.4 if ours else 1.3,
        linestyle="-" if ours else (0, (5, 2)),
        marker=_marker(index),
        markersize=6.5,
        zorder=4 if ours else 3,
        label=series.name,
    )


def _colour(index: int) -> str:
    return AFTER if index == 0 else RIVALS[(index - 1) % len(RIVALS)]


def _marker(index: int) -> str:
    return "o" if index == 0 else MARKERS[(index - 1) % len(MARKERS)]


def _draw_off_scale(axes: Axes, frontier: Frontier, unit: MemoryUnit) -> None:
    """Put peers that are far too slow for the scale at the upper edge, the time beside them, one below the other."""
    left, right = axes.get_xlim()
    taken: list[tuple[float, int]] = []
    slow = [
        (point, series.name, index)
        for index, series in enumerate(frontier.series)
        for point in series.points
        if point.step_ms > frontier.slowest_shown_ms
    ]
    for point, name, index in sorted(slow, key=lambda entry: -entry[0].step_ms):
        at = (unit.scale(point.peak_bytes) - left) / (right - left)
        row = next(
            row for row in range(len(slow)) if all(r != row or abs(x - at) > EDGE_REACH for x, r in taken)
        )
        taken.append((at, row))
        place = (at, EDGE_HEIGHT - EDGE_ROW * row)
        axes.plot(*place, _marker(index), transform=axes.transAxes, color=_colour(index), markersize=6.5)
        words = f"↑ {name} {point.label}".rstrip()
        axes.annotate(
            f"{words}: {format_ms(point.step_ms)}",
            place,
            xycoords="axes fraction",
            xytext=(8 if at < 0.6 else -8, 0),
            textcoords="offset points",
            ha="left" if at < 0.6 else "right",
            va="center",
            fontsize=8.5,
            color=text_colour(_colour(index)),
        )


def _add_relative_axis(axes: Axes, frontier: Frontier) -> None:
    if frontier.baseline is None or not frontier.baseline.step_ms:
        return
    whole_ms = frontier.baseline.step_ms

    def relative_to(step_ms: Any) -> Any:
        return step_ms / whole_ms

    def milliseconds(relative: Any) -> Any:
        return relative * whole_ms

    axes.axhline(whole_ms, color=INK, linewidth=0.8, linestyle=":", zorder=1, gid=GUIDE)
    relative = axes.secondary_yaxis("right", functions=(relative_to, milliseconds))
    relative.set_ylabel("relative to the baseline (×)")


def _labels(frontier: Frontier, unit: MemoryUnit) -> Iterator[PointLabel]:
    """Yield what stands beside points: the policy and the baseline first, then the points that have a label."""
    for named, colour in ((frontier.current, AFTER), (frontier.baseline, INK)):
        if named is not None:
            words = f"{named.label}\n{unit.text(named.peak_bytes)}, {format_ms(named.step_ms)}".strip()
            yield PointLabel(
                unit.scale(named.peak_bytes), named.step_ms, words, colour, bold=True, optional=False
            )
    for index, series in enumerate(frontier.series):
        for point in series.points:
            if point.label and point.step_ms <= frontier.slowest_shown_ms:
                yield PointLabel(
                    unit.scale(point.peak_bytes), point.step_ms, point.label, text_colour(_colour(index))
                )
