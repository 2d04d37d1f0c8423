"""Say what a plan comes to: that nothing is offloaded and why, or that offloading does not lower the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import fx

from offload_runtime.compiler import Decision
from offload_runtime.errors import Diagnostic
from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.operators import operator_name
from offload_runtime.offload_plan import OffloadPlan
from offload_runtime.passes.partition import Partition
from offload_runtime.simulator import MemoryPeak
from offload_runtime.units import format_size_short

__all__ = ["judge_empty_plan", "judge_peak"]


def judge_empty_plan(
    plan: OffloadPlan, decisions: Sequence[Decision], reasons: Sequence[str | None]
) -> tuple[Diagnostic, ...]:
    """Note that nothing is offloaded although the policy asks for it, with the reasons and how often each stood.

    ``decisions`` and ``reasons`` (why a candidate was not chosen) stand in parallel.
    """
    kept = [
        reason.partition(":")[0]
        for decision, reason in zip(decisions, reasons, strict=True)
        if decision.action == "offload" and reason is not None
    ]
    if plan.transfers or not kept:
        return ()
    counted = ", ".join(f"{reason} ({count})" for reason, count in Counter(kept).most_common())
    message = f"nothing is offloaded; {len(kept)} saved tensors stay on the device: {counted}"
    hint = "this is as it should be where memory suffices; `offload explain` shows each tensor's reason"
    return (Diagnostic("PLN403", "note", message, hint=hint),)


def judge_peak(
    joint: JointGraph, rewritten: Partition, plan: OffloadPlan, *, without: MemoryPeak, peak: MemoryPeak
) -> tuple[Diagnostic, ...]:
    """Warn that the transfers of a graph leave its simulated peak where it was, and say where that is.

    ``without`` is the peak of the same partition with each offload replaced by save, ``peak`` that of the
    ``rewritten`` pair.
    """
    if not plan.transfers or peak.num_bytes < without.num_bytes:
        return ()
    graph = rewritten.forward.graph if peak.side == "forward" else rewritten.backward.graph
    place = _place(joint, list(graph.nodes)[peak.position])
    message = (
        f"offloading {format_size_short(plan.planned_bytes)} does not lower the peak of device memory, "
        f"{format_size_short(peak.num_bytes)}: it sits in {peak.side}, {place}"
    )
    hint = "offload or recompute what is alive there, or drop the offloads: they only cost time"
    return (Diagnostic("PLN402", "warning", message, hint=hint),)


def _place(joint: JointGraph, node: fx.Node) -> str:
    if node.op != "call_function":
        return "at its start" if node.op == "placeholder" else "at its end"
    module = joint.modules.get(origin_of(node) or "", "")
    return f"at {node.name} ({operator_name(node)} in {module or 'the root module'})"
