"""Device and host memory over one step, before and after a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offload_runtime.reporting.plots.quantities import MemoryUnit, format_ms, memory_unit, shorten
from offload_runtime.reporting.plots.style import (
    AFTER,
    BEFORE,
    INK,
    MUTED,
    WARNING,
    drawing,
    new_figure,
    set_titles,
)
from offload_runtime.step import Kernel, Simulation, StepTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MemoryLimit", "draw_memory"]

NAME_CHARACTERS = 44
LIMIT_IN_SIGHT = 1.4  # times the peak; a higher limit would press the curves flat: it is told, not drawn
HEADROOM = 1.42  # above the curves the two peaks are described, one below the other
DESCRIBED_AT = (0.93, 0.8)
SAME_PLACE = 0.01  # of the step: boundaries closer than this are drawn as one


@dataclass(frozen=True)
class MemoryLimit:
    """A bound on device memory and its name, such as the memory of the device or the policy's target."""

    name: str
    num_bytes: int


@dataclass(frozen=True)
class _Run:
    """One of the two steps, as it is drawn."""

    name: str
    trace: StepTrace
    simulation: Simulation
    colour: str
    fill: str


def draw_memory(
    trace: StepTrace,
    before: Simulation,
    after: Simulation,
    *,
    before_trace: StepTrace | None = None,
    limits: Sequence[MemoryLimit] = (),
    subject: str = "",
) -> Figure:
    """Draw device memory over the step without and with the plan, each peak marked, and host memory below.

    ``after`` is of ``trace``, and ``before`` of ``before_trace``, by default the same: a plan that recomputes has
    other kernels. ValueError where a simulation is of other kernels than its trace. Raises RefusedError (CLI620)
    without matplotlib.
    """
    unit = memory_unit(max(before.peak_bytes, after.peak_bytes))
    runs = (
        _Run("before the plan", before_trace or trace, before, BEFORE, "#E4E6E8"),
        _Run("with the plan", trace, after, AFTER, "#CFE0EE"),
    )
    for run in runs:
        if len(run.simulation.starts_ms) != len(run.trace.kernels):
            raise ValueError(
                f"{len(run.trace.kernels)} kernels, but {len(run.simulation.starts_ms)} simulated"
            )
    with drawing():
        figure = new_figure(11, 6)
        device, host = figure.subplots(2, sharex=True, height_ratios=(4.6, 1))
        set_titles(device, _finding(before, after, unit), subject)
        device.set_ylabel(f"device memory ({unit.name})")
        host.set_xlabel("time in the step (ms)")
        if trace.kernels:
            _draw_device(device, trace, runs, limits, unit)
            num_entries = len(device.get_legend_handles_labels()[0])
            figure.legend(loc="outside lower center", ncols=num_entries if num_entries <= 4 else 3)
        else:
            device.text(
                0.5, 0.5, "the step has no kernels", transform=device.transAxes, ha="center", color=MUTED
            )
        _draw_host(host, runs)
    return figure


def _finding(before: Simulation, after: Simulation, unit: MemoryUnit) -> str:
    if not after.ends_ms:
        return "The step is empty"
    old, new = unit.number(before.peak_bytes), unit.number(after.peak_bytes)
    if old == new:
        peak = f"The peak stays at {new} {unit.name}"
    else:
        verb = "falls" if after.peak_bytes < before.peak_bytes else "rises"
        peak = f"The peak {verb} from {old} to {new} {unit.name}"
    if not before.step_ms:
        return peak
    return f"{peak}; the step takes {after.step_ms / before.step_ms:.3f} of the time"


def _draw_device(
    axes: Axes, trace: StepTrace, runs: tuple[_Run, _Run], limits: Sequence[MemoryLimit], unit: MemoryUnit
) -> None:
    top = max(run.simulation.peak_bytes for run in runs)
    near = [limit for limit in limits if limit.num_bytes <= LIMIT_IN_SIGHT * top]
    ceiling = unit.scale(max([top, *(limit.num_bytes for limit in near)]))
    axes.set_ylim(0, HEADROOM * ceiling or 1)
    axes.set_xlim(0, max(run.simulation.step_ms for run in runs) or 1)
    for run in runs:
        _draw_curve(axes, run, run.simulation.device_bytes, unit)
    if trace.resident_bytes:
        words = f"always there (parameters, inputs): {unit.text(trace.resident_bytes)}"
        axes.axhline(unit.scale(trace.resident_bytes), color=INK, linewidth=1, linestyle=":", label=words)
    for limit in near:
        words = f"{limit.name}: {unit.text(limit.num_bytes)}"
        axes.axhline(unit.scale(limit.num_bytes), color=WARNING, linewidth=1.6, linestyle="--", label=words)
    for limit in (limit for limit in limits if limit not in near):
        axes.plot(
            [], linestyle="none", label=f"{limit.name}: {_own_unit(limit.num_bytes)}, far above this picture"
        )
    _draw_boundaries(axes, runs)
    _mark_peaks(axes, runs, unit)


