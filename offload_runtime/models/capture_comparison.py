"""Compare two captures of one model: do they see the same tensors, with the same fates?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from offload_runtime.compiler import CompiledPolicy, Fate
from offload_runtime.passes.pipeline import plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.runtime.capture import CapturedGraph

__all__ = ["CaptureDifference", "compare_captures"]


@dataclass(frozen=True, order=True)
class CaptureDifference:
    """A kind of tensor that two captures hold in different numbers."""

    module: str
    op: str
    num_bytes: int
    fate: Fate
    num_in_compile: int
    num_in_step: int


def compare_captures(
    compiled: Sequence[CapturedGraph], step: CapturedGraph, policy: CompiledPolicy, setting: Setting
) -> tuple[CaptureDifference, ...]:
    """Return what the graphs of a compilation and a whole step, both of mode ``graph``, do not have in common.

    Tensors are told by module, operator, bytes and fate under ``policy``; nothing is returned where both agree.
    """
    ours, theirs = _tensors(compiled, policy, setting), _tensors([step], policy, setting)
    return tuple(
        sorted(
            CaptureDifference(*tensor, ours[tensor], theirs[tensor])
            for tensor in ours.keys() | theirs.keys()
            if ours[tensor] != theirs[tensor]
        )
    )


def _tensors(
    graphs: Sequence[CapturedGraph], policy: CompiledPolicy, setting: Setting
) -> Counter[tuple[str, str, int, Fate]]:
    found: Counter[tuple[str, str, int, Fate]] = Counter()
    for graph in graphs:
        planned = plan_joint(
            graph.copy(), graph.inputs, policy=policy, mode="graph", variant="policy", setting=setting
        )
        found.update(
            (item.activation.module, item.activation.op, item.activation.num_bytes, item.fate)
            for item in planned.plan.verdicts
            if item.fate != "skip"
        )
    return found
