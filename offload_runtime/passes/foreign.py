"""Saved values that nothing here knows how to move: tensor subclasses, and layouts without strides."""

from __future__ import annotations

from torch import fx

from offload_runtime.compiler import CompiledPolicy, SavedActivation
from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.operators import class_of_node, operator_name
from offload_runtime.graph.storages import foreign_type_of, tensor_bytes
from offload_runtime.offload_plan import TensorVerdict
from offload_runtime.passes.partition import Partition

__all__ = ["foreign_verdicts"]


def foreign_verdicts(joint: JointGraph, partition: Partition, policy: CompiledPolicy) -> list[TensorVerdict]:
    """Skip what is not a plain strided tensor, naming its type and the rule that spoke of it."""
    verdicts = []
    for saved in partition.saved:
        kind = foreign_type_of(saved.forward)
        if kind is not None and saved.forward.op == "call_function":
            activation = _describe(joint, saved.forward)
            rule = policy.decide(activation).decided_by
            reason = f"not a plain strided tensor: {kind}"
            verdicts.append(TensorVerdict(activation, "skip", rule, reason))
    return verdicts


def _describe(joint: JointGraph, node: fx.Node) -> SavedActivation:
    name = origin_of(node) or node.name
    module = joint.modules.get(name, "")
    tensor = node.meta["val"]
    return SavedActivation(
        name=name,
        op=operator_name(node),
        op_class=class_of_node(node),
        module=module,
        layer=joint.layers.layer_of(module),
        num_layers=joint.layers.num_layers,
        num_bytes=tensor_bytes(tensor),
        dtype=str(tensor.dtype).removeprefix("torch."),
        layout="strided",
        layer_path=joint.layers.path_of(module),
    )
