"""Which engine runs the transfers of which kind of device, and the arena each kind shares."""

from __future__ import annotations

import os
import threading

import torch

from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.cuda_engine import CudaEngine
from offload_runtime.runtime.cuda_host import CudaPinner, pci_address
from offload_runtime.runtime.numa import bind_threads
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import TransferEngine, register_engine

_lock = threading.Lock()
_arenas: dict[str, HostArena] = {}


def get_arena(device: torch.device | str) -> HostArena:
    """Return the process's host arena for this kind of device; built on first use.

    On CUDA it is pinned and near the first device asked for, and the process's threads are bound to that
    device's node (see :mod:`offload_runtime.runtime.numa`).
    """
    device = torch.device(device)
    with _lock:
        arena = _arenas.get(device.type)
        if arena is None:
            arena = _arenas[device.type] = _build_arena(device)
        return arena


def _build_arena(device: torch.device) -> HostArena:
    if device.type != "cuda":
        return HostArena()
    numa = bind_threads(pci_address(device))
    return HostArena(pinner=CudaPinner(), numa=numa)


def register_engines() -> None:
    """Enter the engines of this package; repeated calls change nothing."""
    register_engine("cpu", _simulated_engine)
    register_engine("cuda", _cuda_engine)


def _simulated_engine(device: torch.device) -> TransferEngine:
    return SimulatedEngine(get_arena(device), device=device)


def _cuda_engine(device: torch.device) -> TransferEngine:
    return CudaEngine(device, get_arena(device))


def _forget_arenas_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _arenas.clear()


os.register_at_fork(after_in_child=_forget_arenas_after_fork)
