"""The device that a model is put on, where the user leaves it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.units import format_size, format_size_short

__all__ = ["capped_memory", "choose_device"]


def choose_device(wanted: str) -> str:
    """Return `cpu` or `cuda` for `auto`: the accelerator where there is one; anything else as it is.

    Raises RefusedError for CUDA where this machine or this torch has none.
    """
    available = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if available else "cpu"
    if wanted == "cuda" and not available:
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU is visible"
        hint = "use --device cpu, where the simulated engine runs"
        raise RefusedError(Diagnostic("MOD707", "error", f"--device cuda: {reason}", hint=hint))
    return wanted


@contextmanager
def capped_memory(device: str, num_bytes: int | None) -> Iterator[None]:
    """Let this process allocate ``num_bytes`` of a CUDA device while the context is open; None leaves it as it is.

    Open it before anything is allocated. What is not torch's, such as the CUDA context, is not counted.
    Without CUDA nothing is capped. Raises RefusedError (MOD708) for more than the device has.
    """
    if num_bytes is None or torch.device(device).type != "cuda":
        yield
        return
    _, total_bytes = torch.cuda.mem_get_info(device)
    if num_bytes > total_bytes:
        message = (
            f"--device-memory {format_size(num_bytes)} is more than the {format_size_short(total_bytes)} of "
            f"{torch.cuda.get_device_name(device)}"
        )
        hint = "give less, or leave it out; `offload plan --hardware` predicts for a device that is not here"
        raise RefusedError(Diagnostic("MOD708", "error", message, hint=hint))
    index = torch.device(device).index  # None for the current device: torch refuses a device without one here
    before = torch.cuda.get_per_process_memory_fraction(index)
    torch.cuda.set_per_process_memory_fraction(num_bytes / total_bytes, index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)
