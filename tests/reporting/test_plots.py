"""What the pictures show: coordinates, words and numbers of artists, not merely that there is a file."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from offload_runtime.codes import CODES
from offload_runtime.errors import RefusedError, UsageError
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
    style,
    write_figure,
)
from offload_runtime.reporting.plots.lanes import Bar, find_stalls, numbered_bars
from offload_runtime.reporting.plots.quantities import format_ms, memory_unit, shorten
from offload_runtime.step import Copy, Item, Kernel, Simulation, StepTrace

pytest.importorskip("matplotlib")

GIB = 1024**3
MIB = 1024**2

# ---------------------------------------------------------------------------------------- steps to draw


def step(num_layers: int, kernels_per_layer: int = 3, kernel_ms: float = 1.0) -> StepTrace:
    """Build a step: forward through the layers, a loss outside of them, the layers backward; one item a layer."""
    forward = [
        Kernel(f"mm_{k}", kernel_ms, layer) for layer in range(num_layers) for k in range(kernels_per_layer)
    ]
    loss = [Kernel("log_softmax", kernel_ms), Kernel("log_softmax_backward", kernel_ms)]
    backward = [Kernel(f"{kernel.name}_backward", kernel_ms, kernel.layer) for kernel in reversed(forward)]
    num_kernels = 2 * len(forward) + 2
    items = tuple(
        Item(
            name=f"layers.{layer}.w1",
            num_bytes=GIB,
            moved_bytes=GIB,
            created=layer * kernels_per_layer,
            ready=layer * kernels_per_layer,
            last_forward_use=layer * kernels_per_layer,
            first_backward_use=num_kernels - 1 - layer * kernels_per_layer,
            last_backward_use=num_kernels - 1 - layer * kernels_per_layer,
            fates=frozenset({"save", "offload"}),
        )
        for layer in range(num_layers)
    )
    return StepTrace((*forward, *loss, *backward), len(forward) + 1, 2 * GIB, (), items)


def simulation(
    trace: StepTrace,
    stalls_ms: dict[int, float] | None = None,
    copies: tuple[Copy, ...] = (),
    device_bytes: tuple[int, ...] | None = None,
    host_bytes: tuple[int, ...] | None = None,
) -> Simulation:
    """Run the kernels one after the other, standing still before some; memory rises to the loss and falls again."""
    starts, ends, now = [], [], 0.0
    for index, kernel in enumerate(trace.kernels):
        now += (stalls_ms or {}).get(index, 0.0)
        starts.append(now)
        now += kernel.duration_ms
        ends.append(now)
    num = len(trace.kernels)
    curve = tuple((2 + min(i, num - 1 - i)) * GIB for i in range(num))
    return Simulation(tuple(starts), tuple(ends), copies, device_bytes or curve, host_bytes or (0,) * num)


def texts(figure) -> list[str]:
    """Return every text of the figure's axes on one line each."""
    return [
        text.get_text().replace("\n", " ") for axes in figure.axes for text in axes.texts if text.get_text()
    ]


def title(figure) -> str:
    return figure.axes[0].get_title(loc="left").replace("\n", " ")


def line(axes, label: str):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def points(drawn) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)]


def of_gid(axes, gid: str) -> list[float]:
    """Return where the upright lines with this gid stand."""
    return [float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_gid() == gid]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


# -------------------------------------------------------------------------------------------- frontier

BASELINE = FrontierPoint(55 * GIB, 700.0, "torch.compile")
POLICY = FrontierPoint(43 * GIB, 707.0, "dense-balanced")
PLANNED = FrontierSeries(
    "planned",
    (FrontierPoint(43 * GIB, 707.0), FrontierPoint(36 * GIB, 721.0), FrontierPoint(32 * GIB, 742.0)),
)
PEER = FrontierSeries(
    "activation_memory_budget",
    (FrontierPoint(40 * GIB, 738.0, "0.6"), FrontierPoint(34 * GIB, 818.0, "0.3")),
)
FRONTIER = Frontier(
    (PLANNED, PEER),
    BASELINE,
    POLICY,
    infeasible_bytes=(28 * GIB, 30 * GIB),
    floor=Floor(32 * GIB, "the loss holds its logits three times in float32"),
    subject="Llama-3-8B, predicted for h200-pcie5",
)


