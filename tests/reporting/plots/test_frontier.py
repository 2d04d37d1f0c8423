"""The frontier: where points, bounds and words stand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from offload_runtime.reporting.plots import (
    Frontier,
    FrontierPoint,
    FrontierSeries,
    draw_frontier,
)
from tests.reporting.plots.drawn import (
    FRONTIER,
    GIB,
    MIB,
    PEER,
    PLANNED,
    legend,
    line,
    of_gid,
    points,
    texts,
    title,
)

pytest.importorskip("matplotlib")


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
