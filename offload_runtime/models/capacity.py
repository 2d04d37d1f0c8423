"""Whether a model can be held where it is asked for, asked before it is allocated.

A process that outgrows its host memory is killed without a word; it is refused here with one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.runtime.host_memory import read_host_memory
from offload_runtime.units import format_size_short


def allocates(device: torch.device) -> bool:
    """Tell whether a tensor made now on ``device`` takes memory: not on meta, nor under ``FakeTensorMode``."""
    return device.type != "meta" and type(torch.empty((), device=device)) is Tensor


def refuse_if_too_large(spec: str, parameter_bytes: int, device: torch.device) -> None:
    """Raise RefusedError if the parameters and gradients of ``spec`` exceed the memory that is free on the host.

    An accelerator says so itself when it runs out, and is not asked.
    """
    if device.type != "cpu" or not allocates(device):
        return
    free_bytes = read_host_memory().free_bytes
    needed_bytes = 2 * parameter_bytes
    if free_bytes is None or needed_bytes <= free_bytes:
        return
    message = (
        f"{spec} needs {format_size_short(needed_bytes)} for its parameters and gradients, and this host has "
        f"{format_size_short(free_bytes)} free"
    )
    hint = "give fewer --layers, or run it on an accelerator; planning needs no memory"
    raise RefusedError(Diagnostic("MOD703", "error", message, hint=hint))
