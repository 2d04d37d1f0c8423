"""Where a policy runs: the hardware profile of the device in use, and limits in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.hardware import HardwareProfile, load_hardware
from offload_runtime.passes.selection import Setting
from offload_runtime.policy import Limits, Policy

__all__ = [
    "AUTO_MARGIN",
    "judge_unknown_state",
    "limits_left",
    "needs_hardware",
    "profile_of_device",
    "read_hardware_option",
    "resolve_limits",
    "setting_for",
]

AUTO_MARGIN = 0.06
"""The share of free device memory that ``device_peak: auto`` leaves: fragmentation and what libraries allocate."""

# Names that the CUDA driver gives to devices, most telling first.
_PROFILES_BY_NAME = (
    ("GH200", "gh200"),
    ("GB200", "gb200"),
    ("H200", "h200-pcie5"),
    ("H100 PCIe", "h100-pcie5"),
    ("H100", "h100-sxm"),
    ("A100", "a100-pcie4"),
    ("RTX 4090", "rtx4090-pcie4"),
)


def needs_hardware(policy: Policy) -> bool:
    """Whether a policy can be carried out only where the hardware is known: it decides or places by time."""
    return policy.clause_by_time is not None


def read_hardware_option(given: object) -> HardwareProfile | None:
    """Return the profile that ``options["hardware"]`` names, is, or describes; None where it is left out.

    Raises UnreadableError or PolicyError for one that does not exist or says something wrong.
    """
    if given is None or isinstance(given, HardwareProfile):
        return given
    if isinstance(given, str | Mapping) or hasattr(given, "__fspath__"):
        return load_hardware(given)  # type: ignore[arg-type]  # text, path or mapping, as just checked
    message = f"option 'hardware' is a {type(given).__name__}"
    hint = "give the name of a profile (offload list hardware), the path of one, or a HardwareProfile"
    raise RefusedError(Diagnostic("RUN521", "error", message, hint=hint))


def profile_of_device(device: torch.device) -> HardwareProfile | None:
    """Return the shipped profile of a CUDA device, by the driver's name of it; None for what is not shipped."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    found = next((profile for part, profile in _PROFILES_BY_NAME if part in name), None)
    return None if found is None else load_hardware(found)


def setting_for(
    policy: Policy,
    hardware: HardwareProfile | None,
    device: torch.device,
    *,
    optimizer_state_bytes: int | None = 0,
    is_first_step: bool = True,
) -> Setting:
    """Return the setting of a graph that is compiled now for ``device``.

    ``optimizer_state_bytes`` will be on the device from the second step on. Limits count them from the start: a graph
    is compiled once, in the first forward, when there are none yet. Raises RefusedError for a policy that plans by
    time on hardware that nobody has described.
    """
    profile = hardware or profile_of_device(device)
    clause = policy.clause_by_time
    if profile is None and clause is not None:
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"device {device.type!r}"
        raise RefusedError(
            Diagnostic.at(
                policy.span_of(clause),
                "RUN524",
                f"planning by time needs to know the hardware, and there is no profile of {where}",
                path=clause,
                hint='give one: options={"hardware": NAME_OR_FILE}, or --hardware; see offload list hardware',
            )
        )
    state_bytes = optimizer_state_bytes or 0
    allocated = 0
    if device.type == "cuda":
        # What will be allocated: else other tensors would hide behind a state that is not there yet.
        allocated = torch.cuda.memory_allocated(device) + (state_bytes if is_first_step else 0)
    workspace = profile.workspace_bytes if profile is not None else 0
    limits = resolve_limits(policy.limits, device, profile)
    return Setting(limits, profile, resident_bytes=workspace + state_bytes, allocated_bytes=allocated)


def judge_unknown_state(
    policy: Policy, optimizer_state_bytes: int | None, *, is_first_step: bool, trains: bool
) -> tuple[Diagnostic, ...]:
    """Warn (PLN404) of a limit on device memory that is planned before the optimizer's state is there, or known of.

    ``trains``: parameters of the graph get gradients. From the second step on what the optimizer allocated is seen.
    """
    if policy.limits.device_peak is None or optimizer_state_bytes is not None:
        return ()
    if not (is_first_step and trains):
        return ()
    path = "limits.device_peak"
    message = (
        f"{path} is planned without the optimizer's state, which is not there in the first step: the peak of later "
        "steps will be higher by it"
    )
    hint = (
        "give options={'optimizer_state_bytes': N} or OFFLOAD_OPTIMIZER_STATE_BYTES, such as 12GiB: AdamW keeps twice "
        "the bytes of the trained parameters; 0 for an optimizer without state, or whose state is there already"
    )
    return (Diagnostic.at(policy.span_of(path), "PLN404", message, path=path, hint=hint),)


def limits_left(
    policy: Policy, limits: Limits, planned_by_others: Mapping[object, int], *, is_partial: bool
) -> Limits:
    """Return what other graphs of a model leave of ``limits``; ``planned_by_others`` are the bytes that each offloads.

    ``is_partial``: the graph is one of several. Raises RefusedError for a limit on the device's memory then: what the
    others keep there is not known.
    """
    if limits.device_peak is not None and (is_partial or planned_by_others):
        path = "limits.device_peak"
        message = (
            f"{path} cannot hold over several graphs: each is planned by itself, and what the others keep on the "
            "device is not known to it"
        )
        hint = "look for the graph breaks with TORCH_LOGS=graph_breaks, or bound what is offloaded by limits.budget"
        raise RefusedError(Diagnostic.at(policy.span_of(path), "PLN414", message, path=path, hint=hint))
    if limits.budget is None:
        return limits
    return replace(limits, budget=max(0, limits.budget - sum(planned_by_others.values())))


def resolve_limits(limits: Limits, device: torch.device, profile: HardwareProfile | None) -> Limits:
    """Return ``limits`` with ``device_peak: auto`` in bytes: what this process can have, less a margin.

    That is the least of what is free, what torch.cuda.set_per_process_memory_fraction leaves, and the memory of
    ``profile``, which may be that of a smaller device than this one.
    """
    if limits.device_peak != "auto":
        return limits
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        # By index, None for the current device: torch refuses a device without one here.
        allowed_bytes = int(torch.cuda.get_per_process_memory_fraction(device.index) * total_bytes)
        capacity = min(free_bytes + torch.cuda.memory_reserved(device), allowed_bytes)
        if profile is not None:
            capacity = min(capacity, profile.device_memory_bytes)
    else:
        assert profile is not None, "a policy with device_peak is planned, and that needs a profile"
        capacity = profile.device_memory_bytes
    return replace(limits, device_peak=int(capacity * (1 - AUTO_MARGIN)))
