"""The simulated engine: runs transfers on any device, and makes every race of streams a wrong number.

A real copy happens at some time between its start and its wait. This engine chooses that time against the
graph: at once, at the wait, or in between and in shuffled order, the same for the same seed. Memory that
nobody may read is full of 0xFF bytes (NaN in every float format): fresh buffers until their copy ran, host
slots after their release, and, where the transfer asks for it, a source that may be released.
"""

# torch leaves these constructors untyped.
# mypy: untyped-calls-exclude="torch"

from __future__ import annotations

import ctypes
import random
import threading
import weakref
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.faults import broken_order, record_in_flight, slot_for
from offload_runtime.runtime.ledger import TransferLedger
from offload_runtime.runtime.slot import Slot
from offload_runtime.runtime.spans import byte_span, covered_bytes, span_bytes, without_lazy_bits
from offload_runtime.runtime.transfer import EngineName, EngineSnapshot, TransferRecord, transfer_record

CopyTiming = Literal["early", "late", "random"]

_POISON = 0xFF


@dataclass(slots=True, eq=False)
class _Reload:
    """Follow one H2D copy; only weak references, so that a dropped device buffer shows."""

    record: TransferRecord
    address: int
    storage: StorageWeakRef
    tensor: weakref.ref[torch.Tensor]
    copied: bool = False


@dataclass(slots=True, eq=False)
class _Offload:
    """Follow one host buffer: its D2H copy, then its reloads."""

    record: TransferRecord
    src: torch.Tensor | None
    copied: bool = False
    waited: bool = False
    reloads: list[_Reload] = field(default_factory=list)


