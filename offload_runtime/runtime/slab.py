"""Slabs of host memory: mapped, bound to a NUMA node, faulted in, pinned, in that order.

Torch's own pinned allocator rounds every request up to a power of two and pins one tensor at a time. A slab
is pinned once, at its exact size, before the first step.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from offload_runtime.runtime.numa import bind_memory

PAGE_BYTES = mmap.PAGESIZE
_HUGE_PAGE_BYTES = 2 * 1024 * 1024
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14; Python's mmap does not name it."""
_MAP_FAILED = ctypes.c_void_p(-1).value
_FAULT_CHUNK_BYTES = 64 * 1024 * 1024
_MAX_FAULT_THREADS = 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Pinner(Protocol):
    """Lock host pages for a device's copy engine."""

    def pin(self, address: int, num_bytes: int) -> None:
        """Pin the range. Raises RuntimeError with the driver's reason if it cannot."""
        ...

    def unpin(self, address: int) -> None:
        """Undo :meth:`pin`; never raises."""
        ...


class Slab:
    """Own one mapping of host memory; it is unpinned and unmapped when the last reference is gone.

    ``memory_bound`` tells whether the kernel accepted the NUMA node; None when none was asked for.
    Raises MemoryError when the address range cannot be mapped, RuntimeError when it cannot be pinned.
    """

    def __init__(self, num_bytes: int, *, node: int | None = None, pinner: Pinner | None = None) -> None:
        self.num_bytes = round_to_pages(num_bytes)
        huge = self.num_bytes >= _HUGE_PAGE_BYTES
        start, mapped_bytes = _map(self.num_bytes + (_HUGE_PAGE_BYTES if huge else 0))
        self.address = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES if huge else start
        # Not at exit: the kernel takes everything back then, and copies may still be running.
        unmap = weakref.finalize(self, _unmap, start, mapped_bytes, os.getpid())
        unmap.atexit = False
        if huge:
            _advise(self.address, self.num_bytes, mmap.MADV_HUGEPAGE)
        self.memory_bound = None if node is None else bind_memory(self.address, self.num_bytes, node)
        if pinner is not None:
            # A child made by fork() must not share pinned pages copy-on-write: the next write here would
            # move this process to a new page while the device keeps the old one.
            _advise(self.address, self.num_bytes, mmap.MADV_DONTFORK)
            fault_in(self.address, self.num_bytes)
            pinner.pin(self.address, self.num_bytes)
            unmap.detach()
            release = weakref.finalize(
                self, _unpin_and_unmap, pinner, self.address, start, mapped_bytes, os.getpid()
            )
            release.atexit = False


def round_to_pages(num_bytes: int) -> int:
    """Round up to whole pages, at least one."""
    return max(1, -(-num_bytes // PAGE_BYTES)) * PAGE_BYTES


def fault_in(address: int, num_bytes: int) -> None:
    """Touch every page of the range, with several threads: zeroing pages is bound by one core."""
    starts = range(address, address + num_bytes, _FAULT_CHUNK_BYTES)
    lengths = [min(_FAULT_CHUNK_BYTES, address + num_bytes - start) for start in starts]
    num_threads = min(_MAX_FAULT_THREADS, len(os.sched_getaffinity(0)), len(lengths))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="offload-fault-in") as pool:
        list(pool.map(_fault_in_chunk, starts, lengths))


def _fault_in_chunk(address: int, num_bytes: int) -> None:
    if not _advise(address, num_bytes, _POPULATE_WRITE):
        ctypes.memset(address, 0, num_bytes)


def _map(num_bytes: int) -> tuple[int, int]:
    address = _libc.mmap(
        None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    if address is None or address == _MAP_FAILED:
        raise MemoryError(f"mmap of {num_bytes} bytes: {os.strerror(ctypes.get_errno())}")
    return int(address), num_bytes


def _advise(address: int, num_bytes: int, advice: int) -> bool:
    return bool(_libc.madvise(address, num_bytes, advice) == 0)


def _unmap(start: int, mapped_bytes: int, owner_pid: int) -> None:
    # In a forked child the range may already belong to somebody else.
    if os.getpid() == owner_pid:
        _libc.munmap(start, mapped_bytes)


def _unpin_and_unmap(pinner: Pinner, address: int, start: int, mapped_bytes: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        pinner.unpin(address)
        _libc.munmap(start, mapped_bytes)
