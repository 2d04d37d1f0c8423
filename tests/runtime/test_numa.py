"""NUMA binding over fake sysfs trees and a fake kernel: whatever is missing, training goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offload_runtime.runtime.numa import (
    NumaBinding,
    ThreadAffinity,
    bind_memory,
    bind_threads,
    cpus_of_node,
    node_of_pci_device,
    parse_cpu_list,
)
from offload_runtime.runtime.slab import PAGE_BYTES, Slab

GPU = "0000:1b:00.0"


def sysfs(root: Path, *, gpu_node: str | None, nodes: dict[int, str]) -> Path:
    if gpu_node is not None:
        device = root / "bus/pci/devices" / GPU
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{gpu_node}\n")
    for node, cpus in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return root


class FakeThreads(ThreadAffinity):
    """A process of three threads; one of them may have ended, another may be untouchable."""

    def __init__(self, allowed: set[int], *, ended: int | None = None, forbidden: int | None = None) -> None:
        self.masks = {11: set(allowed), 12: set(allowed), 13: set(allowed)}
        self.ended, self.forbidden = ended, forbidden

    def ids(self) -> list[int]:
        return sorted(self.masks)

    def allowed(self, thread_id: int) -> set[int]:
        if thread_id == self.ended:
            raise ProcessLookupError
        return set(self.masks[thread_id or 11])

    def restrict(self, thread_id: int, cpus: set[int]) -> None:
        if thread_id == self.forbidden:
            raise PermissionError(1, "Operation not permitted")
        self.masks[thread_id] = set(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("", ()), ("\n", ()), ("3,1-2,2", (1, 2, 3))],
)
def test_cpu_lists_of_the_kernel_are_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "1-b", "-1"])
def test_other_text_is_not_a_cpu_list(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list(text)


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("1", 1), ("-1", None), ("none", None), (None, None)])
def test_minus_one_means_unknown_and_never_node_0(text: str | None, node: int | None, tmp_path: Path) -> None:
    assert node_of_pci_device(GPU, sys_root=sysfs(tmp_path, gpu_node=text, nodes={})) == node


def test_addresses_match_whatever_their_case(tmp_path: Path) -> None:
    assert node_of_pci_device(GPU.upper(), sys_root=sysfs(tmp_path, gpu_node="1", nodes={})) == 1


def test_a_missing_node_has_no_cpus(tmp_path: Path) -> None:
    assert cpus_of_node(3, sys_root=tmp_path) == ()


BINDINGS: dict[str, tuple[str | None, dict[int, str], FakeThreads, NumaBinding]] = {
    "one node": ("0", {0: "0-3"}, FakeThreads({0, 1, 2, 3}), NumaBinding(0, 3, (0, 1, 2, 3))),
    "the second of two nodes": (
        "1",
        {0: "0-3", 1: "4-7"},
        FakeThreads(set(range(8))),
        NumaBinding(1, 3, (4, 5, 6, 7)),
    ),
    "a single core": ("0", {0: "0"}, FakeThreads({0}), NumaBinding(0, 3, (0,))),
    "a cpuset smaller than the node": ("0", {0: "0-7"}, FakeThreads({2, 3, 9}), NumaBinding(0, 3, (2, 3))),
    "a cpuset outside the node": (
        "1",
        {1: "4-7"},
        FakeThreads({0, 1}),
        NumaBinding(1, reason="none of the CPUs of node 1 is allowed to this process"),
    ),
    "an unknown node": (
        "-1",
        {0: "0-3"},
        FakeThreads({0, 1}),
        NumaBinding(reason=f"the node of PCI device {GPU} is unknown"),
    ),
    "no such device": (
        None,
        {0: "0-3"},
        FakeThreads({0, 1}),
        NumaBinding(reason=f"the node of PCI device {GPU} is unknown"),
    ),
    "a node without CPUs": (
        "2",
        {2: ""},
        FakeThreads({0, 1}),
        NumaBinding(2, reason="the CPUs of node 2 are unknown"),
    ),
    "a thread that ended meanwhile": (
        "0",
        {0: "0-1"},
        FakeThreads({0, 1}, ended=12),
        NumaBinding(0, 2, (0, 1)),
    ),
    "a thread that may not be bound": (
        "0",
        {0: "0-1"},
        FakeThreads({0, 1}, forbidden=13),
        NumaBinding(0, 2, (0, 1), reason="thread 13: Operation not permitted"),
    ),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_every_thread_is_bound_to_the_node_of_the_gpu_or_the_reason_told(name: str, tmp_path: Path) -> None:
    gpu_node, nodes, threads, expected = BINDINGS[name]
    root = sysfs(tmp_path, gpu_node=gpu_node, nodes=nodes)
    assert bind_threads(GPU, sys_root=root, threads=threads, environ={}) == expected
    bound = [thread for thread in threads.ids() if threads.masks[thread] == set(expected.cpus)]
    assert len(bound) >= expected.num_threads_bound


def test_a_thread_with_a_mask_of_its_own_keeps_within_it(tmp_path: Path) -> None:
    threads = FakeThreads({0, 1, 2, 3})
    threads.masks[12] = {2}
    threads.masks[13] = {9}
    root = sysfs(tmp_path, gpu_node="0", nodes={0: "0-3"})
    binding = bind_threads(GPU, sys_root=root, threads=threads, environ={})
    assert binding.num_threads_bound == 2
    assert threads.masks[12] == {2}
    assert threads.masks[13] == {9}


def test_the_user_can_switch_it_off(tmp_path: Path) -> None:
    root = sysfs(tmp_path, gpu_node="0", nodes={0: "0"})
    threads = FakeThreads({0, 1})
    binding = bind_threads(GPU, sys_root=root, threads=threads, environ={"OFFLOAD_NUMA": "0"})
    assert binding == NumaBinding(reason="switched off by OFFLOAD_NUMA=0")
    assert set(map(frozenset, threads.masks.values())) == {frozenset({0, 1})}


def test_a_device_without_a_pci_address_is_not_bound() -> None:
    assert bind_threads(None, environ={}).reason == "the device has no PCI address"


def test_the_kernel_lists_the_threads_of_this_process() -> None:
    kernel = ThreadAffinity()
    assert os.getpid() in kernel.ids()
    before = kernel.allowed(0)
    kernel.restrict(0, before)
    assert kernel.allowed(0) == before


def test_memory_binding_tells_whether_the_kernel_agreed() -> None:
    slab = Slab(4 * PAGE_BYTES)
    assert bind_memory(slab.address, slab.num_bytes, 0) is True
    assert bind_memory(slab.address, slab.num_bytes, 900) is False
    assert bind_memory(slab.address + 1, slab.num_bytes, 0) is False


def test_a_binding_reads_as_a_sentence() -> None:
    assert str(NumaBinding(1, 40, (4, 5, 6, 7)).with_memory(True)) == (
        "node 1: 40 threads on 4 CPUs, pinned pages on the node"
    )
    assert str(NumaBinding(reason="why not")) == "not bound: why not"
