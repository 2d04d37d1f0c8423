"""Facts of a machine are read from where the kernel and the launcher put them; what is not there is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offload_runtime.fact_values import wrong_value
from offload_runtime.facts import FACTS
from offload_runtime.hardware import load_hardware
from offload_runtime.runtime.machine_facts import (
    hardware_facts,
    host_facts,
    is_launched,
    known_facts,
    numa_facts,
    parallel_facts,
    pcie_facts,
)

ADDRESS = "0000:1B:00.0"
DEGREES = ("data_parallel", "pipeline_parallel", "tensor_parallel", "expert_parallel")


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_this_process_knows_are_facts_of_the_table_with_values_they_can_have() -> None:
    facts = known_facts()
    assert {name: value for name, value in facts.items() if wrong_value(FACTS[name], value)} == {}
    assert facts["host_cores"] == len(os.sched_getaffinity(0))
    assert facts["accelerator"] in ("none", "cuda", "other")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"world_size": 1, "ranks_per_node": 1, **dict.fromkeys(DEGREES, 1)}),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, {"world_size": 16, "ranks_per_node": 8}),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, {"world_size": 4}),
        ({"WORLD_SIZE": "many"}, {"world_size": 1, "ranks_per_node": 1, **dict.fromkeys(DEGREES, 1)}),
    ],
    ids=str,
)
def test_only_a_process_that_is_alone_knows_the_degrees_of_parallelism(
    environ: dict[str, str], expected: dict[str, int]
) -> None:
    assert parallel_facts(environ) == expected
    assert is_launched(environ) is (expected["world_size"] > 1)


def test_host_memory_is_the_cgroup_s_where_that_is_less(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "512000")
    write(tmp_path, "sys/fs/cgroup/job/memory.current", "112000")
    for node in ("node0", "node1", "node_possible"):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
    facts = host_facts(tmp_path)
    assert facts["host_total_bytes"] == 512_000
    assert facts["host_available_bytes"] == 400_000
    assert facts["num_numa_nodes"] == 2


def test_a_host_that_tells_nothing_leaves_its_facts_unknown(tmp_path: Path) -> None:
    assert set(host_facts(tmp_path)) == {"host_cores"}


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("32.0 GT/s PCIe", "16", {"pcie_generation": 5, "pcie_link_width": 16}),
        ("2.5 GT/s PCIe", "8", {"pcie_generation": 1, "pcie_link_width": 8}),
        ("Unknown", "0", {}),
        ("7 GT/s", "x", {}),
    ],
)
def test_the_link_is_as_it_runs_now(tmp_path: Path, speed: str, width: str, expected: dict[str, int]) -> None:
    write(tmp_path, f"bus/pci/devices/{ADDRESS.lower()}/current_link_speed", f"{speed}\n")
    write(tmp_path, f"bus/pci/devices/{ADDRESS.lower()}/current_link_width", f"{width}\n")
    assert pcie_facts(ADDRESS, tmp_path) == expected
    assert pcie_facts("0000:00:00.0", tmp_path) == {}


LOCAL, REMOTE, UNKNOWN = {"numa_local": True}, {"numa_local": False}, {}


@pytest.mark.parametrize(
    ("node", "cpus", "rank", "process"),
    [
        ("1", {4, 5}, LOCAL, LOCAL),
        ("1", set(range(8)), REMOTE, UNKNOWN),
        ("0", {4}, REMOTE, REMOTE),
        ("-1", {0}, UNKNOWN, UNKNOWN),
    ],
    ids=["bound", "not bound", "bound to the other node", "node unknown"],
)
def test_a_training_process_is_local_if_bound_to_the_node_and_a_command_does_not_know(
    tmp_path: Path, node: str, cpus: set[int], rank: dict[str, bool], process: dict[str, bool]
) -> None:
    write(tmp_path, f"bus/pci/devices/{ADDRESS.lower()}/numa_node", node)
    write(tmp_path, "devices/system/node/node0/cpulist", "0-3")
    write(tmp_path, "devices/system/node/node1/cpulist", "4-7")
    assert numa_facts(ADDRESS, cpus, tmp_path, asker="rank") == rank
    assert numa_facts(ADDRESS, cpus, tmp_path, asker="process") == process
    assert numa_facts(ADDRESS, cpus, tmp_path, asker="command") == UNKNOWN


def test_on_a_host_of_one_node_every_process_is_local(tmp_path: Path) -> None:
    write(tmp_path, f"bus/pci/devices/{ADDRESS.lower()}/numa_node", "0")
    write(tmp_path, "devices/system/node/node0/cpulist", "0-7")
    assert numa_facts(ADDRESS, {3}, tmp_path, asker="command") == LOCAL


def test_a_profile_stands_in_for_a_machine_and_leaves_open_what_it_does_not_state() -> None:
    facts = hardware_facts(load_hardware("h100-pcie5"))
    assert {name: value for name, value in facts.items() if wrong_value(FACTS[name], value)} == {}
    assert facts["hardware"] == "h100-pcie5"
    assert facts["link_d2h_gbps"] == pytest.approx(55.3)
    assert not {"host_total_bytes", "gpu_free_bytes", "num_gpus"} & set(facts)
