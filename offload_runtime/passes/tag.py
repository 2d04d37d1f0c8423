"""Phase 1: mark the forward nodes of a joint graph as saved or recomputed, for torch's partitioner to obey.

Torch's partitioner knows two marks (``MUST_SAVE`` and ``MUST_RECOMPUTE``) and ignores the other members of
``CheckpointPolicy``; the fate beyond that (offload) stays with the plan.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from offload_runtime.compiler import Decision, SavedActivation
from offload_runtime.graph.joint import JointGraph
from offload_runtime.graph.operators import is_collective, is_view
from offload_runtime.graph.storages import Storage, layout_of, tensor_bytes, tensor_of

__all__ = [
    "MIN_SLICED_SHARE",
    "JudgedStorage",
    "keep_overwritten_pass",
    "recompute_obstacle",
    "tag_activations_pass",
]

MIN_SLICED_SHARE = 0.5  # dense views that cover less than this share of their storage travel by themselves


@dataclass(frozen=True)
class JudgedStorage:
    """A forward storage, what the policy saw of it, and what it said. ``decision`` None: not the policy's to judge."""

    storage: Storage
    activation: SavedActivation
    decision: Decision | None


def recompute_obstacle(storage: Storage, mutated: frozenset[str] = frozenset()) -> str | None:
    """Say why a storage may not be computed a second time, or return None.

    ``mutated`` names the graph inputs that the step overwrites (running statistics), with their aliases.
    """
    for node in storage.nodes:
        producer = _producer(node)
        target = producer.target
        if any(argument.name in mutated for argument in producer.all_input_nodes):
            return "it reads an input that the step overwrites (such as running statistics)"
        if is_collective(target):
            return "collective: recomputing it would communicate again"
        if str(target).startswith(("prims.inductor_seed", "prims.inductor_seeds")):
            return "random seed: drawing it again would change the numbers"
    return None


def keep_overwritten_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    joint: JointGraph,
) -> fx.GraphModule:
    """Save what a model's own checkpoint would recompute from an input that the step overwrites."""
    for node in gm.graph.nodes:
        producer = _producer(node)
        if "recompute" in node.meta and any(
            argument.name in joint.mutated for argument in producer.all_input_nodes
        ):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return gm


def tag_activations_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    joint: JointGraph,
    judged: Sequence[JudgedStorage],
) -> fx.GraphModule:
    """Write ``node.meta["recompute"]`` for every judged storage: its writer by the decision, views recomputed.

    Views are recomputed from their base, so that one storage is saved once, whole; but for small slices: of
    them and their base torch saves what is fewer bytes. Outputs of one operator call are recomputed together
    or not at all. ``auto`` leaves no mark: there torch decides.
    """
    tuples: dict[fx.Node, list[fx.Node]] = {}
    for item in judged:
        mark = _mark(item, joint.mutated)
        slices = _small_slices(item.storage) if mark == CheckpointPolicy.MUST_SAVE else set()
        for node in item.storage.nodes:
            if node.target is operator.getitem:
                tuples.setdefault(_producer(node), []).append(node)
            if mark is not None and node not in slices:
                is_written = node is item.storage.writer
                node.meta["recompute"] = mark if is_written else CheckpointPolicy.MUST_RECOMPUTE
    for producer, outputs in tuples.items():
        _mark_together(producer, outputs)
    _keep_in_backward(gm.graph, joint, judged)
    gm.graph.lint()
    gm.recompile()
    return gm


def _small_slices(storage: Storage) -> set[fx.Node]:
    """Return the dense views that cover little of their storage; pieces of calls only if all pieces do.

    Torch's partitioner makes one call of equal calls, so that a call may end up with the pieces of another.
    """
    small = {
        node
        for node in storage.nodes
        if node is not storage.writer and is_view(_producer(node).target) and _is_small(node, storage)
    }
    pieces = {node for node in storage.nodes if node.target is operator.getitem}
    return small if pieces <= small else small - pieces


def _is_small(node: fx.Node, storage: Storage) -> bool:
    tensor = tensor_of(node)
    if tensor is None or layout_of(tensor) == "strided":
        return False
    return tensor_bytes(tensor) <= MIN_SLICED_SHARE * storage.num_bytes


def _keep_in_backward(graph: fx.Graph, joint: JointGraph, judged: Sequence[JudgedStorage]) -> None:
    """Mark what backward computes from forward values alone (``cos`` for a ``sin``) as recomputed.

    Torch's partitioner may move it to forward and save its result in place of the value that the policy
    decided on. What hangs on a value left to torch (``auto``) is left to torch, too.
    """
    left_to_torch = {
        node
        for item in judged
        if item.decision is not None and item.decision.action == "auto"
        for node in item.storage.nodes
    }
    needs_tangents: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name in joint.forward or node.op == "output":
            continue
        if node.op == "placeholder" or not needs_tangents.isdisjoint(node.all_input_nodes):
            needs_tangents.add(node)
        elif not left_to_torch.isdisjoint(node.all_input_nodes):
            left_to_torch.add(node)
        elif node.all_input_nodes:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _mark_together(producer: fx.Node, outputs: Sequence[fx.Node]) -> None:
    """Give a multi-output call the mark of its outputs; torch fails on one that is saved and recomputed at once."""
    marks = {node.meta.get("recompute") for node in outputs}
    if CheckpointPolicy.MUST_SAVE in marks:
        producer.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        for node in outputs:
            if node.meta.get("recompute") is not None:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    elif CheckpointPolicy.MUST_RECOMPUTE in marks:
        producer.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _mark(item: JudgedStorage, mutated: frozenset[str]) -> CheckpointPolicy | None:
    if item.decision is None or item.decision.action == "auto":
        return None
    if item.decision.action == "recompute" and recompute_obstacle(item.storage, mutated) is None:
        return CheckpointPolicy.MUST_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def _producer(node: fx.Node) -> fx.Node:
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
