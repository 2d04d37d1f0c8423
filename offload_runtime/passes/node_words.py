"""Nodes of a partitioned graph in words of the model: which operator, in which module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.operators import operator_name
from offload_runtime.passes.candidates import SavedStorage
from offload_runtime.passes.partition import Partition

__all__ = ["node_words"]


def node_words(joint: JointGraph, partition: Partition, stored: Sequence[SavedStorage]) -> Mapping[str, str]:
    """Return for the name of each node what it is: ``aten.mm.default in layers.3.mlp``, ``saved`` where it is saved.

    What backward is given is an ``incoming gradient``. Names that are none of a node, such as ``resident``, are left
    out.
    """
    found = {}
    for graph in (partition.backward.graph, partition.forward.graph):
        for node in graph.nodes:
            if node.op == "call_function":
                module = joint.modules.get(origin_of(node) or "", "")
                found[node.name] = _in_module(operator_name(node), module)
            elif node.op == "placeholder" and graph is partition.backward.graph:
                found[node.name] = "incoming gradient"
    for item in stored:
        activation = item.judged.activation
        found[activation.name] = f"saved {_in_module(activation.op, activation.module)}"
    return found


def _in_module(op: str, module: str) -> str:
    return f"{op} in {module or 'the root module'}"
