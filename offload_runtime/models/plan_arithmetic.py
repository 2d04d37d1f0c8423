"""The arithmetic that `plan --why` prints, of a model that was planned: within the limits of its plan."""

from __future__ import annotations

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import RefusedError
from offload_runtime.models.catalog import algorithm_of
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.plan_limits import limits_in_bytes
from offload_runtime.planning.limits import Infeasible
from offload_runtime.tiers import DeviceDemand, OffloadArithmetic, TrainingShape, offload_arithmetic
from offload_runtime.training_state import DTYPE_BYTES

__all__ = ["arithmetic_of"]


def arithmetic_of(
    baseline: Baseline, policy: CompiledPolicy, *, refusal: RefusedError | None = None
) -> OffloadArithmetic | None:
    """Work out by hand what `plan --why` prints, within the limits of ``policy``.

    ``refusal`` is that of its plan: where it names a floor, no fate of activations gets below. None for parameters of a
    type that the arithmetic does not know.
    """
    model, forecast = baseline.traced.model, baseline.forecast
    if model.dtype not in DTYPE_BYTES or not model.num_parameters:
        return None
    saved = sum(
        item.num_bytes
        for pair in baseline.planned.pairs
        for item in (pair.selected.traced.trace.items if pair.selected.traced is not None else ())
    )
    trained = sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad)
    shape = TrainingShape(
        num_parameters=model.num_parameters,
        num_trained=trained,
        parameter_dtype=model.dtype,
        optimizer=algorithm_of(baseline.optimizer),
        master_weights=bool(baseline.resident.master_weights),
        step_ms=forecast.step_ms or None,
        activation_bytes=saved,
    )
    return offload_arithmetic(baseline.hardware, shape, _demand(baseline, policy, refusal))


def _demand(baseline: Baseline, policy: CompiledPolicy, refusal: RefusedError | None) -> DeviceDemand:
    limits, capacity = limits_in_bytes(policy, baseline.hardware), baseline.hardware.device_memory_bytes
    limit, name = capacity, "device.memory"
    if isinstance(limits.device_peak, int) and limits.device_peak < capacity:
        limit, name = limits.device_peak, "limits.device_peak"
    cause = None if refusal is None else refusal.__cause__
    floor = cause.floor_bytes if isinstance(cause, Infeasible) else 0
    return DeviceDemand(
        limit_bytes=limit,
        limit_name=name,
        peak_bytes=baseline.forecast.peak_device_bytes,
        floor_bytes=max(floor, baseline.optimizer_step_bytes),
        host_limit_bytes=limits.host,
        window_ms=baseline.window.duration_ms,
    )
