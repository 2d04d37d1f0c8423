"""A small model, captured once, and what planning makes of it on hardware without a workspace of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.hardware import HardwareProfile, load_hardware
from offload_runtime.offload_plan import Variant
from offload_runtime.passes.pipeline import PlannedPair, plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.policy import Limits
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs

__all__ = ["HARDWARE", "Stack", "baseline_of", "batch", "captured", "plan", "planned_policy", "stack"]

_H200 = load_hardware("h200-pcie5")
HARDWARE = HardwareProfile(
    "small",
    "An H200 whose libraries allocate nothing: models of a few MiB are planned for it.",
    tuple(figure for figure in _H200.figures if figure.key != "device.workspace"),
)


class Block(nn.Module):
    """Norm, two products with an activation between, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = nn.functional.silu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Stack(nn.Module):
    """Four blocks and a head; returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = self.head(x).square().mean()
        return loss


def stack() -> Stack:
    """Return the model, always with the same weights."""
    torch.manual_seed(0)
    return Stack()


def batch(step: int = 0, rows: int = 256) -> Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(step))


@cache
def captured(mode: str) -> CapturedGraph:
    """Return the joint graph of the model."""
    (graph,) = capture_joint_graphs(stack(), [batch()], mode=mode, accelerator=False)
    return graph


def planned_policy(
    default: str = "auto",
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
    select: str = "planned",
    **schedule: Any,
) -> CompiledPolicy:
    """Return a policy that keeps no layer on the device, whatever its place, unless told otherwise."""
    return load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "planned",
            "limits": dict(limits or {}),
            "schedule": {"select": select, "keep_last": 0, **schedule},
            "activations": {"default": default, "rules": [{"optional": True, **rule} for rule in rules]},
        }
    )


def plan(
    policy: CompiledPolicy,
    mode: str = "graph",
    *,
    graph: CapturedGraph | None = None,
    variant: Variant = "policy",
    hardware: HardwareProfile | None = HARDWARE,
    resident_bytes: int = 0,
    **limits: Any,
) -> PlannedPair:
    """Plan the small model; ``limits`` (bytes, shares) replace those of the policy."""
    graph = graph or captured(mode)
    return plan_joint(
        graph.copy(),
        graph.inputs,
        policy=policy,
        mode=mode,
        variant=variant,
        setting=Setting(replace(policy.policy.limits, **limits), hardware, resident_bytes=resident_bytes),
    )


@cache
def baseline_of(mode: str) -> PlannedPair:
    """Return the model without a policy."""
    return plan(
        planned_policy(), mode, variant="baseline", **dict.fromkeys(Limits.__dataclass_fields__, None)
    )
