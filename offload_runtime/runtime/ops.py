"""The four operators that a rewritten graph calls: start and wait, to the host and back.

    src --d2h_start--> host --d2h_wait--> host'   (saved by autograd)
    host' --h2d_start--> dev --h2d_wait--> dev'   (read by the backward)

The starts return fresh memory; the waits return an alias of their first argument, and say so in their
schemas: Inductor plans memory by that. ``anchors`` are ignored when the operator runs; they are order, as
data dependencies. Insert the operators after AOTAutograd has traced: functionalization refuses custom
operators that return aliases.
"""

# torch leaves these constructors untyped.
# mypy: untyped-calls-exclude="torch"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch._ops import OpOverload
from torch.fx import node as fx_node

from offload_runtime.runtime import engines
from offload_runtime.runtime.faults import slot_for
from offload_runtime.runtime.transfer import TransferEngine, get_engine

TAGS = tuple(
    getattr(torch.Tag, name)
    for name in ("needs_exact_strides", "cudagraph_unsafe")
    if hasattr(torch.Tag, name)
)
"""Inductor hands over tensors with the strides they were traced with, and leaves us out of CUDA graphs."""

_library = torch.library.Library("offload", "DEF")


def _engine_of(host: torch.Tensor, transfer: int) -> TransferEngine:
    """Return the engine that started this buffer, whichever is current now."""
    engine = slot_for(host, transfer).engine
    assert engine is not None, "an engine owns every slot that a graph can see"
    return cast(TransferEngine, engine)


def _d2h_start(src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int) -> torch.Tensor:
    return get_engine(src.device).d2h_start(src, transfer)


def _d2h_wait(
    host: torch.Tensor, src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int
) -> torch.Tensor:
    return _engine_of(host, transfer).d2h_wait(host, src, transfer)


def _h2d_start(
    host: torch.Tensor, anchors: Sequence[torch.Tensor], device: torch.device, transfer: int
) -> torch.Tensor:
    return _engine_of(host, transfer).h2d_start(host, device, transfer)


def _h2d_wait(dev: torch.Tensor, host: torch.Tensor, transfer: int) -> torch.Tensor:
    return _engine_of(host, transfer).h2d_wait(dev, host, transfer)


def _fake_d2h_start(src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int) -> torch.Tensor:
    device = "meta" if src.device.type == "meta" else "cpu"
    return torch.empty_strided(src.shape, src.stride(), dtype=src.dtype, device=device)


def _fake_d2h_wait(
    host: torch.Tensor, src: torch.Tensor, anchors: Sequence[torch.Tensor], transfer: int
) -> torch.Tensor:
    return host.view_as(host)


def _fake_h2d_start(
    host: torch.Tensor, anchors: Sequence[torch.Tensor], device: torch.device, transfer: int
) -> torch.Tensor:
    target = "meta" if host.device.type == "meta" else device
    return torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=target)


def _fake_h2d_wait(dev: torch.Tensor, host: torch.Tensor, transfer: int) -> torch.Tensor:
    return dev.view_as(dev)


_Kernel = Callable[..., torch.Tensor]
_OPERATORS: tuple[tuple[str, _Kernel, _Kernel], ...] = (
    (
        "d2h_start(Tensor src, Tensor[] anchors, int transfer) -> Tensor",
        _d2h_start,
        _fake_d2h_start,
    ),
    (
        "d2h_wait(Tensor(a) host, Tensor src, Tensor[] anchors, int transfer) -> Tensor(a)",
        _d2h_wait,
        _fake_d2h_wait,
    ),
    (
        "h2d_start(Tensor host, Tensor[] anchors, Device device, int transfer) -> Tensor",
        _h2d_start,
        _fake_h2d_start,
    ),
    (
        "h2d_wait(Tensor(a) dev, Tensor host, int transfer) -> Tensor(a)",
        _h2d_wait,
        _fake_h2d_wait,
    ),
)

for _schema, _kernel, _fake in _OPERATORS:
    _name = _library.define(_schema, tags=TAGS)
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"offload::{_name}", _fake, lib=_library)

d2h_start = torch.ops.offload.d2h_start.default
d2h_wait = torch.ops.offload.d2h_wait.default
h2d_start = torch.ops.offload.h2d_start.default
h2d_wait = torch.ops.offload.h2d_wait.default

TRANSFER_OPS = (d2h_start, d2h_wait, h2d_start, h2d_wait)
"""All four overloads, for passes that look for them."""


def keep_side_effects(*operators: OpOverload) -> None:
    """Tell FX that no call of these operators is dead, whoever reads its result."""
    if hasattr(fx_node, "has_side_effect"):
        for operator in operators:
            fx_node.has_side_effect(operator)


keep_side_effects(*TRANSFER_OPS)

engines.register_engines()
