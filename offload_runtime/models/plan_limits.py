"""What a plan has to keep to beyond what the planner decides: the optimizer's step, the host, the target itself."""

from __future__ import annotations

from dataclasses import replace

import torch

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.optimizer_step import optimizer_step_bytes, step_temporary_bytes
from offload_runtime.models.plan_result import HostForecast, ResidentBytes, StepForecast
from offload_runtime.models.planned_model import PlannedModel
from offload_runtime.policy import Limits
from offload_runtime.runtime.arena import round_to_alignment
from offload_runtime.runtime.setting import resolve_limits
from offload_runtime.runtime.slab import round_to_pages
from offload_runtime.units import format_size_short

__all__ = [
    "host_forecast",
    "judge_offloads",
    "judge_target",
    "judge_time",
    "limits_in_bytes",
    "refuse_host_overflow",
    "refuse_optimizer_step",
    "refuse_several_graphs",
]


def limits_in_bytes(policy: CompiledPolicy, hardware: HardwareProfile) -> Limits:
    """Return the policy's limits in bytes; what it leaves open on the host is the profile's."""
    limits = resolve_limits(policy.policy.limits, torch.device("cpu"), hardware)
    return limits if limits.host is not None else replace(limits, host=hardware.host_limit_bytes)


def refuse_several_graphs(policy: CompiledPolicy, limits: Limits, num_graphs: int) -> None:
    """Raise RefusedError (PLN414) for a limit on the device's memory where each graph is planned by itself."""
    if num_graphs == 1 or limits.device_peak is None:
        return
    path = "limits.device_peak"
    message = (
        f"limits.device_peak cannot be planned over {num_graphs} graphs: each is planned by itself, and what the "
        "others hold is not known to it"
    )
    hint = (
        "look for the graph breaks with TORCH_LOGS=graph_breaks, or bound what is offloaded by limits.budget"
    )
    raise RefusedError(Diagnostic.at(policy.policy.span_of(path), "PLN414", message, path=path, hint=hint))


def refuse_optimizer_step(
    policy: CompiledPolicy,
    limits: Limits,
    resident: ResidentBytes,
    optimizer: str,
    capacity_bytes: int | None,
) -> None:
    """Raise RefusedError (PLN413) for a limit below what the optimizer's step takes: no fate of activations helps."""
    needed, limit = optimizer_step_bytes(resident, optimizer), limits.device_peak
    if not isinstance(limit, int) or needed <= limit:
        return
    parts = {
        "parameters": resident.parameters + resident.buffers,
        "gradients": resident.gradients,
        **resident.optimizer_parts,
        "temporaries of the step": step_temporary_bytes(resident, optimizer),
        "batch and workspace": resident.batch + resident.workspace,
    }
    held = ", ".join(f"{name} {format_size_short(size)}" for name, size in parts.items() if size)
    message = (
        f"no plan keeps to device_peak {format_size_short(limit)}: the step of {optimizer} alone takes "
        f"{format_size_short(needed)}: {held}"
    )
    cures = []
    if capacity_bytes is None or needed <= capacity_bytes:
        cures.append(
            f"set device_peak to {-(-needed // 2**20)}MiB or more, forward and backward may need more than that"
        )
    fused = optimizer_step_bytes(resident, "adamw-fused")
    if step_temporary_bytes(resident, optimizer) and (capacity_bytes is None or fused <= capacity_bytes):
        cures.append(
            "train with AdamW(fused=True), --optimizer adamw-fused, whose step takes "
            f"{format_size_short(fused)}"
        )
    if not cures and capacity_bytes is not None:
        cures.append(
            f"that is more than the device's {format_size_short(capacity_bytes)}: keep state elsewhere or share it "
            "among ranks, which offload advise counts; or choose another --optimizer"
        )
    hint = "; or ".join(cures)
    path = "limits.device_peak"
    raise RefusedError(Diagnostic.at(policy.policy.span_of(path), "PLN413", message, path=path, hint=hint))


