"""An engine of one's own for each test: no test sees another's arena or counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from offload_runtime.runtime import ops  # noqa: F401  # registers the operators and engines
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.cuda_engine import CudaEngine
from offload_runtime.runtime.cuda_host import CudaPinner
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import forget_transfers, register_transfer, use_engine

from .cuda_stream import GPU

RegisterTransfer = Callable[..., int]


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    """Run every transfer of the test on a late simulated engine with its own arena."""
    with use_engine(SimulatedEngine(HostArena(), timing="late")) as own:
        assert isinstance(own, SimulatedEngine)
        yield own


@pytest.fixture
def register() -> Iterator[RegisterTransfer]:
    """Register transfers that are forgotten after the test."""
    keys: list[int] = []

    def enter(name: str = "layers.0.mm", num_bytes: int = 0, *, poison_source: bool = False) -> int:
        keys.append(register_transfer(name, num_bytes, poison_source=poison_source))
        return keys[-1]

    yield enter
    forget_transfers(keys)


@pytest.fixture
def cuda() -> Iterator[CudaEngine]:
    """Run every transfer of the test on an engine of the CUDA device with its own pinned arena."""
    engine = CudaEngine(GPU, HostArena(pinner=CudaPinner()))
    with use_engine(engine):
        yield engine
    torch.cuda.synchronize()
