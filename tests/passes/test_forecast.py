from __future__ import annotations

import dataclasses

import pytest

from offload_runtime.passes.forecast import forecast_of
from offload_runtime.planning import window_bound
from tests.passes.planned import HARDWARE, baseline_of, plan, planned_policy

OFFLOAD = planned_policy("offload")


def limit(mode: str, share: float) -> int:
    forecast = baseline_of(mode).forecast
    assert forecast is not None
    return int(forecast.resident_bytes + share * (forecast.peak_bytes - forecast.resident_bytes))


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_a_forecast_is_what_the_simulated_step_shows(mode: str) -> None:
    pair = plan(OFFLOAD, mode, device_peak=limit(mode, 0.6))
    forecast, simulation = pair.forecast, pair.selected.simulation
    assert forecast is not None
    assert simulation is not None
    assert forecast.hardware == "small"
    assert forecast.step_ms == simulation.step_ms
    assert forecast.peak_bytes == max(simulation.device_bytes) <= limit(mode, 0.6)
    assert 0 < forecast.resident_bytes < forecast.peak_bytes
    assert 0 < forecast.host_bytes <= pair.plan.planned_bytes
    assert forecast.stall_ms == pytest.approx(sum(stall for _, stall in forecast.stalls))
    assert forecast.hidden_fraction is not None
    assert 0.0 <= forecast.hidden_fraction <= 1.0
    assert forecast.peak_at.side in ("forward", "backward")
    assert forecast.peak_at.layer in (0, 1, 2, 3, None)


def test_stalls_stand_longest_first() -> None:
    tight = plan(planned_policy("offload", select="largest_first", defer=0, prefetch=0)).forecast
    assert tight is not None
    assert len(tight.stalls) > 1
    lengths = [stall_ms for _, stall_ms in tight.stalls]
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths) > 0
    assert tight.hidden_fraction is not None
    assert tight.hidden_fraction < 1.0


def test_the_window_is_that_of_the_same_step_with_nothing_offloaded() -> None:
    offloaded = plan(OFFLOAD, device_peak=limit("graph", 0.6))
    assert offloaded.forecast is not None
    assert offloaded.selected.traced is not None
    window = window_bound(offloaded.selected.traced.trace, HARDWARE.link())
    assert offloaded.forecast.window_bytes == window.num_bytes > 0


def test_the_bound_is_of_what_was_minimised() -> None:
    timed = plan(OFFLOAD, device_peak=limit("graph", 0.6)).forecast
    lowest = plan(OFFLOAD, step_overhead=0.1).forecast
    counted = plan(planned_policy("offload", select="largest_first")).forecast
    assert timed is not None
    assert lowest is not None
    assert counted is not None
    assert timed.bound_ms is not None
    assert timed.gap == pytest.approx(max(0.0, timed.step_ms / timed.bound_ms - 1))
    assert lowest.bound_ms is None
    assert counted.bound_ms is None
    assert counted.gap is None


def test_without_hardware_nothing_is_predicted() -> None:
    pair = plan(planned_policy("offload", select="largest_first"), hardware=None)
    assert pair.forecast is None
    simulated = plan(planned_policy("offload", select="largest_first")).selected
    assert forecast_of(simulated, None) is None
    assert forecast_of(dataclasses.replace(simulated, simulation=None), HARDWARE) is None


def test_a_place_reads_as_words() -> None:
    forecast = baseline_of("graph").forecast
    assert forecast is not None
    assert (
        str(forecast.peak_at)
        == f"{forecast.peak_at.side}, layer {forecast.peak_at.layer}, at {forecast.peak_at.kernel}"
    )
    assert "outside the layers" in str(dataclasses.replace(forecast.peak_at, layer=None))
