"""One step on three lanes: what computes, what is copied to the host and back, and where compute stands still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from offload_runtime.reporting.plots.lanes import (
    Bar,
    Stall,
    compute_bars,
    copy_bars,
    find_stalls,
    numbered_bars,
)
from offload_runtime.reporting.plots.quantities import format_ms, memory_unit, shorten
from offload_runtime.reporting.plots.style import (
    COMPUTE,
    D2H,
    H2D,
    INK,
    MUTED,
    OUTSIDE,
    WARNING,
    drawing,
    new_figure,
    set_titles,
)
from offload_runtime.step import Simulation, StepTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_timeline"]

WIDTH_INCHES = 14.0
LANES_INCHES = 11.6  # what the names of the lanes leave of it
DIGIT_INCHES = 0.075
BAR = 0.6  # the height of a bar; lanes are 1 apart
COMPUTE_AT, D2H_AT, H2D_AT = 2.0, 1.0, 0.0
DESCRIBED_SHARE = 0.002  # of the step: shorter stalls are drawn, and not described
NUM_DESCRIBED = 3
EDGED_SHARE = 0.003  # of the step: shorter bars have no white edge
ROW = 0.36  # the height of a line of text above the lanes
NAME_CHARACTERS = 40


def draw_timeline(trace: StepTrace, simulation: Simulation, *, subject: str = "") -> Figure:
    """Draw compute, D2H and H2D over time: one bar for each run of kernels of a layer, one for each copy.

    ValueError where the simulation is of other kernels. Raises RefusedError (CLI620) without matplotlib.
    """
    if len(simulation.starts_ms) != len(trace.kernels):
        raise ValueError(f"{len(trace.kernels)} kernels, but {len(simulation.starts_ms)} simulated")
    stalls = find_stalls(simulation)
    with drawing():
        figure = new_figure(WIDTH_INCHES, 4.8)
        axes = figure.add_subplot()
        set_titles(axes, _finding(simulation, stalls), subject)
        axes.set_xlabel("time in the step (ms); the small numbers are layers")
        axes.set_xlim(0, max([simulation.step_ms, *(copy.end_ms for copy in simulation.copies)]) or 1)
        num_rows = len(_described(stalls, simulation.step_ms))
        axes.set_ylim(H2D_AT - 0.75, COMPUTE_AT + BAR / 2 + ROW * (num_rows + 1.5))
        axes.set_yticks([COMPUTE_AT, D2H_AT, H2D_AT], list(_lane_names(trace, simulation)))
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
        _draw_compute(axes, compute_bars(trace, simulation))
        _draw_copies(axes, copy_bars(trace, simulation, "d2h"), D2H_AT, D2H, "copy to the host (D2H)")
        _draw_copies(axes, copy_bars(trace, simulation, "h2d"), H2D_AT, H2D, "copy back to the device (H2D)")
        _draw_stalls(axes, stalls, simulation.step_ms)
        _draw_boundary(axes, trace, simulation)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=5)
    return figure


def _finding(simulation: Simulation, stalls: Sequence[Stall]) -> str:
    step = format_ms(simulation.step_ms)
    if not simulation.ends_ms:
        return "The step is empty"
    if not simulation.copies:
        return f"Nothing is copied: the step computes for {step}"
    if not stalls:
        return f"All {len(simulation.copies)} copies hide behind compute: no stall in a step of {step}"
    stall_ms = sum(stall.duration_ms for stall in stalls)
    share = 100 * stall_ms / simulation.step_ms
    why = ", waiting for copies" if any(stall.copy for stall in stalls) else ""
    return f"Compute stands still for {format_ms(stall_ms)} of {step} ({share:.1f} %){why}"


def _lane_names(trace: StepTrace, simulation: Simulation) -> Iterator[str]:
    yield f"compute\n{len(trace.kernels):,} kernels"
    for direction, name in (("d2h", "device → host"), ("h2d", "host → device")):
        copies = [copy for copy in simulation.copies if copy.direction == direction]
        num_bytes = sum(copy.num_bytes for copy in copies)
        busy_ms = sum(copy.end_ms - copy.start_ms for copy in copies)
        if not copies:
            yield f"{name}\nnot used"
            continue
        number = "1 copy" if len(copies) == 1 else f"{len(copies):,} copies"
        rate = f"\n{num_bytes / busy_ms / 1e6:.1f} GB/s while busy" if busy_ms else ""
        yield f"{name}\n{memory_unit(num_bytes).text(num_bytes)} in {number}{rate}"


def _draw_compute(axes: Axes, bars: Sequence[Bar]) -> None:
    for name, chosen, colours in (
        ("compute in a layer (shades alternate)", [bar for bar in bars if bar.layer is not None], COMPUTE),
        ("compute outside the layers", [bar for bar in bars if bar.layer is None], (OUTSIDE, OUTSIDE)),
    ):
        _draw_bars(axes, chosen, COMPUTE_AT, [colours[(bar.layer or 0) % 2] for bar in chosen], name)
    _number_layers(axes, bars, COMPUTE_AT)


def _draw_copies(axes: Axes, bars: Sequence[Bar], at: float, colour: str, name: str) -> None:
    _draw_bars(axes, bars, at, [colour] * len(bars), name)
    _number_layers(axes, bars, at)


def _draw_bars(axes: Axes, bars: Sequence[Bar], at: float, colours: Sequence[str], name: str) -> None:
    """Draw all bars of one kind as one collection; a white edge parts neighbours, unless it would hide a thin bar."""
    if bars:
        axes.broken_barh(
            [(bar.start_ms, bar.duration_ms) for bar in bars],
            (at - BAR / 2, BAR),
            facecolors=colours,
            edgecolors=[
                "white" if bar.duration_ms > EDGED_SHARE * axes.get_xlim()[1] else colour
                for bar, colour in zip(bars, colours, strict=True)
            ],
            linewidth=0.4,
            label=name,
        )


def _number_layers(axes: Axes, bars: Sequence[Bar], at: float) -> None:
    ms_per_digit = axes.get_xlim()[1] / LANES_INCHES * DIGIT_INCHES
    for bar in numbered_bars(bars, ms_per_digit):
        axes.text(
            bar.middle_ms,
            at - BAR / 2 - 0.05,
            str(bar.layer),
            ha="center",
            va="top",
            fontsize=7.5,
            color=MUTED,
        )


def _draw_stalls(axes: Axes, stalls: Sequence[Stall], step_ms: float) -> None:
    """Fill the gaps in the warning colour, and say of the longest ones how long they are and what is waited for."""
    if not stalls:
        return
    axes.broken_barh(
        [(stall.start_ms, stall.duration_ms) for stall in stalls],
        (COMPUTE_AT - BAR / 2, BAR),
        facecolor=WARNING,
        edgecolor=WARNING,
        linewidth=0.8,  # so that the shortest one can still be seen
        label="compute stands still",
        zorder=4,
    )
    described = _described(stalls, step_ms)
    for row, stall in enumerate(described):
        left = stall.start_ms > 0.6 * axes.get_xlim()[1]
        height = COMPUTE_AT + BAR / 2 + ROW * (0.6 + (row if left else len(described) - 1 - row))
        axes.annotate(
            f"{format_ms(stall.duration_ms)}{_waited_for(stall)}",
            ((stall.start_ms + stall.end_ms) / 2, COMPUTE_AT + BAR / 2),
            xytext=(-6 if left else 6, height),
            textcoords=("offset points", "data"),
            ha="right" if left else "left",
            va="center",
            fontsize=8.5,
            color=WARNING,
            bbox={"facecolor": "white", "linewidth": 0, "pad": 1},
            zorder=5,
            arrowprops={
                "arrowstyle": "-",
                "color": WARNING,
                "linewidth": 0.8,
                "relpos": (1 if left else 0, 0.5),
            },
        )


def _described(stalls: Sequence[Stall], step_ms: float) -> list[Stall]:
    """Return the longest few, in order of time."""
    long = [stall for stall in stalls if stall.duration_ms >= DESCRIBED_SHARE * step_ms]
    longest = sorted(long, key=lambda stall: -stall.duration_ms)[:NUM_DESCRIBED]
    return sorted(longest, key=lambda stall: stall.start_ms)


def _waited_for(stall: Stall) -> str:
    if stall.copy is None:
        return ""
    there = "on the host" if stall.copy.direction == "d2h" else "back on the device"
    return f" until {shorten(stall.copy.item, NAME_CHARACTERS)} is {there}"


def _draw_boundary(axes: Axes, trace: StepTrace, simulation: Simulation) -> None:
    if not 0 < trace.num_forward < len(trace.kernels):
        return
    start = simulation.starts_ms[trace.num_forward]
    axes.axvline(start, color=INK, linewidth=1, linestyle=(0, (4, 3)), gid="backward begins")
    said: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "va": "top",
        "fontsize": 10,
        "color": INK,
    }
    axes.text(start, 0.985, "forward ◂ ", ha="right", **said)
    axes.text(start, 0.985, " ▸ backward", ha="left", **said)