def _own_unit(num_bytes: int) -> str:
    return memory_unit(num_bytes).text(num_bytes)


def _draw_curve(axes: Axes, run: _Run, curve: Sequence[int], unit: MemoryUnit) -> None:
    """Draw a staircase: each kernel's memory holds until the next kernel starts, and the last one's until the end."""
    times: list[float] = []
    heights: list[float] = []
    for start_ms, num_bytes in zip(run.simulation.starts_ms, curve, strict=True):
        if not heights or heights[-1] != unit.scale(num_bytes):
            times.append(start_ms)
            heights.append(unit.scale(num_bytes))
    times.append(run.simulation.step_ms)
    heights.append(heights[-1])
    axes.fill_between(times, heights, step="post", color=run.fill, linewidth=0)
    axes.plot(times, heights, drawstyle="steps-post", color=run.colour, linewidth=1.7, label=run.name)


def _draw_boundaries(axes: Axes, runs: tuple[_Run, _Run]) -> None:
    """Mark where backward begins: once, or for each run where the two are apart."""
    if any(not 0 < run.trace.num_forward < len(run.trace.kernels) for run in runs):
        return
    starts = [run.simulation.starts_ms[run.trace.num_forward] for run in runs]
    together = abs(starts[0] - starts[1]) <= SAME_PLACE * max(run.simulation.step_ms for run in runs)
    for run, start in list(zip(runs, starts, strict=True))[1 if together else 0 :]:
        axes.axvline(start, color=INK if together else run.colour, linewidth=1, gid="backward begins")
    said: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "va": "bottom",
        "fontsize": 9.5,
        "color": MUTED,
    }
    axes.text(min(starts), 0.012, "forward ◂ ", ha="right", **said)
    axes.text(max(starts), 0.012, " ▸ backward", ha="left", **said)


def _mark_peaks(axes: Axes, runs: tuple[_Run, _Run], unit: MemoryUnit) -> None:
    """Put a dot on each peak, and describe both above the curves, so that no description stands on a leader line."""
    end, top = axes.get_xlim()[1], axes.get_ylim()[1]
    before_ms, after_ms = (_peak_ms(run.simulation) for run in runs)
    swapped = (before_ms > after_ms) == (before_ms < end / 2)
    for run, height in zip(runs, reversed(DESCRIBED_AT) if swapped else DESCRIBED_AT, strict=True):
        simulation = run.simulation
        peak = (_peak_ms(simulation), unit.scale(simulation.peak_bytes))
        rightwards = peak[0] < end / 2
        axes.plot(*peak, "o", color=run.colour, ms=8, markeredgecolor="white", zorder=6, clip_on=False)
        axes.annotate(
            f"peak {run.name}: {unit.text(simulation.peak_bytes)} at {format_ms(peak[0])}\n"
            f"{_place(run.trace.kernels[simulation.peak_at])}",
            peak,
            xytext=(14 if rightwards else -14, height * top),
            textcoords=("offset points", "data"),
            ha="left" if rightwards else "right",
            va="center",
            fontsize=9,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": run.colour},
            arrowprops={"arrowstyle": "-", "color": run.colour, "relpos": (0 if rightwards else 1, 0.5)},
            zorder=7,
        )


def _peak_ms(simulation: Simulation) -> float:
    """Return the middle of the kernel at which memory peaks."""
    return (simulation.starts_ms[simulation.peak_at] + simulation.ends_ms[simulation.peak_at]) / 2


def _place(kernel: Kernel) -> str:
    where = "outside the layers" if kernel.layer is None else f"layer {kernel.layer}"
    return f"in {shorten(kernel.name, NAME_CHARACTERS)} ({where})"


def _draw_host(axes: Axes, runs: tuple[_Run, _Run]) -> None:
    most = max(max(run.simulation.host_bytes, default=0) for run in runs)
    unit = memory_unit(most)
    axes.set_ylabel(f"host memory\n({unit.name})")
    axes.set_ylim(0, 1.15 * unit.scale(most) or 1)
    if not most:
        axes.set_yticks([0])
        centred: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, "nothing is held on the host", color=MUTED, **centred)
        return
    for run in runs:
        if any(run.simulation.host_bytes):
            _draw_curve(axes, run, run.simulation.host_bytes, unit)
            axes.get_lines()[-1].set_label("_nolegend_")
