"""The host arena: one per kind of device, the owner of all pinned memory.

A *slot* is a stretch of arena memory that one host buffer occupies. The tensor over it is its own storage
(``torch.frombuffer`` over a ctypes object at the slot's address), and the slot comes back when that storage
dies: not when a tensor object dies, because autograd keeps storages alive through tensor objects of its
own. So an unused branch, an exception, a forward without backward and ``retain_graph`` all free or keep it
as they should.

    reserve (compile time) -> slabs -> allocate -> Slot -> host buffer -> its storage dies -> Slot free
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from offload_runtime.errors import Diagnostic, RefusedError, RunError, error_text
from offload_runtime.runtime.freelist import Block, FreeList
from offload_runtime.runtime.host_memory import HostMemory, describe, read_host_memory, refuse_if_short
from offload_runtime.runtime.numa import NumaBinding
from offload_runtime.runtime.slab import Pinner, Slab, round_to_pages
from offload_runtime.runtime.slot import Slot, forget_slot, tensor_over

ALIGNMENT_BYTES = 512
"""Copy engines reach full rate from 256-byte alignment; 512 keeps one transfer's cache lines its own."""

_MAX_GROWTH_BYTES = 64 * 1024 * 1024
_GROWTH_DIVISOR = 32
"""A slab that nobody reserved is at least 1/32 of the arena (3 %), so that growth ends after a few."""