def host_forecast(planned: PlannedModel, limits: Limits) -> HostForecast:
    """Say what the plan pins on one rank, rounded as the host arena rounds, and what it may."""
    asked, pinned = 0, 0
    for pair in planned.pairs:
        sizes = [transfer.source.num_bytes for transfer in pair.plan.transfers]
        asked += sum(sizes)
        pinned += round_to_pages(sum(map(round_to_alignment, sizes))) if sizes else 0
    hardware = planned.hardware
    return HostForecast(
        pinned_bytes=pinned,
        rounding_bytes=pinned - asked,
        limit_bytes=limits.host,
        num_ranks=hardware.num_ranks,
        memory_bytes=hardware.host_memory_bytes,
    )


def refuse_host_overflow(policy: CompiledPolicy, host: HostForecast, hardware: HardwareProfile) -> None:
    """Raise RefusedError (PLN415) for a plan that pins more than the policy, or the host, allows."""
    limit = host.limit_bytes
    if limit is None or host.pinned_bytes <= limit:
        return
    path = "limits.host"
    message = (
        f"the plan pins {format_size_short(host.pinned_bytes)} of host memory on each rank "
        f"({format_size_short(host.rounding_bytes)} of it rounding), "
    )
    if policy.policy.limits.host is not None:
        message += f"and limits.host is {format_size_short(limit)}"
    else:
        ranks = "1 rank" if host.num_ranks == 1 else f"{host.num_ranks} ranks"
        message += (
            f"and {ranks} may pin {format_size_short(limit)} each: 80 % of the host's "
            f"{format_size_short(host.memory_bytes or 0)} ({hardware.name})"
        )
    hint = "lower limits.budget, or let more be recomputed instead"
    raise RefusedError(Diagnostic.at(policy.policy.span_of(path), "PLN415", message, path=path, hint=hint))


def judge_target(policy: CompiledPolicy, limits: Limits, forecast: StepForecast) -> tuple[Diagnostic, ...]:
    """Find that the plan, as carried out, takes more than limits.device_peak."""
    limit = limits.device_peak
    if not isinstance(limit, int) or forecast.peak_device_bytes <= limit:
        return ()
    path = "limits.device_peak"
    over = format_size_short(forecast.peak_device_bytes - limit)
    message = (
        f"the plan takes {format_size_short(forecast.peak_device_bytes)}, {over} more than limits.device_peak "
        f"{format_size_short(limit)}: its peak sits in {forecast.peak_at}"
    )
    hint = "raise the limit by that much, or let more tensors be recomputed or offloaded"
    return (Diagnostic.at(policy.policy.span_of(path), "PLN416", message, path=path, hint=hint),)


def judge_time(
    policy: CompiledPolicy, limits: Limits, baseline: StepForecast, forecast: StepForecast
) -> tuple[Diagnostic, ...]:
    """Find that the plan, as carried out, adds more time than limits.step_overhead."""
    allowed = limits.step_overhead
    if allowed is None or forecast.step_ms <= baseline.step_ms * (1 + allowed):
        return ()
    path = "limits.step_overhead"
    added = forecast.step_ms / baseline.step_ms - 1
    message = (
        f"the plan adds {100 * added:.3g} % to forward and backward, more than limits.step_overhead "
        f"{100 * allowed:g} %: {forecast.step_ms:.4g} ms, not {baseline.step_ms * (1 + allowed):.4g} ms"
    )
    hint = "measure it with offload bench, or lower the limit by that much"
    return (
        Diagnostic.at(
            policy.policy.span_of(path), "PLN418", message, path=path, severity="warning", hint=hint
        ),
    )


def judge_offloads(planned: PlannedModel, forecast: StepForecast) -> tuple[Diagnostic, ...]:
    """Warn that what is offloaded leaves the peak where it would be without, and say where that is."""
    moved = sum(pair.plan.planned_bytes for pair in planned.pairs)
    if not moved or forecast.peak_device_bytes < planned.peak_with_offloads_saved():
        return ()
    message = (
        f"offloading {format_size_short(moved)} does not lower the peak of device memory, "
        f"{format_size_short(forecast.peak_device_bytes)}: it sits in {forecast.peak_at}"
    )
    hint = "offload or recompute what is alive there, or drop the offloads: they only cost time"
    return (Diagnostic("PLN402", "warning", message, hint=hint),)
