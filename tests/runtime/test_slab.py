"""Slabs: real mappings, pinned in the right order, given back once and never by a child."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os

import pytest

from offload_runtime.runtime.slab import PAGE_BYTES, Slab, fault_in, round_to_pages


class RecordingPinner:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.pinned: list[tuple[int, int]] = []
        self.unpinned: list[int] = []
        self.resident_when_pinned = True

    def pin(self, address: int, num_bytes: int) -> None:
        if self.fails:
            raise RuntimeError("cudaHostRegister: out of memory")
        self.pinned.append((address, num_bytes))
        self.resident_when_pinned &= resident_pages(address, num_bytes) == num_bytes // PAGE_BYTES

    def unpin(self, address: int) -> None:
        self.unpinned.append(address)


def resident_pages(address: int, num_bytes: int) -> int:
    pages = (ctypes.c_ubyte * (num_bytes // PAGE_BYTES))()
    result = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), pages)
    assert result == 0, "the range is not mapped"
    return sum(page & 1 for page in pages)


def is_mapped(address: int) -> bool:
    page = (ctypes.c_ubyte * 1)()
    return ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), page) == 0


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0, PAGE_BYTES), (1, PAGE_BYTES), (PAGE_BYTES, PAGE_BYTES), (PAGE_BYTES + 1, 2 * PAGE_BYTES)],
)
def test_sizes_are_rounded_to_pages_and_no_further(asked: int, given: int) -> None:
    assert round_to_pages(asked) == given


def test_a_slab_is_writable_over_its_whole_length() -> None:
    slab = Slab(3 * 1024 * 1024)
    ctypes.memset(slab.address, 0xAB, slab.num_bytes)
    assert ctypes.string_at(slab.address + slab.num_bytes - 1, 1) == b"\xab"


def test_a_large_slab_begins_on_a_huge_page() -> None:
    assert Slab(5 * 1024 * 1024).address % (2 * 1024 * 1024) == 0


def test_pageable_slabs_are_not_touched_before_use() -> None:
    slab = Slab(8 * 1024 * 1024)
    assert resident_pages(slab.address, slab.num_bytes) == 0


def test_pages_are_there_before_they_are_pinned() -> None:
    pinner = RecordingPinner()
    slab = Slab(4 * 1024 * 1024, pinner=pinner)
    assert pinner.pinned == [(slab.address, slab.num_bytes)]
    assert pinner.resident_when_pinned


def test_fault_in_works_where_the_kernel_has_no_populate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_runtime.runtime.slab._advise", lambda *_: False)
    slab = Slab(200 * PAGE_BYTES)
    fault_in(slab.address, slab.num_bytes)
    assert resident_pages(slab.address, slab.num_bytes) == 200


def test_a_dead_slab_is_unpinned_once_and_unmapped() -> None:
    pinner = RecordingPinner()
    slab = Slab(PAGE_BYTES * 4, pinner=pinner)
    address = slab.address
    del slab
    gc.collect()
    assert pinner.unpinned == [address]
    assert not is_mapped(address)


def test_a_slab_that_cannot_be_pinned_leaves_no_mapping_behind() -> None:
    before = _mapped_kib()
    for _ in range(20):
        with pytest.raises(RuntimeError, match="out of memory"):
            Slab(32 * 1024 * 1024, pinner=RecordingPinner(fails=True))
    gc.collect()
    # The fault-in threads' stacks and malloc arenas are in this too; the slabs would be 640 MiB.
    assert _mapped_kib() - before < 320 * 1024


def test_a_range_that_cannot_be_mapped_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="mmap of"):
        Slab(1 << 60)


def test_a_forked_child_neither_sees_nor_unpins_pinned_memory() -> None:
    pinner = RecordingPinner()
    slab: Slab | None = Slab(PAGE_BYTES * 4, pinner=pinner)
    assert slab is not None
    address = slab.address
    child = os.fork()
    if child == 0:
        mapped = is_mapped(address)
        slab = None
        gc.collect()
        os._exit(int(mapped) + 2 * len(pinner.unpinned))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert is_mapped(address)
    assert mmap.PAGESIZE == PAGE_BYTES


def _mapped_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
