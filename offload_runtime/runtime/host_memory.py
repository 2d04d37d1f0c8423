"""How much host memory there is for pinned buffers: the machine's, the cgroup's, and other ranks' shares.

Exceeding a cgroup limit is not an exception but the kernel killing the process, so the arena asks here before
it touches a page. Sources: Linux ``cgroup-v2``, ``cgroup-v1/memory``, ``proc_meminfo(5)``.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.units import format_size_short

DEFAULT_HOST_FRACTION = 0.8
"""Share of the allowed host memory that may be pinned when the policy names no ``limits.host``."""

_UNLIMITED_V1_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size; anything near it means that."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Describe this host's memory as one process may use it; None means unknown or unlimited.

    ``num_local_ranks`` processes of one job share the host (``LOCAL_WORLD_SIZE``).
    """

    total_bytes: int | None
    available_bytes: int | None
    cgroup_limit_bytes: int | None = None
    cgroup_used_bytes: int | None = None
    memlock_bytes: int | None = None
    num_local_ranks: int = 1

    @property
    def free_bytes(self) -> int | None:
        """Return what can be touched now without reclaim or a kill."""
        free = [self.available_bytes]
        if self.cgroup_limit_bytes is not None:
            free.append(max(0, self.cgroup_limit_bytes - (self.cgroup_used_bytes or 0)))
        return min((f for f in free if f is not None), default=None)

    @property
    def allowed_bytes(self) -> int | None:
        """Return what the host or the cgroup would give this job at most, whichever is less."""
        limits = [limit for limit in (self.total_bytes, self.cgroup_limit_bytes) if limit is not None]
        return min(limits, default=None)

    @property
    def default_limit_bytes(self) -> int | None:
        """Return the pinned bytes one rank may take when nobody set a limit."""
        allowed = self.allowed_bytes
        return None if allowed is None else int(allowed * DEFAULT_HOST_FRACTION) // self.num_local_ranks


def read_host_memory(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> HostMemory:
    """Read the limits of this process from ``/proc`` and ``/sys/fs/cgroup`` below ``root``."""
    meminfo = _meminfo(root / "proc/meminfo")
    cgroup_limit, cgroup_used = _cgroup_memory(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    ranks = environ.get("LOCAL_WORLD_SIZE", "1")
    return HostMemory(
        total_bytes=meminfo.get("MemTotal"),
        available_bytes=meminfo.get("MemAvailable"),
        cgroup_limit_bytes=cgroup_limit,
        cgroup_used_bytes=cgroup_used,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        num_local_ranks=max(1, int(ranks)) if ranks.isdecimal() else 1,
    )


def refuse_if_short(
    memory: HostMemory, wanted_bytes: int, *, reserved_bytes: int, limit_bytes: int | None, why: str
) -> None:
    """Raise RefusedError (RUN505) unless ``wanted_bytes`` more can be pinned, naming every number.

    ``reserved_bytes`` are this process's already; ``limit_bytes`` is the policy's ``limits.host`` per rank
    (None: :attr:`HostMemory.default_limit_bytes`).
    """
    total = reserved_bytes + wanted_bytes
    limit = memory.default_limit_bytes if limit_bytes is None else limit_bytes
    reasons = []
    if limit is not None and total > limit:
        kind = "the policy's limits.host" if limit_bytes is not None else "80 % of the allowed host memory"
        reasons.append(f"{kind} is {format_size_short(limit)} per rank")
    free = memory.free_bytes
    if free is not None and wanted_bytes > free:
        reasons.append(f"only {format_size_short(free)} of host memory are free")
    if not reasons:
        return
    message = (
        f"{why} needs {format_size_short(wanted_bytes)} ({wanted_bytes} bytes) of pinned host memory, "
        f"rounding included, beside {format_size_short(reserved_bytes)} reserved already, "
        f"but {' and '.join(reasons)} ({describe(memory, limit_bytes)})"
    )
    hint = "lower limits.budget, raise limits.host within the machine's memory, or give the job more memory"
    raise RefusedError(Diagnostic("RUN505", "error", message, hint=hint))


def describe(memory: HostMemory, limit_bytes: int | None = None) -> str:
    """Write the numbers that decide over pinned memory in one line."""
    parts = [
        f"free {_size(memory.free_bytes)}",
        f"total {_size(memory.total_bytes)}",
        f"cgroup limit {_size(memory.cgroup_limit_bytes, 'none')}",
        f"ulimit -l {_size(memory.memlock_bytes, 'unlimited')}",
        f"limits.host {_size(limit_bytes, 'not set')}",
    ]
    if memory.num_local_ranks > 1:
        parts.append(f"{memory.num_local_ranks} ranks on this host")
    return ", ".join(parts)


def _size(num_bytes: int | None, otherwise: str = "unknown") -> str:
    return otherwise if num_bytes is None else format_size_short(num_bytes)


def _meminfo(path: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def _cgroup_memory(root: Path) -> tuple[int | None, int | None]:
    """Return the tightest limit on the path to this process's group and the bytes used there."""
    found: list[tuple[int, int]] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's: then only the mount's own root exists.
        folder = base / group.strip("/")
        for place in (folder, *folder.parents):
            limit_bytes = _number(place / limit)
            if limit_bytes is not None and limit_bytes < _UNLIMITED_V1_BYTES:
                cached = _statistic(place / "memory.stat", "inactive_file")
                found.append((limit_bytes, max(0, (_number(place / used) or 0) - cached)))
            if place == base:
                break
    if not found:
        return None, None
    return min(found, key=lambda pair: pair[0] - pair[1])


def _statistic(path: Path, name: str) -> int:
    """Return one counter of ``memory.stat``; the page cache in it can be taken back without a kill."""
    counters = dict(line.split(" ", 1) for line in _text(path).splitlines() if " " in line)
    value = counters.get(f"total_{name}", counters.get(name, "0"))
    return int(value) if value.isdecimal() else 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
