"""Compiled training on a CUDA device through the CUDA engine, and the end of a process in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from offload_runtime.runtime.cuda_engine import CudaEngine

from .conftest import RegisterTransfer
from .cuda_stream import GPU, hold
from .rig import MODES, Mode, OffloadEverything, backend, no_donated_buffers, partition

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Net(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return x


class SaveEverything(OffloadEverything):
    def __call__(self, gm, joint_inputs, **kwargs):  # type: ignore[no-untyped-def]  # as its base
        return partition(gm, joint_inputs, **kwargs)


@pytest.mark.parametrize("side_stream", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("mode", MODES)
def test_compiled_training_is_bitwise_that_without_transfers(
    mode: Mode, side_stream: bool, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Net().to(GPU)
    twin = Net().to(GPU)
    twin.load_state_dict(model.state_dict())
    partitioner = OffloadEverything(register)
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with no_donated_buffers(), torch.cuda.stream(stream):
        run = torch.compile(model, backend=backend(mode, partitioner))
        plain = torch.compile(twin, backend=backend(mode, SaveEverything(register)))
        for _ in range(5):
            x = torch.randn(64, 256, device=GPU)
            hold(cuda.copy_stream("d2h"))
            for forward, module in ((run, model), (plain, twin)):
                module.zero_grad()
                forward(x).square().mean().backward()
                torch.optim.SGD(module.parameters(), lr=0.1).step()
            assert all(map(torch.equal, model.parameters(), twin.parameters()))
    torch.cuda.synchronize()
    snapshot = cuda.snapshot()
    assert len(snapshot.transfers) == len(partitioner.keys) > 4
    assert {(t.num_d2h_copies, t.num_h2d_copies) for t in snapshot.transfers} == {(5, 5)}
    assert (snapshot.num_abandoned, cuda.arena.snapshot().in_use_bytes) == (0, 0)


def test_a_process_may_end_with_copies_in_flight() -> None:
    code = """
import torch
from offload_runtime.runtime import ops
from offload_runtime.runtime.transfer import register_transfer
key = register_transfer("a", 4)
src = torch.randn(1 << 24, device="cuda")
host = ops.d2h_start(src, [], key)
dev = ops.h2d_start(host, [], torch.device("cuda"), key)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
