"""Facts that a process can establish by itself: its machine, its GPU, its place among other processes.

What cannot be asked has no entry. Names and units are those of ``offload_runtime.facts``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from offload_runtime.hardware import HardwareProfile
from offload_runtime.predicates import Scalar
from offload_runtime.runtime.cuda_host import pci_address
from offload_runtime.runtime.host_memory import read_host_memory
from offload_runtime.runtime.numa import cpus_of_node, node_of_pci_device
from offload_runtime.runtime.setting import profile_of_device

__all__ = [
    "Asker",
    "hardware_facts",
    "host_facts",
    "is_launched",
    "known_facts",
    "machine_facts",
    "numa_facts",
    "parallel_facts",
    "pcie_facts",
]

Asker = Literal["rank", "process", "command"]
"""Who asks for facts of its place: a process of a launched run, one that trains or plans by itself, a command."""

# Variables in which launchers count processes: torchrun, Open MPI.
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_TORCH_VERSION = torch.__version__.partition("+")[0]
# Rate of one lane (GT/s) by PCIe generation, as sysfs writes the speed of a link.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def known_facts(hardware: HardwareProfile | None = None) -> dict[str, Scalar]:
    """Return what is known here; with ``hardware``, of that machine instead of this one.

    With one process every degree of parallelism is 1; with more, only their number is known.
    """
    asker: Asker = "rank" if is_launched() else "process"
    return parallel_facts() | (machine_facts(asker) if hardware is None else hardware_facts(hardware))


def machine_facts(asker: Asker | None = None) -> dict[str, Scalar]:
    """Return what is known of this machine and its GPU, asked by a rank or else by a command beside the training."""
    asker = asker or ("rank" if is_launched() else "command")
    return {"torch_version": _TORCH_VERSION} | host_facts() | _device_facts(asker)


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a launcher started this process, as one of a training run."""
    return _count(environ, _WORLD_SIZE) is not None


def parallel_facts(environ: Mapping[str, str] = os.environ) -> dict[str, Scalar]:
    """Return how many processes train together, from torch.distributed or the launcher's variables."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if distributed else _count(environ, _WORLD_SIZE) or 1
    local_size = _count(environ, _LOCAL_SIZE)
    facts: dict[str, Scalar] = {"world_size": world_size}
    if local_size is not None:
        facts["ranks_per_node"] = local_size
    if world_size == 1:
        degrees = ("data_parallel", "pipeline_parallel", "tensor_parallel", "expert_parallel")
        facts |= {"ranks_per_node": 1, **dict.fromkeys(degrees, 1)}
    return facts


def host_facts(root: Path = Path("/")) -> dict[str, Scalar]:
    """Return memory (the cgroup's where it is less), cores and NUMA nodes of this host."""
    memory = read_host_memory(root)
    nodes = _nodes(root / "sys")
    found: dict[str, Scalar | None] = {
        "host_total_bytes": memory.allowed_bytes,
        "host_available_bytes": memory.free_bytes,
        "host_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "num_numa_nodes": len(nodes) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def hardware_facts(hardware: HardwareProfile) -> dict[str, Scalar]:
    """Return what a profile states of one device, its link and its host; what is free there nobody knows."""
    link = hardware.link()
    found: dict[str, Scalar | None] = {
        "torch_version": _TORCH_VERSION,
        "accelerator": "cuda",
        "hardware": hardware.name,
        "gpu_total_bytes": hardware.device_memory_bytes,
        "host_total_bytes": hardware.host_memory_bytes,
        "host_cores": hardware.num_cores,
        "link_d2h_gbps": link.d2h_bytes_per_ms / 1e6,
        "link_h2d_gbps": link.h2d_bytes_per_ms / 1e6,
    }
    return {name: value for name, value in found.items() if value is not None}


def numa_facts(
    address: str, cpus: set[int], sys_root: Path = Path("/sys"), *, asker: Asker = "rank"
) -> dict[str, Scalar]:
    """Return whether a training process with ``cpus`` is bound to the node of the PCI device ``address``.

    A command is no training process: where it may run says nothing of that, unless the host has one node only. A
    process by itself that may run on several nodes is not bound yet, and may be when it trains.
    """
    node = node_of_pci_device(address, sys_root=sys_root)
    near = set(cpus_of_node(node, sys_root=sys_root)) if node is not None else set()
    if not near:
        return {}
    if len(_nodes(sys_root)) == 1:
        return {"numa_local": True}
    if asker == "command" or (asker == "process" and cpus & near and not cpus <= near):
        return {}
    return {"numa_local": cpus <= near}


def pcie_facts(address: str, sys_root: Path = Path("/sys")) -> dict[str, Scalar]:
    """Return generation and width at which the link of a PCI device runs now; an idle one may have slowed down."""
    folder = sys_root / "bus/pci/devices" / address.lower()
    speed = re.match(r"[0-9.]+", _text(folder / "current_link_speed"))
    width = _text(folder / "current_link_width").strip()
    facts: dict[str, Scalar] = {}
    generation = _GENERATIONS.get(float(speed.group())) if speed is not None else None
    if generation is not None:
        facts["pcie_generation"] = generation
    if width.isdecimal() and int(width):
        facts["pcie_link_width"] = int(width)
    return facts


def _device_facts(asker: Asker) -> dict[str, Scalar]:
    if not torch.cuda.is_available():
        other = torch.accelerator.is_available()
        return {"accelerator": "other" if other else "none", "num_gpus": torch.cuda.device_count()}
    device = torch.device("cuda", torch.cuda.current_device())
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    profile = profile_of_device(device)
    facts: dict[str, Scalar] = {} if profile is None else hardware_facts(profile)
    # The profile is of a whole class of machines; the host that is here was asked itself.
    facts = {name: value for name, value in facts.items() if not name.startswith("host_")}
    facts |= {
        "accelerator": "cuda",
        "num_gpus": torch.cuda.device_count(),
        "gpu_name": torch.cuda.get_device_name(device),
        "gpu_total_bytes": total_bytes,
        "gpu_free_bytes": free_bytes,
    }
    address = pci_address(device)
    if address is not None:
        facts |= pcie_facts(address) | numa_facts(address, set(os.sched_getaffinity(0)), asker=asker)
    return facts


def _nodes(sys_root: Path) -> list[Path]:
    folder = sys_root / "devices/system/node"
    return [path for path in folder.glob("node*") if path.name[4:].isdecimal()]


def _count(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    given = (environ.get(name, "") for name in names)
    return next((int(text) for text in given if text.isdecimal() and int(text)), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