def test_the_frontier_names_quantities_and_units_on_all_axes() -> None:
    (axes,) = draw_frontier(FRONTIER).axes
    assert axes.get_xlabel() == "peak device memory (GiB); less is better"
    assert axes.get_ylabel() == "step time (ms); less is better"
    assert [child.get_ylabel() for child in axes.child_axes] == ["relative to the baseline (×)"]


def test_each_series_goes_through_its_points_by_memory() -> None:
    (axes,) = draw_frontier(FRONTIER).axes
    assert points(line(axes, "planned")) == [(32, 742), (36, 721), (43, 707)]
    assert points(line(axes, "activation_memory_budget")) == [(34, 818), (40, 738)]


def test_policy_baseline_and_targets_out_of_reach_are_marked_where_they_are() -> None:
    figure = draw_frontier(FRONTIER)
    (axes,) = figure.axes
    assert points(line(axes, "this policy")) == [(43, 707)]
    assert points(line(axes, "baseline")) == [(55, 700)]
    assert [x for x, _ in points(line(axes, "target that cannot be reached"))] == [28, 30]
    assert "dense-balanced 43.0 GiB, 707 ms" in texts(figure)
    assert "torch.compile 55.0 GiB, 700 ms" in texts(figure)


def test_the_floor_is_a_line_whose_cause_is_written_beside_it() -> None:
    figure = draw_frontier(FRONTIER)
    assert of_gid(figure.axes[0], "floor") == [32]
    assert "floor: 32.0 GiB" in texts(figure)
    assert "the loss holds its logits three times in float32" in texts(figure)


def test_the_right_axis_is_the_step_time_over_the_baselines() -> None:
    figure = draw_frontier(FRONTIER)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert axes.child_axes[0].get_ylim() == pytest.approx((low / 700, high / 700))


def test_without_a_baseline_there_is_no_relative_axis() -> None:
    figure = draw_frontier(replace(FRONTIER, baseline=None))
    assert figure.axes[0].child_axes == []
    assert title(figure) == "dense-balanced: a peak of 43.0 GiB and 707 ms a step"


@pytest.mark.parametrize(
    ("frontier", "finding"),
    [
        (FRONTIER, "dense-balanced: the peak falls from 55.0 to 43.0 GiB; the step takes 1.010 of the time"),
        (
            replace(FRONTIER, current=None),
            "planned: the peak falls from 55.0 to 32.0 GiB; the step takes 1.060 of the time",
        ),
        (
            replace(FRONTIER, current=FrontierPoint(55 * GIB, 700.0)),
            "this policy: the peak stays at 55.0 GiB; the step takes 1.000 of the time",
        ),
        (
            replace(FRONTIER, current=FrontierPoint(60 * GIB, 700.0, "idle")),
            "idle: the peak rises from 55.0 to 60.0 GiB; the step takes 1.000 of the time",
        ),
        (Frontier((), infeasible_bytes=(GIB,)), "No target can be reached"),
        (Frontier((FrontierSeries("planned", ()),)), "Nothing to compare"),
    ],
)
def test_the_title_of_the_frontier_states_what_was_found(frontier: Frontier, finding: str) -> None:
    assert title(draw_frontier(frontier)) == finding


