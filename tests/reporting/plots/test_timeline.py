"""The timeline: bars, stalls, numbers of layers."""

from __future__ import annotations

import itertools

import pytest

from offload_runtime.reporting.plots import (
    draw_timeline,
    style,
)
from offload_runtime.reporting.plots.lanes import Bar, find_stalls, numbered_bars
from offload_runtime.step import Copy
from tests.reporting.plots.drawn import (
    GIB,
    copies_of,
    of_gid,
    simulation,
    step,
    texts,
    title,
)

pytest.importorskip("matplotlib")


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
