"""Put threads and pinned pages on the NUMA node of the GPU: best effort, reported, switchable.

A copy between a GPU and memory of the other socket crosses the link between the sockets, which is slower and
shared. Nothing here may stop a training run: every failure becomes the ``reason`` of a value.
Sources: Linux ``Documentation/ABI/stable/sysfs-devices-node`` and ``sysfs-bus-pci`` (numa_node, -1 for
unknown), ``set_mempolicy(2)``, ``sched_setaffinity(2)``.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_MPOL_PREFERRED = 1
_MBIND_SYSCALL = {"x86_64": 237, "aarch64": 235}
_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class NumaBinding:
    """Say what was bound to which node, and why not more.

    ``cpus`` are the logical CPUs the threads may run on; ``memory_bound`` is about the arena's slabs.
    """

    node: int | None = None
    num_threads_bound: int = 0
    cpus: tuple[int, ...] = ()
    memory_bound: bool = False
    reason: str = ""

    def __str__(self) -> str:
        if self.node is None:
            return f"not bound: {self.reason}"
        memory = "pinned pages on the node" if self.memory_bound else "pinned pages where they fell"
        bound = f"{self.num_threads_bound} threads on {len(self.cpus)} CPUs"
        threads = bound if self.cpus else "threads not bound"
        return f"node {self.node}: {threads}, {memory}" + (f" ({self.reason})" if self.reason else "")

    def with_memory(self, bound: bool | None) -> NumaBinding:
        """Return this binding with the outcome of binding the slabs (None: nothing to bind)."""
        return replace(self, memory_bound=bool(bound))


class ThreadAffinity:
    """Ask and tell the kernel which CPUs the threads of this process may run on."""

    def ids(self) -> list[int]:
        """Return the ids of all threads, those of libraries included."""
        return sorted(int(name) for name in os.listdir("/proc/self/task"))

    def allowed(self, thread_id: int) -> set[int]:
        """Return the CPUs of one thread; 0 is the calling one. Raises OSError."""
        return os.sched_getaffinity(thread_id)

    def restrict(self, thread_id: int, cpus: set[int]) -> None:
        """Let one thread run on ``cpus`` only. Raises OSError."""
        os.sched_setaffinity(thread_id, cpus)


def numa_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the user left NUMA binding on (``OFFLOAD_NUMA=0`` turns it off)."""
    return environ.get("OFFLOAD_NUMA", "1") != "0"


def node_of_pci_device(pci_address: str, *, sys_root: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of a PCI device such as ``0000:1b:00.0``, or None where it is unknown.

    sysfs says -1 for "unknown"; that is never taken for node 0.
    """
    try:
        text = (sys_root / "bus/pci/devices" / pci_address.lower() / "numa_node").read_text()
        node = int(text)
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cpus_of_node(node: int, *, sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """Return the logical CPUs of a node, ascending; empty where sysfs does not tell."""
    try:
        return parse_cpu_list((sys_root / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return ()


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, ``0-3,8,10-11``. Raises ValueError on anything else."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        cpus.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(cpus))


def bind_threads(
    pci_address: str | None,
    *,
    sys_root: Path = Path("/sys"),
    threads: ThreadAffinity | None = None,
    environ: Mapping[str, str] = os.environ,
) -> NumaBinding:
    """Bind every thread of this process to the CPUs of the GPU's node, within the allowed set.

    Threads started later inherit the mask of the thread that starts them. A thread whose present mask
    lies outside the node keeps it. ``threads`` stands in for the kernel in tests.
    """
    threads = threads or ThreadAffinity()
    if not numa_enabled(environ):
        return NumaBinding(reason="switched off by OFFLOAD_NUMA=0")
    if pci_address is None:
        return NumaBinding(reason="the device has no PCI address")
    node = node_of_pci_device(pci_address, sys_root=sys_root)
    if node is None:
        return NumaBinding(reason=f"the node of PCI device {pci_address} is unknown")
    node_cpus = cpus_of_node(node, sys_root=sys_root)
    if not node_cpus:
        return NumaBinding(node, reason=f"the CPUs of node {node} are unknown")
    cpus = tuple(sorted(set(node_cpus) & threads.allowed(0)))
    if not cpus:
        return NumaBinding(node, reason=f"none of the CPUs of node {node} is allowed to this process")
    num_bound, failures = 0, []
    for thread_id in threads.ids():
        try:
            wanted = threads.allowed(thread_id) & set(cpus)
            if wanted:
                threads.restrict(thread_id, wanted)
                num_bound += 1
        except ProcessLookupError:
            continue  # the thread ended meanwhile
        except OSError as error:
            failures.append(f"thread {thread_id}: {error.strerror}")
    return NumaBinding(node, num_bound, cpus, reason="; ".join(failures[:3]))


def bind_memory(address: int, num_bytes: int, node: int) -> bool:
    """Ask the kernel to place untouched pages of the range on ``node``; tell whether it agreed.

    The node is preferred, not required: when it is full, pages come from elsewhere and training goes on.
    """
    syscall = _MBIND_SYSCALL.get(platform.machine())
    if syscall is None:
        return False
    num_words = node // _LONG_BITS + 1
    mask = (ctypes.c_ulong * num_words)()
    mask[node // _LONG_BITS] = 1 << (node % _LONG_BITS)
    # The kernel reads maxnode - 1 bits.
    max_node = num_words * _LONG_BITS + 1
    result = _libc.syscall(
        ctypes.c_long(syscall),
        ctypes.c_void_p(address),
        ctypes.c_ulong(num_bytes),
        ctypes.c_int(_MPOL_PREFERRED),
        ctypes.byref(mask),
        ctypes.c_ulong(max_node),
        ctypes.c_uint(0),
    )
    return bool(result == 0)