class SimulatedEngine:
    """Run transfers synchronously, at the worst allowed moment.

    On CPU this is the engine. On CUDA it checks a graph in place of the real one: its copies block.
    """

    name: EngineName = "simulated"

    def __init__(
        self,
        arena: HostArena | None = None,
        *,
        seed: int = 0,
        timing: CopyTiming = "random",
        device: torch.device | str = "cpu",
    ) -> None:
        if timing not in ("early", "late", "random"):
            raise ValueError(f"timing is {timing!r}, not one of early, late, random")
        self.arena = arena or HostArena()
        self._timing: CopyTiming = timing
        self._random = random.Random(seed)
        # Never taken while the arena's lock is held, except by try: see _release.
        self._lock = threading.Lock()
        self._ledger = TransferLedger(self.name, str(device))
        self._unfinished: dict[Slot, _Offload] = {}

    def d2h_start(self, src: torch.Tensor, transfer: int) -> torch.Tensor:
        """Return a poisoned host buffer that the copy of ``src`` will fill."""
        record = transfer_record(transfer)
        src = without_lazy_bits(src)
        slot, host = self.arena.host_buffer(span_bytes(src), src.shape, src.stride(), src.dtype)
        for fence in slot.fences:
            fence.synchronize()
        slot.fences = ()
        _poison_slot(slot)
        offload = _Offload(record, src)
        slot.engine, slot.state, slot.on_release = self, offload, self._release
        with self._lock:
            self._unfinished[slot] = offload
            if self._timing == "early":
                self._copy_out(slot, offload)
            self._advance()
        return host

    def d2h_wait(self, host: torch.Tensor, src: torch.Tensor, transfer: int) -> torch.Tensor:
        """Complete the copy; poison ``src`` if its transfer asks for it."""
        slot, offload = self._offload_of(host, transfer)
        record = record_in_flight(offload.record, transfer)
        with self._lock:
            if offload.record is not record:
                raise broken_order(record, f"its offload's wait got the buffer of {offload.record.name!r}")
            if offload.waited:
                raise broken_order(record, "its offload was waited for twice")
            self._copy_out(slot, offload)
            offload.waited = True
            if record.poison_source and offload.src is not None:
                self._finish_copies_of(offload.src)
                covered_bytes(offload.src).fill_(_POISON)
            offload.src = None
            self._unfinished.pop(slot, None)
            self._advance()
        return host

    def h2d_start(self, host: torch.Tensor, device: torch.device, transfer: int) -> torch.Tensor:
        """Return a poisoned device buffer that the copy of ``host`` will fill."""
        slot, offload = self._offload_of(host, transfer)
        record = record_in_flight(offload.record, transfer)
        dev = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device=device)
        byte_span(dev).fill_(_POISON)
        storage = dev.untyped_storage()
        reload = _Reload(record, storage.data_ptr(), StorageWeakRef(storage), weakref.ref(dev))
        with self._lock:
            if not offload.waited:
                raise broken_order(record, "its reload started before its offload was waited for")
            self._forget_dropped(offload)
            if any(other.record is record for other in offload.reloads):
                raise broken_order(record, "its reload started again before the first was waited for")
            offload.reloads.append(reload)
            self._unfinished[slot] = offload
            if self._timing == "early":
                self._copy_in(slot, reload, dev)
            self._advance()
        return dev

    def h2d_wait(self, dev: torch.Tensor, host: torch.Tensor, transfer: int) -> torch.Tensor:
        """Complete the copy into ``dev``."""
        slot, offload = self._offload_of(host, transfer)
        record = record_in_flight(offload.record, transfer)
        address = dev.untyped_storage().data_ptr()
        with self._lock:
            self._forget_dropped(offload)
            started = (r for r in offload.reloads if r.address == address and r.record is record)
            reload = next(started, None)
            if reload is None:
                raise broken_order(record, "its reload is waited for, but not in flight")
            self._copy_in(slot, reload, dev)
            offload.reloads.remove(reload)
            if not offload.reloads:
                self._unfinished.pop(slot, None)
            self._advance()
        return dev

    def drain(self) -> None:
        """Take back host buffers that died."""
        self.arena.drain()

    def set_profiling(self, enabled: bool) -> None:
        """Change nothing: a simulated copy has no duration."""

    def snapshot(self) -> EngineSnapshot:
        """Return the counts since the last reset; nothing is timed."""
        self.arena.drain()
        return self._ledger.snapshot()

    def reset(self) -> None:
        """Set the counters to zero."""
        self._ledger.reset()

    def _offload_of(self, host: torch.Tensor, transfer: int) -> tuple[Slot, _Offload]:
        slot = slot_for(host, transfer)
        assert isinstance(slot.state, _Offload), "a slot's state belongs to the engine that started it"
        return slot, slot.state

    def _copy_out(self, slot: Slot, offload: _Offload) -> None:
        if offload.copied or offload.src is None:
            return
        slot.bytes().copy_(byte_span(offload.src))
        offload.copied = True
        self._ledger.count_copy(offload.record, "d2h", slot.num_bytes)

    def _finish_copies_of(self, src: torch.Tensor) -> None:
        """Let other copies out of the storage of ``src`` end first: until then it is not released."""
        address = src.untyped_storage().data_ptr()
        for slot, other in self._unfinished.items():
            if other.src is not None and other.src.untyped_storage().data_ptr() == address:
                self._copy_out(slot, other)

    def _copy_in(self, slot: Slot, reload: _Reload, dev: torch.Tensor) -> None:
        if reload.copied:
            return
        byte_span(dev).copy_(slot.bytes())
        reload.copied = True
        self._ledger.count_copy(reload.record, "h2d", slot.num_bytes)

    def _advance(self) -> None:
        """Complete some of the copies in flight, in an order of the seed's choosing."""
        if self._timing != "random":
            return
        slots = list(self._unfinished.items())
        self._random.shuffle(slots)
        for slot, offload in slots:
            if self._random.random() < 0.5:
                self._copy_out(slot, offload)
            for reload in offload.reloads:
                dev = reload.tensor()
                if dev is not None and self._random.random() < 0.5:
                    self._copy_in(slot, reload, dev)

    def _forget_dropped(self, offload: _Offload) -> None:
        """Drop reloads whose device buffer died unread: the backward that wanted them was given up."""
        dropped = [reload for reload in offload.reloads if reload.storage.expired()]
        for reload in dropped:
            offload.reloads.remove(reload)
        self._ledger.count_abandoned(len(dropped))

    def _release(self, slot: Slot) -> bool:
        """Poison a slot whose storage died; the arena asks again later if a copy is just being made."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._unfinished.pop(slot, None)
            offload = slot.state
            if isinstance(offload, _Offload):
                self._ledger.count_abandoned((not offload.waited) + len(offload.reloads))
            slot.state = None
            _poison_slot(slot)
        finally:
            self._lock.release()
        return True


def _poison_slot(slot: Slot) -> None:
    ctypes.memset(slot.address, _POISON, slot.block.num_bytes)