def test_a_peer_that_is_far_slower_is_told_at_the_edge_instead_of_pressing_the_others_flat() -> None:
    slow = FrontierSeries("save_on_cpu", (FrontierPoint(32 * GIB, 3723.0),))
    slower = FrontierSeries("paged", (FrontierPoint(33 * GIB, 9000.0, "2 streams"),))
    figure = draw_frontier(replace(FRONTIER, series=(PLANNED, PEER, slow, slower)))
    (axes,) = figure.axes
    assert axes.get_ylim()[1] < 900
    assert points(line(axes, "save_on_cpu")) == []
    assert "↑ save_on_cpu: 3,723 ms" in texts(figure)
    assert "↑ paged 2 streams: 9,000 ms" in texts(figure)
    notes = [text for text in axes.texts if text.get_text().startswith("↑")]
    assert len({note.xy[1] for note in notes}) == 2, "one below the other"


def test_all_of_ours_is_drawn_to_scale_however_slow() -> None:
    ours = FrontierSeries("planned", (FrontierPoint(20 * GIB, 2000.0), FrontierPoint(50 * GIB, 700.0)))
    (axes,) = draw_frontier(replace(FRONTIER, series=(ours,))).axes
    assert axes.get_ylim()[0] < 700 < 2000 < axes.get_ylim()[1]
    assert len(points(line(axes, "planned"))) == 2


def test_device_memory_is_drawn_where_it_is_near_and_left_out_where_it_is_far() -> None:
    near, far = (draw_frontier(replace(FRONTIER, capacity_bytes=size * GIB)) for size in (50, 131))
    assert "device memory, 50.0 GiB: beyond it nothing fits" in legend(near)
    assert not [name for name in legend(far) if "device memory" in name]
    assert far.axes[0].get_xlim()[1] < 70


