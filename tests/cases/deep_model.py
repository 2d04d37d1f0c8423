"""A model of four layers whose last one differs, its batches, and rules for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Deep(nn.Module):
    """Four layers; only the last has a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.gate = nn.Linear(16, 16)
        self.layers[3].append(nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.gate(x).sin()


def batches(num: int = 3) -> list[Tensor]:
    """Return one batch a step."""
    return [torch.randn(8, 16, generator=torch.Generator().manual_seed(i)) for i in range(num)]


def rule(name: str, **clause: Any) -> dict[str, Any]:
    """Return a rule that offloads unless told otherwise."""
    return {"name": name, "action": "offload", **clause}
