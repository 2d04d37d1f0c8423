"""Memory over the step: curves, peaks, limits."""

from __future__ import annotations

import pytest

from offload_runtime.reporting.plots import (
    MemoryLimit,
    draw_memory,
)
from tests.reporting.plots.drawn import (
    GIB,
    MIB,
    legend,
    line,
    of_gid,
    points,
    simulation,
    step,
    texts,
    title,
)

pytest.importorskip("matplotlib")


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


def test_a_step_with_other_kernels_before_the_plan_is_drawn_by_its_own_trace() -> None:
    trace, longer = step(2), step(3)
    figure = draw_memory(trace, simulation(longer), simulation(trace), before_trace=longer)
    assert "peak before the plan: 11.0 GiB at 9.50 ms in log_softmax (outside the layers)" in texts(figure)
    assert of_gid(figure.axes[0], "backward begins") == [10.0, 7.0]
    with pytest.raises(ValueError, match="14 kernels, but 20 simulated"):
        draw_memory(trace, simulation(longer), simulation(trace))


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