def test_labels_in_a_crowd_cover_neither_each_other_nor_a_point() -> None:
    crowd = FrontierSeries(
        "planned", tuple(FrontierPoint(int((40 + i / 3) * GIB), 800 - 4.0 * i, f"{i} GiB") for i in range(30))
    )
    figure = draw_frontier(replace(FRONTIER, series=(crowd, PEER)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    from matplotlib.text import Text

    labels = [text for text in axes.texts if text.get_text().endswith("GiB") and len(text.get_text()) < 7]
    boxes = [Text.get_window_extent(label) for label in labels]
    assert len(boxes) > 10
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    pixels = axes.transData.transform(points(line(axes, "planned")))
    assert not [box for box in boxes for x, y in pixels if box.contains(x, y)]


def test_a_small_model_is_drawn_in_mebibytes() -> None:
    small = Frontier(
        (FrontierSeries("planned", (FrontierPoint(80 * MIB, 3.1),)),), FrontierPoint(120 * MIB, 2.8)
    )
    figure = draw_frontier(small)
    assert "(MiB)" in figure.axes[0].get_xlabel()
    assert points(line(figure.axes[0], "planned")) == [(80, 3.1)]


# ---------------------------------------------------------------------------------------------- memory


def test_both_curves_follow_the_bytes_of_the_kernels() -> None:
    trace = step(1, kernels_per_layer=1)
    before = simulation(trace, device_bytes=(2 * GIB, 5 * GIB, 5 * GIB, 3 * GIB))
    after = simulation(trace, stalls_ms={2: 0.5}, device_bytes=(2 * GIB, 4 * GIB, 3 * GIB, 3 * GIB))
    figure = draw_memory(trace, before, after)
    device, _ = figure.axes
    assert points(line(device, "before the plan")) == [(0, 2), (1, 5), (3, 3), (4, 3)]
    assert points(line(device, "with the plan")) == [(0, 2), (1, 4), (2.5, 3), (4.5, 3)]
    assert {curve.get_drawstyle() for curve in device.get_lines()[:2]} == {"steps-post"}


def test_each_peak_has_a_dot_and_says_in_which_kernel_and_layer_it_is() -> None:
    trace = step(2)
    before = simulation(trace)
    after = simulation(trace, device_bytes=tuple(9 * GIB if i == 10 else 3 * GIB for i in range(14)))
    figure = draw_memory(trace, before, after)
    dots = [points(line)[0] for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    assert dots == [(6.5, 8), (10.5, 9)]
    assert "peak before the plan: 8.00 GiB at 6.50 ms in log_softmax (outside the layers)" in texts(figure)
    assert "peak with the plan: 9.00 GiB at 10.5 ms in mm_0_backward (layer 1)" in texts(figure)


def test_memory_names_units_and_what_is_always_there() -> None:
    trace = step(2)
    figure = draw_memory(trace, simulation(trace), simulation(trace), subject="Llama")
    device, host = figure.axes
    assert device.get_ylabel() == "device memory (GiB)"
    assert host.get_ylabel() == "host memory\n(GiB)"
    assert host.get_xlabel() == "time in the step (ms)"
    assert points(line(device, "always there (parameters, inputs): 2.00 GiB"))[0][1] == 2
    assert "Llama" in texts(figure)


@pytest.mark.parametrize(("stall_ms", "expected"), [(0.0, [7.0]), (5.0, [7.0, 12.0])])
def test_the_start_of_backward_is_drawn_once_unless_the_two_are_apart(
    stall_ms: float, expected: list[float]
) -> None:
    trace = step(2)
    figure = draw_memory(trace, simulation(trace), simulation(trace, stalls_ms={3: stall_ms}))
    assert of_gid(figure.axes[0], "backward begins") == expected
    assert "forward ◂ " in texts(figure)


def test_a_limit_in_sight_is_a_line_and_one_far_above_is_told() -> None:
    trace = step(2)
    limits = [MemoryLimit("target", 9 * GIB), MemoryLimit("device memory", 80 * GIB)]
    figure = draw_memory(trace, simulation(trace), simulation(trace), limits=limits)
    device = figure.axes[0]
    assert points(line(device, "target: 9.00 GiB"))[0][1] == 9
    assert "device memory: 80.0 GiB, far above this picture" in legend(figure)
    assert device.get_ylim()[1] < 20


def test_host_memory_has_a_panel_of_its_own() -> None:
    trace = step(2)
    after = simulation(trace, host_bytes=tuple((512 if 3 <= i < 9 else 0) * MIB for i in range(14)))
    figure = draw_memory(trace, simulation(trace), after)
    (curve,) = figure.axes[1].get_lines()
    assert figure.axes[1].get_ylabel() == "host memory\n(MiB)"
    assert points(curve) == [(0, 0), (3, 512), (9, 0), (14, 0)]
    assert legend(figure).count("with the plan") == 1
    unused = draw_memory(trace, simulation(trace), simulation(trace))
    assert "nothing is held on the host" in texts(unused)


def test_the_title_compares_peaks_and_step_times() -> None:
    trace = step(2)
    after = simulation(trace, stalls_ms={3: 0.7}, device_bytes=(5 * GIB,) * 14)
    assert title(draw_memory(trace, simulation(trace), after)) == (
        "The peak falls from 8.00 to 5.00 GiB; the step takes 1.050 of the time"
    )


# -------------------------------------------------------------------------------------------- timeline


def copies_of(trace: StepTrace, direction, starts_ms: list[float], stall_ms: float = 0.0) -> tuple[Copy, ...]:
    return tuple(
        Copy(item.name, direction, item.moved_bytes, start, start + 0.9, stall_ms)
        for item, start in zip(trace.items, starts_ms, strict=False)
    )


def lane(axes, label: str) -> list[tuple[float, float]]:
    """Return start and end of each bar with this label, in ms."""
    (collection,) = [found for found in axes.collections if found.get_label() == label]
    extents = [path.get_extents() for path in collection.get_paths()]
    return [(float(extent.x0), float(extent.x1)) for extent in extents]


def test_kernels_of_a_layer_are_one_bar_in_each_direction() -> None:
    trace = step(32, kernels_per_layer=24)
    (axes,) = draw_timeline(trace, simulation(trace)).axes
    assert len(trace.kernels) == 1538
    bars = lane(axes, "compute in a layer (shades alternate)")
    assert len(bars) == 64
    assert bars[0] == (0, 24)
    assert bars[-1] == (1538 - 24, 1538)
    assert lane(axes, "compute outside the layers") == [(768, 769), (769, 770)]


def test_each_copy_is_a_bar_in_its_lane() -> None:
    trace = step(3)
    copies = copies_of(trace, "d2h", [1, 4, 7]) + copies_of(trace, "h2d", [18, 15, 12])
    figure = draw_timeline(trace, simulation(trace, copies=copies))
    (axes,) = figure.axes
    assert lane(axes, "copy to the host (D2H)") == [(1, 1.9), (4, 4.9), (7, 7.9)]
    assert lane(axes, "copy back to the device (H2D)") == [(12, 12.9), (15, 15.9), (18, 18.9)]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [
        "compute\n20 kernels",
        "device → host\n3.00 GiB in 3 copies\n1193.0 GB/s while busy",
        "host → device\n3.00 GiB in 3 copies\n1193.0 GB/s while busy",
    ]
    assert axes.get_xlabel() == "time in the step (ms); the small numbers are layers"
    assert title(figure) == "All 6 copies hide behind compute: no stall in a step of 20.0 ms"


def test_stalls_fill_the_gaps_and_the_longest_say_what_is_waited_for() -> None:
    trace = step(3)
    waited = Copy("layers.1.w1", "h2d", GIB, 10.0, 16.5, 2.5)
    figure = draw_timeline(trace, simulation(trace, stalls_ms={2: 0.5, 13: 3.0}, copies=(waited,)))
    (axes,) = figure.axes
    assert lane(axes, "compute stands still") == [(2, 2.5), (13.5, 16.5)]
    assert "3.00 ms until layers.1.w1 is back on the device" in texts(figure)
    assert "0.50 ms" in texts(figure), "no copy ends with this gap"
    assert title(figure) == "Compute stands still for 3.50 ms of 23.5 ms (14.9 %), waiting for copies"
    (stalls,) = [found for found in axes.collections if found.get_label() == "compute stands still"]
    from matplotlib.colors import to_rgba

    assert tuple(stalls.get_facecolor()[0]) == to_rgba(style.WARNING)


def test_of_many_stalls_three_are_described() -> None:
    trace = step(8)
    copies = copies_of(trace, "d2h", [1.0])
    stalls = {index: 0.1 * index for index in range(1, 9)}
    figure = draw_timeline(trace, simulation(trace, stalls_ms=stalls, copies=copies))
    assert [text for text in texts(figure) if text.endswith(" ms")] == ["0.60 ms", "0.70 ms", "0.80 ms"]
    assert len(lane(figure.axes[0], "compute stands still")) == 8


def test_backward_begins_at_its_first_kernel() -> None:
    trace = step(3)
    figure = draw_timeline(trace, simulation(trace, stalls_ms={10: 1.5}))
    assert of_gid(figure.axes[0], "backward begins") == [11.5]
    assert {"forward ◂ ", " ▸ backward"} <= set(texts(figure))


@pytest.mark.parametrize("num_layers", [1, 2, 4, 32, 80, 400])
def test_numbers_of_layers_do_not_touch_and_are_all_there_when_they_find_room(num_layers: int) -> None:
    trace = step(num_layers)
    figure = draw_timeline(trace, simulation(trace))
    figure.draw_without_rendering()
    numbers = [text for text in figure.axes[0].texts if text.get_text().isdigit()]
    boxes = [number.get_window_extent() for number in numbers]
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    if num_layers <= 4:
        ordered = [int(number.get_text()) for number in numbers]
        assert ordered == [*range(num_layers), *reversed(range(num_layers))]
    assert len(numbers) >= min(2 * num_layers, 20)


def test_a_layer_is_numbered_at_its_longest_bar() -> None:
    bars = [Bar(0, 1, 0), Bar(1, 9, 1), Bar(9, 10, 0), Bar(10, 30, 0)]
    assert numbered_bars(bars, ms_per_digit=0.1) == [Bar(1, 9, 1), Bar(9, 30, 0)]


def test_a_gap_of_rounding_is_no_stall() -> None:
    trace = step(1)
    assert find_stalls(simulation(trace, stalls_ms={2: 1e-9})) == []
    assert [stall.duration_ms for stall in find_stalls(simulation(trace, stalls_ms={0: 0.5}))] == [0.5]


# ----------------------------------------------------------------------------------------------- fates

SHARES = [
    *(FateShare(layer, "save", 100 * MIB) for layer in range(4)),
    *(FateShare(layer, "offload", 300 * MIB) for layer in range(3)),
    FateShare(0, "offload", 100 * MIB),
    FateShare(3, "recompute", 200 * MIB),
    FateShare(None, "save", 2 * GIB),
    FateShare(None, "skip", GIB),
]


def bars(axes, words: str, lying: bool = False) -> list[tuple[float, float]]:
    """Return where each bar of a fate begins and how long it is."""
    (container,) = [found for found in axes.containers if found.get_label() == words]
    return [
        (bar.get_x(), bar.get_width()) if lying else (bar.get_y(), bar.get_height())
        for bar in container.patches
    ]


def test_a_layer_stacks_what_stays_and_what_leaves() -> None:
    layers, _ = draw_fates(SHARES).axes
    assert bars(layers, "saved (stays on the device)") == [(0, 100)] * 4
    assert bars(layers, "recomputed in backward") == [(100, 0), (100, 0), (100, 0), (100, 200)]
    assert bars(layers, "offloaded to the host") == [(100, 400), (100, 300), (100, 300), (300, 0)]
    assert layers.get_ylabel() == "saved tensors per layer (MiB)"
    assert layers.get_xlabel() == "layer"


def test_what_is_outside_the_layers_has_a_bar_of_its_own_beside_the_sum_of_the_layers() -> None:
    figure = draw_fates(SHARES)
    sums = figure.axes[1]
    assert [label.get_text() for label in sums.get_yticklabels()] == ["all layers", "outside the layers"]
    assert bars(sums, "saved (stays on the device)", lying=True) == [(0, 400 / 1024), (0, 2)]
    assert bars(sums, "offloaded to the host", lying=True) == [(600 / 1024, 1000 / 1024), (2, 0)]
    assert bars(sums, "skipped (no activation: parameters, inputs)", lying=True)[1] == (2, 1)
    assert sums.get_xlabel() == "saved tensors in total (GiB)"
    assert legend(figure) == [
        "saved (stays on the device)",
        "recomputed in backward",
        "offloaded to the host",
        "skipped (no activation: parameters, inputs)",
    ]


@pytest.mark.parametrize(
    ("shares", "finding"),
    [
        (
            SHARES,
            "Of 3.56 GiB of activations, 0.98 leave for the host, 0.20 are recomputed and 2.39 stay on the device",
        ),
        ([FateShare(0, "save", GIB)], "All 1.00 GiB of activations stay on the device"),
        ([FateShare(None, "offload", GIB)], "All 1.00 GiB of activations leave for the host"),
        ([FateShare(0, "skip", GIB)], "No activation is saved for backward"),
        ([], "No activation is saved for backward"),
    ],
)
def test_the_title_of_the_fates_says_how_much_goes_where(shares: list[FateShare], finding: str) -> None:
    assert title(draw_fates(shares)) == finding


def test_layers_that_save_nothing_keep_their_place() -> None:
    layers, _ = draw_fates([FateShare(1, "save", MIB)], num_layers=5).axes
    assert bars(layers, "saved (stays on the device)") == [(0, 0), (0, 1), (0, 0), (0, 0), (0, 0)]
    assert [int(tick) for tick in layers.get_xticks()] == [0, 1, 2, 3, 4]


def test_eighty_layers_are_all_drawn_and_every_second_is_numbered() -> None:
    layers, _ = draw_fates([FateShare(layer, "offload", MIB) for layer in range(80)]).axes
    assert len(bars(layers, "offloaded to the host")) == 80
    assert [int(tick) for tick in layers.get_xticks()] == list(range(0, 80, 2))


# ------------------------------------------------------------------------------------- all of them

EMPTY = StepTrace((), 0, 0, ())
NOTHING = Simulation((), (), (), (), ())
ONE = StepTrace((Kernel("mm", 1.0, 0), Kernel("mm_backward", 2.0, 0)), 1, 0, ())
ONE_SIMULATED = Simulation((0.0, 1.0), (1.0, 3.0), (), (100, 300), (0, 0))
DRAWN = {
    "frontier": lambda: draw_frontier(FRONTIER),
    "memory": lambda: draw_memory(step(3), simulation(step(3)), simulation(step(3), stalls_ms={4: 1.0})),
    "timeline": lambda: draw_timeline(step(3), simulation(step(3), copies=copies_of(step(3), "d2h", [1.0]))),
    "fates": lambda: draw_fates(SHARES),
}
DEGENERATE = {
    "frontier of nothing": (lambda: draw_frontier(Frontier(())), "Nothing to compare"),
    "frontier of a floor": (lambda: draw_frontier(Frontier((), floor=Floor(GIB, "x"))), "Nothing to compare"),
    "frontier of one point": (
        lambda: draw_frontier(Frontier((), BASELINE, BASELINE)),
        "torch.compile: the peak stays at 55.0 GiB; the step takes 1.000 of the time",
    ),
    "memory of nothing": (lambda: draw_memory(EMPTY, NOTHING, NOTHING), "The step is empty"),
    "memory of one layer": (
        lambda: draw_memory(ONE, ONE_SIMULATED, ONE_SIMULATED),
        "The peak stays at 0.29 KiB; the step takes 1.000 of the time",
    ),
    "timeline of nothing": (lambda: draw_timeline(EMPTY, NOTHING), "The step is empty"),
    "timeline without copies": (
        lambda: draw_timeline(ONE, ONE_SIMULATED),
        "Nothing is copied: the step computes for 3.00 ms",
    ),
    "fates of nothing": (lambda: draw_fates([]), "No activation is saved for backward"),
}


@pytest.mark.parametrize(("draw", "finding"), DEGENERATE.values(), ids=DEGENERATE)
def test_a_step_with_little_or_nothing_in_it_is_drawn_all_the_same(
    draw, finding: str, tmp_path: Path
) -> None:
    figure = draw()
    assert title(figure) == finding
    write_figure(figure, tmp_path / "picture.png")


@pytest.mark.parametrize("draw", [draw_memory, draw_timeline])
def test_a_simulation_of_another_step_is_refused(draw) -> None:
    simulations = [simulation(step(2))] * (2 if draw is draw_memory else 1)
    with pytest.raises(ValueError, match="20 kernels, but 14 simulated"):
        draw(step(3), *simulations)


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_an_svg_is_the_same_bytes_each_time_and_bears_no_date(draw, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(draw(), tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in first
    assert b"dc:date" not in first
    assert title(draw()).encode() in first, "the finding is the document's title, for who cannot see it"


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_legend_covers_no_axes(draw) -> None:
    figure = draw()
    figure.draw_without_rendering()
    (box,) = [legend.get_window_extent() for legend in figure.legends]
    assert not [axes for axes in figure.axes if axes.get_tightbbox().overlaps(box)]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_no_title_runs_out_of_the_picture(draw) -> None:
    figure = draw()
    figure.draw_without_rendering()
    wanted = figure.axes[0].get_title(loc="left")
    (heading,) = [
        child for child in figure.axes[0].get_children() if getattr(child, "get_text", str)() == wanted
    ]
    assert heading.get_window_extent().x1 <= figure.bbox.x1


def test_a_png_is_written_by_its_suffix(tmp_path: Path) -> None:
    write_figure(draw_fates(SHARES), tmp_path / "fates.PNG")
    assert (tmp_path / "fates.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_settings_of_the_users_own_change_no_picture_and_are_kept(tmp_path: Path) -> None:
    import matplotlib

    write_figure(draw_fates(SHARES), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine", "axes.facecolor": "red"}):
        write_figure(draw_fates(SHARES), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("picture.jpg", "CLI621", "picture.jpg is no picture that can be written: pictures are .png or .svg"),
        ("picture", "CLI621", "picture is no picture"),
        ("no/such/folder/picture.svg", "CLI622", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(
    name: str, code: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        write_figure(draw_fates([]), tmp_path / name)
    assert [finding.code for finding in raised.value.diagnostics] == [code]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_without_matplotlib_the_extra_to_install_is_named(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RefusedError) as raised:
        draw()
    (finding,) = raised.value.diagnostics
    assert finding.code == "CLI620"
    assert finding.hint == "install the extra: pip install 'offload-runtime[plot]'"
    assert CODES["CLI620"].cure in finding.hint


def test_a_broken_installation_of_matplotlib_is_not_called_missing() -> None:
    code = """
import sys
from offload_runtime.reporting import plots
sys.modules["cycler"] = None
try:
    plots.draw_fates([])
except ModuleNotFoundError as error:
    assert error.name == "cycler"
else:
    raise SystemExit("drawn without cycler")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_matplotlib_is_imported_when_a_picture_is_drawn_and_pyplot_never() -> None:
    code = """
import sys
from offload_runtime.reporting import plots
assert not [name for name in sys.modules if name.startswith("matplotlib")]
plots.draw_fates([plots.FateShare(0, "save", 1)])
plots.draw_frontier(plots.Frontier((), plots.FrontierPoint(1, 1.0, "baseline")))
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --------------------------------------------------------------------------------- colours, quantities

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it looks without one kind of cone.
SEEN = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "trichromacy": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}
TOGETHER = {
    "fates": tuple(style.FATES.values()),
    "timeline": (style.COMPUTE[0], style.OUTSIDE, style.D2H, style.H2D, style.WARNING),
    "memory": (style.BEFORE, style.AFTER, style.WARNING),
    "frontier": (style.AFTER, style.INK, style.WARNING, *style.RIVALS),
}


def lab(colour: str, matrix) -> tuple[float, float, float]:
    """Return CIE L*a*b* of an sRGB colour seen through ``matrix``."""
    srgb = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in srgb]
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in matrix]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) for row in to_xyz]
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (part / white for part, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("picture", TOGETHER)
def test_colours_of_one_picture_are_told_apart_by_every_kind_of_sight(picture: str, sight: str) -> None:
    pairs = itertools.combinations(TOGETHER[picture], 2)
    distances = {
        (one, other): sum(
            (a - b) ** 2 for a, b in zip(lab(one, SEEN[sight]), lab(other, SEEN[sight]), strict=True)
        )
        ** 0.5
        for one, other in pairs
    }
    assert {pair: round(distance) for pair, distance in distances.items() if distance < 15} == {}


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.00 GiB"),
        (300, "0.29 KiB"),
        (1023 * 1024, "1,023.0 KiB"),
        (5 * MIB, "5.00 MiB"),
        (int(40.94 * GIB), "40.9 GiB"),
        (2000 * GIB, "2,000.0 GiB"),
    ],
)
def test_bytes_are_written_in_a_unit_that_can_be_read(num_bytes: int, text: str) -> None:
    assert memory_unit(num_bytes).text(num_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(0.412, "0.41 ms"), (12.34, "12.3 ms"), (702.4, "702 ms"), (3723, "3,723 ms")]
)
def test_durations_are_written_to_three_figures_or_so(duration_ms: float, text: str) -> None:
    assert format_ms(duration_ms) == text


def test_a_long_name_loses_its_middle() -> None:
    assert shorten("triton_red_fused_backward", 25) == "triton_red_fused_backward"
    assert shorten("triton_red_fused_backward", 11) == "trito…kward"
