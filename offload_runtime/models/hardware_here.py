"""The hardware profile of this machine, for commands that are not told which to plan for."""

from __future__ import annotations

import torch

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.hardware import HardwareProfile, hardware_names
from offload_runtime.runtime.setting import profile_of_device

__all__ = ["profile_here", "profile_of_memory"]


def profile_here() -> HardwareProfile:
    """Return the shipped profile of this machine's CUDA device.

    Raises UsageError (PLN421) naming the choices where there is no such device, or no profile of it.
    """
    found = "there is no CUDA device here"
    if torch.cuda.is_available():
        profile = profile_of_device(torch.device("cuda"))
        if profile is not None:
            return profile
        found = f"no profile is shipped for {torch.cuda.get_device_name()}"
    hint = f"give --hardware one of {', '.join(hardware_names())}, or the file of a profile"
    raise UsageError(Diagnostic("PLN421", "error", f"--hardware is needed: {found}", hint=hint))


def profile_of_memory(
    given: HardwareProfile | None, device: str, device_memory_bytes: int | None
) -> HardwareProfile | None:
    """Return the profile that a run on ``device`` plans for, with the memory that was given instead of its own.

    ``given`` is the profile that was asked for; None is that of the device, left to whoever plans where its memory
    stays as it is. Raises UsageError (PLN421) for memory of a device that is neither here nor described.
    """
    if device_memory_bytes is None:
        return given
    if given is None:
        is_cuda = torch.device(device).type == "cuda"
        given = profile_of_device(torch.device(device)) if is_cuda else profile_here()
    return given.with_device_memory(device_memory_bytes) if given is not None else None
