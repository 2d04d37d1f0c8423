"""Say that no plan keeps to a policy's limits: the floor, where it sits, and what holds it there."""

from __future__ import annotations

from collections.abc import Mapping

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.planning.limits import Holder, Infeasible
from offload_runtime.policy import Limits
from offload_runtime.step import StepTrace
from offload_runtime.units import format_size_short

__all__ = ["LEAST_SHARE", "refuse_infeasible"]

_NUM_HOLDERS = 4
LEAST_SHARE = 1e-3
"""Share of a floor below which what is alive there is not named."""


def refuse_infeasible(
    policy: CompiledPolicy,
    limits: Limits,
    trace: StepTrace,
    error: Infeasible,
    words: Mapping[str, str],
) -> RefusedError:
    """Return the error to raise for limits that cannot hold together, with every floor that is known.

    ``words`` are those of nodes by name: operator and module.
    """
    path, asked = _asked(policy, limits)
    message = f"no plan keeps to {asked}: "
    least_ms = (
        None if error.floor_ms is None else f"forward and backward take at least {error.floor_ms:.1f} ms"
    )
    if limits.device_peak is None and least_ms is not None:
        message += least_ms
    elif limits.device_peak is None:
        message += "what has to be offloaded takes more"
    elif least_ms is None:
        message += f"the floor is {_floor(trace, error, words)}"
    else:
        message += f"within that time the floor is {_floor(trace, error, words)}; under that peak {least_ms}"
    raised = "raise the limit"
    if isinstance(limits.device_peak, int) and least_ms is None:
        raised = f"set device_peak to {_limit_of(error.floor_bytes)} or more"
    hint = f"{raised}, let more tensors be recomputed or offloaded, or shorten batch or sequence"
    return RefusedError(Diagnostic.at(policy.policy.span_of(path), "PLN412", message, path=path, hint=hint))


def _asked(policy: CompiledPolicy, limits: Limits) -> tuple[str, str]:
    """Return the path of the first limit that is set, and those that were asked for in words.

    A limit on host memory that nobody asked for (the machine's own) is named where there is no other.
    """
    given = {}
    if isinstance(limits.device_peak, int):
        given["limits.device_peak"] = f"device_peak {format_size_short(limits.device_peak)}"
    if limits.step_overhead is not None:
        given["limits.step_overhead"] = f"step_overhead {limits.step_overhead:.1%}"
    if limits.budget is not None:
        given["limits.budget"] = f"budget {format_size_short(limits.budget)}"
    if limits.host is not None and (not given or policy.policy.limits.host is not None):
        given["limits.host"] = f"host {format_size_short(limits.host)}"
    return next(iter(given), "limits"), " and ".join(given.values())


def _limit_of(floor_bytes: int) -> str:
    """Write the least limit in whole MiB that a floor allows, as a policy takes it."""
    return f"{-(-floor_bytes // 2**20)}MiB"


def _floor(trace: StepTrace, error: Infeasible, words: Mapping[str, str]) -> str:
    kernel = trace.kernels[error.kernel]
    side = "forward" if error.kernel < trace.num_forward else "backward"
    layer = "" if kernel.layer is None else f", layer {kernel.layer}"
    # A kernel whose result is saved is called by its operator alone.
    place = words.get(kernel.name, kernel.name).removeprefix("saved ")
    held: dict[str, int] = {}
    for holder in error.holders:
        what = _words_of(holder, trace, words)
        held[what] = held.get(what, 0) + holder.num_bytes
    least = error.floor_bytes * LEAST_SHARE
    largest = sorted(held.items(), key=lambda item: -item[1])[:_NUM_HOLDERS]
    largest = [(what, num_bytes) for what, num_bytes in largest if num_bytes >= least]
    rest = error.floor_bytes - sum(num_bytes for _, num_bytes in largest)
    if rest >= least:
        largest.append(("smaller ones", rest))
    holders = ", ".join(f"{what} {format_size_short(num_bytes)}" for what, num_bytes in largest)
    return f"{format_size_short(error.floor_bytes)}, in {side}{layer} at {place}, held by {holders}"


def _words_of(holder: Holder, trace: StepTrace, words: Mapping[str, str]) -> str:
    """Say what is alive: an operator's result or workspace, the gradients that backward leaves, or what stays."""
    if holder.name == "resident":
        return "what stays throughout"
    if any(region.is_gradient and region.name == holder.name for region in trace.regions):
        return "gradients"
    kind, of, node = holder.name.rpartition("workspace of ")
    return f"{kind}{of}{words.get(node, node).removeprefix('saved ') if of else words.get(node, node)}"
