"""Compare two captures of one model: do they see the same tensors, with the same fates?

compile     Dynamo's graphs, as a run has them, and the loss where it is taken outside of the module
step        the whole step as Python runs it, as one graph
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from offload_runtime.compiler import CompiledPolicy, Fate
from offload_runtime.graph.joint import forward_activations, read_joint_graph
from offload_runtime.models.capture_check import CaptureCheck, CaptureDifference
from offload_runtime.models.failures import explain_failure
from offload_runtime.models.fake_capture import as_traced
from offload_runtime.models.traced_model import TracedModel
from offload_runtime.passes.pipeline import plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs
from offload_runtime.runtime.step_capture import capture_step

__all__ = ["check_captures", "compare_captures"]

_Kind = tuple[str, str, int, Fate | None]


def check_captures(traced: TracedModel) -> CaptureCheck:
    """Capture the step of ``traced`` too, and compare what both captures hold, whatever any policy says.

    Graphs are those of mode ``graph``: under Inductor operators arrive decomposed, and a step has no such form.
    """
    model = traced.model
    try:
        with torch.random.fork_rng(devices=[]):
            step = capture_step(model.module, model.example_args, model.loss)
    except Exception as error:  # noqa: BLE001 - whatever a model raises is the finding
        (found, *_) = explain_failure(error, f"the step of {model.name}").diagnostics
        return CaptureCheck(0, 0, reason=found.message)
    compiled = traced.graphs
    if traced.mode != "graph":
        with torch.random.fork_rng(devices=[]):
            compiled = capture_joint_graphs(model.module, model.example_args, mode="graph")
    ours, theirs = _produced((*compiled, *traced.loss_graphs)), _produced((step,))
    return CaptureCheck(ours.total(), theirs.total(), _differences(ours, theirs))


def compare_captures(
    compiled: Sequence[CapturedGraph], step: CapturedGraph, policy: CompiledPolicy, setting: Setting
) -> tuple[CaptureDifference, ...]:
    """Return what the graphs of a compilation and a whole step, both of mode ``graph``, do not have in common.

    Tensors are told by module, operator, bytes and fate under ``policy``; nothing is returned where both agree.
    """
    ours, theirs = (_judged(graphs, policy, setting) for graphs in (compiled, (step,)))
    return _differences(ours, theirs)


def _differences(ours: Counter[_Kind], theirs: Counter[_Kind]) -> tuple[CaptureDifference, ...]:
    kinds = sorted(ours.keys() | theirs.keys(), key=lambda kind: (*kind[:3], kind[3] or ""))
    return tuple(
        CaptureDifference(*kind, ours[kind], theirs[kind]) for kind in kinds if ours[kind] != theirs[kind]
    )


def _produced(graphs: Sequence[CapturedGraph]) -> Counter[_Kind]:
    """Count what forward operations store; an input is another graph's result, or nobody's."""
    found: Counter[_Kind] = Counter()
    for graph in graphs:
        joint = read_joint_graph(
            graph.copy(),
            num_fwd_outputs=graph.inputs.num_fwd_outputs,
            static_input_indices=graph.inputs.static_input_indices,
            names=graph.inputs.names,
        )
        found.update(
            (activation.module, activation.op, activation.num_bytes, None)
            for storage, activation in forward_activations(joint)
            if not storage.is_input
        )
    return found


def _judged(graphs: Sequence[CapturedGraph], policy: CompiledPolicy, setting: Setting) -> Counter[_Kind]:
    """Count what ``policy`` decides on, with what becomes of it."""
    found: Counter[_Kind] = Counter()
    for graph in graphs:
        with as_traced([graph]):
            planned = plan_joint(
                graph.copy(), graph.inputs, policy=policy, mode="graph", variant="policy", setting=setting
            )
        found.update(
            (item.activation.module, item.activation.op, item.activation.num_bytes, item.fate)
            for item in planned.plan.verdicts
            if item.fate != "skip"
        )
    return found
