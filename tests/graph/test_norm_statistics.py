"""Norms of mixed types: their statistics are planned by the bytes that the kernels return."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime.compiler import load_policy

NORMS = {
    "layer norm": lambda: nn.LayerNorm(16),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "batch norm": lambda: nn.BatchNorm1d(8),
    "batch norm without running statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "instance norm": lambda: nn.InstanceNorm1d(8, affine=True),
}
POLICY = load_policy(
    {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "all",
        "schedule": {"keep_last": 0},
        "activations": {"default": "offload"},
    }
)


CASES = [(name, dtype, "graph") for name in NORMS for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize(("name", "dtype", "mode"), [*CASES, ("layer norm", torch.bfloat16, "inductor")])
def test_under_autocast_planned_bytes_are_moved_bytes(name: str, dtype: torch.dtype, mode: str) -> None:
    torch._dynamo.reset()
    norm = NORMS[name]()

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(16, 16), norm, nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=dtype):
                result: Tensor = self.last(self.norm(self.first(x)))
            return result

    compiled = torch.compile(Normed(), backend="offload", options={"policy": POLICY, "mode": mode})
    compiled(torch.randn(4, 8, 16)).float().sum().backward()
    report = off.report(compiled)
    assert report.planned_bytes == report.moved_bytes == report.reloaded_bytes > 0


def test_statistics_of_one_type_are_left_as_traced() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)).bfloat16()
    compiled = torch.compile(model, backend="offload", options={"policy": POLICY})
    compiled(torch.randn(4, 8, 16, dtype=torch.bfloat16)).sum().backward()
    report = off.report(compiled)
    assert report.planned_bytes == report.moved_bytes > 0
