"""Read a forecast off a simulated step."""

from __future__ import annotations

from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_plan import Forecast, PeakPlace
from offload_runtime.passes.selection import Selected
from offload_runtime.planning.window import window_bound

__all__ = ["forecast_of"]


def forecast_of(selected: Selected, profile: HardwareProfile | None) -> Forecast | None:
    """Return what is predicted of a partition; None where the hardware is unknown."""
    simulation, traced, planned = selected.simulation, selected.traced, selected.planned
    if simulation is None or traced is None or profile is None:
        return None
    trace = traced.trace
    kernel = trace.kernels[simulation.peak_at]
    stalled = [(copy.item, copy.stall_ms) for copy in simulation.copies if copy.stall_ms > 0]
    bound_ms = planned.bound_ms if planned is not None else None
    return Forecast(
        hardware=profile.name,
        step_ms=simulation.step_ms,
        peak_bytes=simulation.peak_bytes,
        peak_at=PeakPlace(
            kernel.name, kernel.layer, "forward" if simulation.peak_at < trace.num_forward else "backward"
        ),
        resident_bytes=trace.resident_bytes,
        host_bytes=max(simulation.host_bytes, default=0),
        stall_ms=simulation.stall_ms,
        hidden_fraction=simulation.hidden_fraction,
        window_bytes=window_bound(trace, profile.link()).num_bytes,
        stalls=tuple(sorted(stalled, key=lambda stall: -stall[1])),
        bound_ms=bound_ms,
        gap=max(0.0, simulation.step_ms / bound_ms - 1) if bound_ms else None,
    )
