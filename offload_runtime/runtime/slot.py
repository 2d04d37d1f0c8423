"""A slot: a stretch of arena memory under one host buffer, which lives as long as that buffer's storage.

The storage is ``torch.frombuffer`` over a ctypes object at the slot's address. When the storage dies, the
ctypes object dies, and its finalizer gives the slot back. Nothing hangs on a tensor object: autograd keeps
storages alive through tensor objects of its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Sequence

import torch

from offload_runtime.runtime.freelist import Block, Fence, Fences, merge_fences
from offload_runtime.runtime.slab import Slab


class Slot:
    """Hold a stretch of arena memory for one host buffer.

    ``state`` belongs to the engine that filled the slot; ``on_release`` is called once, in whatever thread
    the storage died, before the memory is free; ``fences`` are the copies a later user has to wait for.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "block",
        "engine",
        "fences",
        "num_bytes",
        "on_release",
        "slab",
        "state",
    )

    def __init__(self, block: Block, slab: Slab, num_bytes: int) -> None:
        self.block = block
        self.slab = slab
        self.address = slab.address + block.offset
        self.num_bytes = num_bytes
        self.fences: Fences = block.fences
        self.engine: object | None = None
        self.state: object | None = None
        self.on_release: Callable[[Slot], bool] | None = None

    def bytes(self) -> torch.Tensor:
        """Return the slot's bytes for the engine's own copies; the slot does not live by this tensor."""
        raw = (ctypes.c_char * self.block.num_bytes).from_address(self.address)
        return torch.frombuffer(raw, dtype=torch.uint8)[: self.num_bytes]

    def add_fence(self, fence: Fence) -> None:
        """Make whoever gets this memory next wait for ``fence``."""
        self.fences = merge_fences(self.fences, (fence,))


_live_slots: dict[int, Slot] = {}
"""Slots whose storage lives, by address. Only addresses the arenas own, each unique while it is here."""

# A forked child does not own its parent's slots; the same addresses may come to mean other memory there.
os.register_at_fork(after_in_child=_live_slots.clear)


def slot_of(host: torch.Tensor) -> Slot | None:
    """Return the slot under a host buffer; None for a tensor that is not one."""
    return _live_slots.get(host.untyped_storage().data_ptr())


def tensor_over(
    slot: Slot,
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    *,
    when_dead: Callable[[Slot], None],
) -> torch.Tensor:
    """Return a tensor over the slot; ``when_dead`` is called with the slot when its storage dies.

    Call once per slot. ``when_dead`` runs in any thread, even inside a collection; not at interpreter exit.
    """
    buffer = _buffer_type(slot.block.num_bytes).from_address(slot.address)
    _live_slots[slot.address] = slot
    finalizer = weakref.finalize(buffer, when_dead, slot)
    finalizer.atexit = False
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(sizes), tuple(strides))


def forget_slot(slot: Slot) -> None:
    """Take a slot that is dead off the list, before its memory is given to anybody else."""
    _live_slots.pop(slot.address, None)


@functools.lru_cache(maxsize=4096)
def _buffer_type(num_bytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    """Build a buffer type of this size; a subclass, because plain ctypes arrays take no weak references."""
    return type("HostBuffer", (ctypes.c_char * num_bytes,), {})
