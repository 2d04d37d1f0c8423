"""Which bytes of the host arena are free: exact-size bins first, coalesced memory behind them.

A training step asks for the same sizes again and again, so a block that comes back stays whole, in a bin
of its size, and the next step finds it there: no splitting, no search, no fragmentation. Only when a new
size arrives are the bins emptied into coalesced memory, from which the best fit is cut.

    take(n):  bin of size n  ->  best fit in coalesced memory  ->  empty all bins, best fit  ->  None
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Fence(Protocol):
    """Mark the point on a copy lane after which memory may be overwritten.

    Fences of one lane complete in the order of ``sequence``.
    """

    @property
    def lane(self) -> Hashable: ...

    @property
    def sequence(self) -> int: ...

    def synchronize(self) -> None:
        """Block the calling thread until the copy is done."""
        ...


Fences = tuple[Fence, ...]


def merge_fences(*groups: Iterable[Fence]) -> Fences:
    """Keep the last fence of each lane: it implies the earlier ones."""
    last: dict[Hashable, Fence] = {}
    for group in groups:
        for fence in group:
            known = last.get(fence.lane)
            if known is None or known.sequence < fence.sequence:
                last[fence.lane] = fence
    return tuple(last.values())


@dataclass(frozen=True, slots=True)
class Block:
    """Name ``num_bytes`` at ``offset`` of one slab, and the copies that may still touch them."""

    slab: int
    offset: int
    num_bytes: int
    fences: Fences = ()

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


class FreeList:
    """Track the free bytes of numbered slabs. Not thread-safe: the arena holds its lock around it."""

    def __init__(self) -> None:
        self._bins: dict[int, list[Block]] = defaultdict(list)
        self._coalesced: list[Block] = []
        self._num_free_bytes = 0

    @property
    def num_free_bytes(self) -> int:
        return self._num_free_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Return the size of the largest block that :meth:`take` could give."""
        self._empty_bins()
        return max((block.num_bytes for block in self._coalesced), default=0)

    def add_slab(self, slab: int, num_bytes: int, carve: Sequence[int] = ()) -> None:
        """Add a new slab; ``carve`` are the block sizes to lay out in it at once, from its start.

        Raises ValueError if the carved sizes exceed the slab.
        """
        if sum(carve) > num_bytes:
            raise ValueError(f"cannot carve {sum(carve)} bytes out of a slab of {num_bytes}")
        offset = 0
        for size in carve:
            self._bins[size].append(Block(slab, offset, size))
            offset += size
        if offset < num_bytes:
            self._coalesced.append(Block(slab, offset, num_bytes - offset))
        self._num_free_bytes += num_bytes

    def take(self, num_bytes: int) -> Block | None:
        """Return a free block of exactly ``num_bytes``, or None when no free run is long enough."""
        block = self._take_from_bin(num_bytes) or self._take_best_fit(num_bytes)
        if block is None and self._num_free_bytes >= num_bytes:
            self._empty_bins()
            block = self._take_best_fit(num_bytes)
        if block is not None:
            self._num_free_bytes -= num_bytes
        return block

    def give(self, block: Block) -> None:
        """Take back a block that :meth:`take` gave, with the fences of the copies that used it."""
        self._bins[block.num_bytes].append(block)
        self._num_free_bytes += block.num_bytes

    def remove_slab(self, slab: int, num_bytes: int) -> Fences | None:
        """Forget a slab that is wholly free and return its fences; None if any of it is in use."""
        self._empty_bins()
        for index, block in enumerate(self._coalesced):
            if block.slab == slab and block.num_bytes == num_bytes:
                del self._coalesced[index]
                self._num_free_bytes -= num_bytes
                return block.fences
        return None

    def _take_from_bin(self, num_bytes: int) -> Block | None:
        blocks = self._bins.get(num_bytes)
        return blocks.pop() if blocks else None

    def _take_best_fit(self, num_bytes: int) -> Block | None:
        fitting = [(b.num_bytes, i) for i, b in enumerate(self._coalesced) if b.num_bytes >= num_bytes]
        if not fitting:
            return None
        index = min(fitting)[1]
        whole = self._coalesced[index]
        if whole.num_bytes == num_bytes:
            del self._coalesced[index]
        else:
            self._coalesced[index] = Block(
                whole.slab, whole.offset + num_bytes, whole.num_bytes - num_bytes, whole.fences
            )
        return Block(whole.slab, whole.offset, num_bytes, whole.fences)

    def _empty_bins(self) -> None:
        """Return every binned block to coalesced memory and join neighbours."""
        blocks = self._coalesced + [block for bin_ in self._bins.values() for block in bin_]
        self._bins.clear()
        blocks.sort(key=lambda block: (block.slab, block.offset))
        joined: list[Block] = []
        for block in blocks:
            last = joined[-1] if joined else None
            if last is not None and last.slab == block.slab and last.end == block.offset:
                joined[-1] = Block(
                    last.slab,
                    last.offset,
                    last.num_bytes + block.num_bytes,
                    merge_fences(last.fences, block.fences),
                )
            else:
                joined.append(block)
        self._coalesced = joined
