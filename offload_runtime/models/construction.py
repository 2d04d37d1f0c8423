"""Construction of a module where it is asked for, refused before it is allocated if it cannot be held.

A process that outgrows its host memory is killed without a word; it is refused here with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.runtime.host_memory import read_host_memory
from offload_runtime.units import format_size_short

M = TypeVar("M", bound=nn.Module)


def allocates(device: torch.device) -> bool:
    """Tell whether a tensor made now on ``device`` takes memory: not on meta, nor as a fake tensor."""
    return device.type != "meta" and type(torch.empty((), device=device)) is Tensor


def construct(spec: str, build: Callable[[], M], dtype: torch.dtype, device: torch.device) -> M:
    """Return ``build()``, run with ``dtype`` and ``device`` as torch's defaults.

    Raises RefusedError if its parameters and gradients exceed the memory that is free on the host. An
    accelerator says so itself when it runs out, and is not asked.
    """
    if device.type == "cpu" and allocates(device):
        with _defaults(dtype, torch.device("meta")):
            _refuse_if_too_large(spec, build())
    with _defaults(dtype, device):
        return build()


@contextmanager
def _defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def _refuse_if_too_large(spec: str, module: nn.Module) -> None:
    needed_bytes = sum(
        parameter.nbytes * (2 if parameter.requires_grad else 1) for parameter in module.parameters()
    )
    refuse_if_short(f"{spec}, with its parameters and gradients,", needed_bytes)


def refuse_if_short(thing: str, needed_bytes: int) -> None:
    """Raise RefusedError (MOD703) if this host has fewer than ``needed_bytes`` free."""
    free_bytes = read_host_memory().free_bytes
    if free_bytes is None or needed_bytes <= free_bytes:
        return
    message = f"{thing} needs {format_size_short(needed_bytes)}, and this host has {format_size_short(free_bytes)} free"
    hint = "give fewer --layers, a smaller --batch or --seq, or run it on an accelerator"
    raise RefusedError(Diagnostic("MOD703", "error", message, hint=hint))
