"""Say that no plan keeps to a policy's limits: the floor, where it sits, and what holds it there."""

from __future__ import annotations

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.planning.limits import Infeasible
from offload_runtime.policy import Limits
from offload_runtime.step import StepTrace
from offload_runtime.units import format_size_short

__all__ = ["refuse_infeasible"]

_NUM_HOLDERS = 4


def refuse_infeasible(
    policy: CompiledPolicy, limits: Limits, trace: StepTrace, error: Infeasible
) -> RefusedError:
    """Return the error to raise for limits that cannot hold together."""
    kernel = trace.kernels[error.kernel]
    side = "forward" if error.kernel < trace.num_forward else "backward"
    layer = "" if kernel.layer is None else f" of layer {kernel.layer}"
    holders = ", ".join(
        f"{holder.name} {format_size_short(holder.num_bytes)}" for holder in error.holders[:_NUM_HOLDERS]
    )
    path = "limits.device_peak" if limits.device_peak is not None else "limits.step_overhead"
    asked = (
        f"device_peak {format_size_short(limits.device_peak)}"
        if isinstance(limits.device_peak, int)
        else f"step_overhead {limits.step_overhead:.1%}"
    )
    message = (
        f"no plan keeps to {asked}: the floor is {format_size_short(error.floor_bytes)}, in {side} at "
        f"{kernel.name}{layer}, held by {holders}"
    )
    if error.floor_ms is not None:
        message += f"; under it a step takes at least {error.floor_ms:.1f} ms"
    hint = "raise the limit, let more tensors be recomputed or offloaded, or shorten batch or sequence"
    return RefusedError(Diagnostic.at(policy.policy.span_of(path), "PLN412", message, path=path, hint=hint))