@dataclass(frozen=True, slots=True)
class ArenaSnapshot:
    """Show the arena's memory. ``waste_bytes`` is what rounding and growth added to the bytes asked for.

    ``num_pins`` counts calls of the driver's pin function since the process began; in a steady state it
    does not grow.
    """

    reserved_bytes: int
    requested_bytes_peak: int
    in_use_bytes: int
    waste_bytes: int
    num_slabs: int
    num_pins: int
    numa: NumaBinding


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Hold memory planned for one compiled graph until :meth:`HostArena.cancel`."""

    sizes: tuple[int, ...]
    group: Hashable
    owner: Hashable
    host_limit_bytes: int | None

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)


def round_to_alignment(num_bytes: int) -> int:
    """Return the arena bytes that a buffer of ``num_bytes`` takes; a buffer of nothing takes one unit."""
    return max(1, -(-num_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


class HostArena:
    """Own slabs of host memory and give out slots. Thread-safe; finalizers never wait for its lock.

    ``pinner`` None leaves the memory pageable (no accelerator). ``host_memory`` is asked at each growth.
    """

    def __init__(
        self,
        *,
        pinner: Pinner | None = None,
        numa: NumaBinding | None = None,
        host_memory: Callable[[], HostMemory] = read_host_memory,
    ) -> None:
        self._pinner = pinner
        self._numa = numa or NumaBinding(reason="pageable memory, no device to be near to")
        self._read_host_memory = host_memory
        self._lock = threading.Lock()
        self._released: deque[Slot] = deque()
        self._postponed: list[Slot] = []
        self._free = FreeList()
        self._slabs: dict[int, Slab] = {}
        self._num_slabs_ever = 0
        self._reservations: set[Reservation] = set()
        self._reserved_bytes = 0
        self._in_use_bytes = 0
        self._requested_bytes = 0
        self._requested_bytes_peak = 0
        self._num_pins = 0
        self._pid = os.getpid()

    def reserve(
        self,
        sizes: Iterable[int],
        *,
        why: str,
        host_limit_bytes: int | None = None,
        group: Hashable | None = None,
        owner: Hashable | None = None,
    ) -> Reservation:
        """Pin the memory that one forward and backward of a graph needs, before its first step.

        ``sizes`` are the bytes of the buffers alive at once; ``why`` names the graph in a refusal;
        ``host_limit_bytes`` is the policy's ``limits.host``, for all reservations of one ``owner`` together.
        Reservations of one ``group`` (variants of one graph for other shapes) share memory, because only one
        of them runs at a time.
        Raises RefusedError: RUN505 (too little host memory), RUN507 (the driver cannot pin it).
        """
        rounded = tuple(sorted((round_to_alignment(size) for size in sizes), reverse=True))
        group, owner = (object() if name is None else name for name in (group, owner))
        reservation = Reservation(rounded, group, owner, host_limit_bytes)
        with self._exclusive():
            reservations = (*self._reservations, reservation)
            self._refuse_beyond_own_limit(reservation, reservations, why)
            missing = _planned_bytes(reservations) - self.reserved_bytes
            if missing > 0:
                self._grow(round_to_pages(missing), why, _limit_bytes(reservations), carve=rounded)
            self._reservations.add(reservation)
        return reservation

    def cancel(self, reservation: Reservation) -> None:
        """Give up a reservation whose graph is gone; its memory stays for others until :meth:`trim`."""
        with self._exclusive():
            self._reservations.discard(reservation)

    def trim(self) -> int:
        """Unpin and return to the system every slab that is free and not planned for; return its bytes."""
        with self._exclusive():
            spare = self.reserved_bytes - _planned_bytes(self._reservations)
            trimmed = 0
            for index, slab in sorted(self._slabs.items(), key=lambda item: -item[1].num_bytes):
                if slab.num_bytes > spare - trimmed:
                    continue
                fences = self._free.remove_slab(index, slab.num_bytes)
                if fences is None:
                    continue
                for fence in fences:
                    fence.synchronize()
                del self._slabs[index]
                self._reserved_bytes -= slab.num_bytes
                trimmed += slab.num_bytes
            return trimmed

    def allocate(self, num_bytes: int) -> Slot:
        """Return a slot for ``num_bytes``; grows only when more is in flight than was reserved.

        The caller puts a storage over it (:meth:`host_buffer`) or gives it back (:meth:`release`).
        Raises RunError (RUN506) when it has to grow and the host has no room.
        """
        rounded = round_to_alignment(num_bytes)
        with self._exclusive():
            block = self._free.take(rounded) or self._take_after_growth(rounded)
            slot = Slot(block, self._slabs[block.slab], num_bytes)
            self._in_use_bytes += rounded
            self._requested_bytes += num_bytes
            self._requested_bytes_peak = max(self._requested_bytes_peak, self._requested_bytes)
        return slot

    def host_buffer(
        self, num_bytes: int, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> tuple[Slot, torch.Tensor]:
        """Return a fresh slot and the tensor over it, whose storage now decides the slot's life.

        The content is undefined. The storage may be longer than the tensor needs, never shorter.
        Raises as :meth:`allocate`.
        """
        slot = self.allocate(num_bytes)
        return slot, tensor_over(slot, sizes, strides, dtype, when_dead=self.release)

    def drain(self) -> None:
        """Take back every slot whose storage died; never blocks.

        Whoever holds the lock now drains after it has let go, so nothing is left behind.
        """
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._drain_locked()
            finally:
                self._lock.release()

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of all slabs."""
        return self._reserved_bytes

    def snapshot(self) -> ArenaSnapshot:
        """Return the arena's numbers now."""
        with self._exclusive():
            reserved = self.reserved_bytes
            bound = [slab.memory_bound for slab in self._slabs.values()]
            return ArenaSnapshot(
                reserved_bytes=reserved,
                requested_bytes_peak=self._requested_bytes_peak,
                in_use_bytes=self._in_use_bytes,
                waste_bytes=max(0, reserved - self._requested_bytes_peak),
                num_slabs=len(self._slabs),
                num_pins=self._num_pins,
                numa=self._numa.with_memory(bool(bound) and all(bound)),
            )

    def release(self, slot: Slot) -> None:
        """Take a slot back. Never blocks: finalizers call it from any thread and inside collections."""
        if sys.is_finalizing() or os.getpid() != self._pid:
            return
        forget_slot(slot)
        self._released.append(slot)
        self.drain()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock, and afterwards take back what died meanwhile."""
        try:
            with self._lock:
                self._drain_locked()
                yield
        finally:
            self.drain()

    def _drain_locked(self) -> None:
        postponed, self._postponed = self._postponed, []
        self._released.extend(postponed)
        for _ in range(len(self._released)):
            slot = self._released.popleft()
            if slot.on_release is not None and not slot.on_release(slot):
                self._postponed.append(slot)
                continue
            self._free.give(replace(slot.block, fences=slot.fences))
            self._in_use_bytes -= slot.block.num_bytes
            self._requested_bytes -= slot.num_bytes

    def _take_after_growth(self, rounded: int) -> Block:
        spare = min(_MAX_GROWTH_BYTES, self.reserved_bytes // _GROWTH_DIVISOR)
        try:
            self._grow(
                round_to_pages(max(rounded, spare)),
                "one more host buffer than planned",
                _limit_bytes(self._reservations),
            )
        except RefusedError as refusal:
            cause = refusal.diagnostics[0]
            message = f"the host arena cannot grow: {cause.message}"
            hint = f"run fewer forwards before their backward, or {cause.hint}"
            raise RunError(Diagnostic("RUN506", "error", message, hint=hint)) from refusal
        block = self._free.take(rounded)
        assert block is not None, "a new slab holds at least the block it was made for"
        return block

    def _refuse_beyond_own_limit(
        self, reservation: Reservation, reservations: Iterable[Reservation], why: str
    ) -> None:
        """Hold a policy to its limit where the arena has room already, made for somebody else."""
        limit = reservation.host_limit_bytes
        own = _planned_bytes(other for other in reservations if other.owner == reservation.owner)
        if limit is not None and own > limit:
            reserved = own - reservation.num_bytes
            refuse_if_short(
                self._read_host_memory(),
                reservation.num_bytes,
                reserved_bytes=reserved,
                limit_bytes=limit,
                why=why,
            )

    def _grow(self, num_bytes: int, why: str, limit_bytes: int | None, carve: Sequence[int] = ()) -> None:
        memory = self._read_host_memory()
        refuse_if_short(
            memory, num_bytes, reserved_bytes=self.reserved_bytes, limit_bytes=limit_bytes, why=why
        )
        try:
            slab = Slab(num_bytes, node=self._numa.node, pinner=self._pinner)
        except (MemoryError, RuntimeError) as error:
            message = f"{why}: {num_bytes} bytes of host memory cannot be had: {error_text(error)}"
            numbers = describe(memory, limit_bytes)
            hint = "raise the memlock limit (ulimit -l), lower limits.budget, or give the job more memory"
            raise RefusedError(Diagnostic("RUN507", "error", f"{message} ({numbers})", hint=hint)) from error
        index = self._num_slabs_ever
        self._num_slabs_ever += 1
        self._slabs[index] = slab
        self._reserved_bytes += slab.num_bytes
        self._num_pins += self._pinner is not None
        self._free.add_slab(index, slab.num_bytes, _fitting(carve, slab.num_bytes))


def _planned_bytes(reservations: Iterable[Reservation]) -> int:
    """Return the bytes needed when one reservation of each group runs."""
    largest: Counter[Hashable] = Counter()
    for reservation in reservations:
        largest[reservation.group] = max(largest[reservation.group], reservation.num_bytes)
    return largest.total()


def _limit_bytes(reservations: Iterable[Reservation]) -> int | None:
    """Return the bytes that all owners' policies allow together, or None where one of them sets no limit."""
    limits: dict[Hashable, int | None] = {r.owner: r.host_limit_bytes for r in reservations}
    known = [limit for limit in limits.values() if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def _fitting(sizes: Sequence[int], num_bytes: int) -> list[int]:
    """Return the sizes, largest first, that fit into ``num_bytes`` together."""
    fitting: list[int] = []
    for size in sizes:
        if size <= num_bytes:
            fitting.append(size)
            num_bytes -= size
    return fitting
