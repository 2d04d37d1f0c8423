"""How much host memory there is, over trees of fake ``/proc`` and ``/sys/fs/cgroup``."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.errors import RefusedError
from offload_runtime.runtime.host_memory import HostMemory, read_host_memory, refuse_if_short

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> Path:
    meminfo = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "9:cpuset:/\n4:cpu,memory:/job\n0::/\n"}

LIMITS: dict[str, tuple[dict[str, str], int | None, int | None]] = {
    "no cgroup at all": ({}, None, None),
    "v2 without a limit": (
        {**V2, "sys/fs/cgroup/job/step/memory.max": "max\n", "sys/fs/cgroup/job/step/memory.current": "5\n"},
        None,
        None,
    ),
    "v2 limit on the group itself": (
        {
            **V2,
            "sys/fs/cgroup/job/step/memory.max": str(8 * GIB),
            "sys/fs/cgroup/job/step/memory.current": str(3 * GIB),
        },
        8 * GIB,
        3 * GIB,
    ),
    "v2 limit on a parent counts": (
        {
            **V2,
            "sys/fs/cgroup/job/step/memory.max": "max",
            "sys/fs/cgroup/job/memory.max": str(6 * GIB),
            "sys/fs/cgroup/job/memory.current": str(1 * GIB),
        },
        6 * GIB,
        1 * GIB,
    ),
    "v2 in a container that sees only its own root": (
        {**V2, "sys/fs/cgroup/memory.max": str(4 * GIB), "sys/fs/cgroup/memory.current": "0"},
        4 * GIB,
        0,
    ),
    "page cache can be taken back": (
        {
            **V2,
            "sys/fs/cgroup/job/step/memory.max": str(8 * GIB),
            "sys/fs/cgroup/job/step/memory.current": str(5 * GIB),
            "sys/fs/cgroup/job/step/memory.stat": f"anon 1\ninactive_file {4 * GIB}\n",
        },
        8 * GIB,
        1 * GIB,
    ),
    "v1 limit": (
        {
            **V1,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(16 * GIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
        },
        16 * GIB,
        1 * GIB,
    ),
    "v1 writes no limit as a huge number": (
        {**V1, "sys/fs/cgroup/memory/job/memory.limit_in_bytes": NO_LIMIT_V1},
        None,
        None,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_tightest_cgroup_limit_on_the_path_is_found(name: str, tmp_path: Path) -> None:
    files, limit, used = LIMITS[name]
    memory = read_host_memory(tree(tmp_path, files), {})
    assert (memory.cgroup_limit_bytes, memory.cgroup_used_bytes) == (limit, used)
    assert (memory.total_bytes, memory.available_bytes) == (64 * GIB, 40 * GIB)


def test_a_machine_that_tells_nothing_limits_nothing(tmp_path: Path) -> None:
    memory = read_host_memory(tmp_path, {})
    assert memory.free_bytes is None
    assert memory.default_limit_bytes is None
    refuse_if_short(memory, 1 << 50, reserved_bytes=0, limit_bytes=None, why="graph 0")


def test_this_machine_can_be_read() -> None:
    memory = read_host_memory()
    assert memory.free_bytes is not None
    assert memory.total_bytes is not None
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_free_is_the_lesser_of_machine_and_cgroup() -> None:
    assert HostMemory(64 * GIB, 40 * GIB, 8 * GIB, 3 * GIB).free_bytes == 5 * GIB
    assert HostMemory(64 * GIB, 2 * GIB, 8 * GIB, 3 * GIB).free_bytes == 2 * GIB
    assert HostMemory(64 * GIB, 40 * GIB, 8 * GIB, 9 * GIB).free_bytes == 0


def test_ranks_on_one_host_share_the_default(tmp_path: Path) -> None:
    memory = read_host_memory(tree(tmp_path, {}), {"LOCAL_WORLD_SIZE": "8"})
    assert memory.default_limit_bytes == int(64 * GIB * 0.8) // 8
    assert read_host_memory(tree(tmp_path, {}), {"LOCAL_WORLD_SIZE": "many"}).num_local_ranks == 1


REFUSALS: dict[str, tuple[HostMemory, int, int, int | None, list[str]]] = {
    "more than is free": (
        HostMemory(64 * GIB, 10 * GIB, 16 * GIB, 12 * GIB, memlock_bytes=8 << 20),
        6 * GIB,
        0,
        64 * GIB,
        ["6442450944 bytes", "only 4 GiB", "cgroup limit 16 GiB", "ulimit -l 8 MiB", "limits.host 64 GiB"],
    ),
    "more than the policy's limit, what is reserved included": (
        HostMemory(64 * GIB, 40 * GIB),
        3 * GIB,
        2 * GIB,
        4 * GIB,
        ["the policy's limits.host is 4 GiB per rank", "beside 2 GiB reserved"],
    ),
    "more than the default": (
        HostMemory(10 * GIB, 10 * GIB),
        9 * GIB,
        0,
        None,
        ["80 % of the allowed host memory is 8 GiB per rank", "limits.host not set"],
    ),
    "a limit of zero means zero": (
        HostMemory(64 * GIB, 40 * GIB),
        1,
        0,
        0,
        ["the policy's limits.host is 0"],
    ),
    "one rank of four": (
        HostMemory(40 * GIB, 40 * GIB, num_local_ranks=4),
        9 * GIB,
        0,
        None,
        ["4 ranks on this host"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_too_little_host_memory_is_refused_with_the_numbers(name: str) -> None:
    memory, wanted, reserved, limit, words = REFUSALS[name]
    with pytest.raises(RefusedError) as refusal:
        refuse_if_short(memory, wanted, reserved_bytes=reserved, limit_bytes=limit, why="graph 0")
    (diagnostic,) = refusal.value.diagnostics
    assert diagnostic.code == "RUN505"
    assert diagnostic.hint
    assert diagnostic.message.startswith("graph 0 needs")
    assert [word for word in words if word not in diagnostic.message] == []
