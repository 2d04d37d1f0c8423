"""The hardware profile of this machine, for commands that are not told which to plan for."""

from __future__ import annotations

import torch

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.hardware import HardwareProfile, hardware_names
from offload_runtime.runtime.setting import profile_of_device

__all__ = ["profile_here"]


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
