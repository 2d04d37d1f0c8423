"""The numeric reference of the transfer operators: the same schemas, saving on the device instead of the host.

Where one of them stands, a compiler orders and fuses exactly as it does around a transfer, so that what is compared is
the transfer and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from offload_runtime.runtime import ops as transfer_ops

_library = torch.library.Library("offload", "FRAGMENT")


def _start_save(src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int) -> torch.Tensor:
    return _empty_like(src, anchors, transfer).copy_(src)


def _empty_like(src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int) -> torch.Tensor:
    return torch.empty_strided(src.shape, src.stride(), dtype=src.dtype, device=src.device)


def _finish_save(
    saved: torch.Tensor, src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int
) -> torch.Tensor:
    return saved


def _start_load(
    saved: torch.Tensor, anchors: Sequence[torch.Tensor], device: torch.device, transfer: int
) -> torch.Tensor:
    return _empty_load(saved, anchors, device, transfer).copy_(saved)


def _empty_load(
    saved: torch.Tensor, anchors: Sequence[torch.Tensor], device: torch.device, transfer: int
) -> torch.Tensor:
    return torch.empty_strided(saved.shape, saved.stride(), dtype=saved.dtype, device=saved.device)


def _finish_load(dev: torch.Tensor, saved: torch.Tensor, transfer: int) -> torch.Tensor:
    return dev


def _alias(result: torch.Tensor, *others: object) -> torch.Tensor:
    return result.view_as(result)


_Kernel = Callable[..., torch.Tensor]
_OPERATORS: tuple[tuple[str, _Kernel, _Kernel], ...] = (
    ("save_start(Tensor src, Tensor[] anchors, int transfer) -> Tensor", _start_save, _empty_like),
    (
        "save_wait(Tensor(a) saved, Tensor src, Tensor[] anchors, int transfer) -> Tensor(a)",
        _finish_save,
        _alias,
    ),
    (
        "load_start(Tensor saved, Tensor[] anchors, Device device, int transfer) -> Tensor",
        _start_load,
        _empty_load,
    ),
    ("load_wait(Tensor(a) dev, Tensor saved, int transfer) -> Tensor(a)", _finish_load, _alias),
)

for _schema, _kernel, _fake in _OPERATORS:
    _name = _library.define(_schema, tags=transfer_ops.TAGS)
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"offload::{_name}", _fake, lib=_library)

save_start = torch.ops.offload.save_start.default
save_wait = torch.ops.offload.save_wait.default
load_start = torch.ops.offload.load_start.default
load_wait = torch.ops.offload.load_wait.default

transfer_ops.keep_side_effects(save_start, save_wait, load_start, load_wait)
