"""A policy where torch asks for one: on FX nodes (selective checkpoint tagging), and for eager checkpointing.

The pair (action, must) maps one to one to torch's six ``CheckpointPolicy`` members; ``auto`` is ``PREFER_SAVE``, which
torch's partitioner treats like no mark at all.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from offload_runtime.compiler import CompiledPolicy, Decision, SavedActivation, decide_without_rules
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.graph.layers import LayerTable, tabulate_layers
from offload_runtime.graph.names import module_of_node
from offload_runtime.graph.operators import class_of_node, class_of_operator, operator_name
from offload_runtime.graph.storages import hint, layout_of, tensor_of
from offload_runtime.matching import UnknownKeyError, matches

__all__ = ["checkpoint_policy_of", "context_fn", "policy_fn"]

_MEMBERS = {
    ("save", True): CheckpointPolicy.MUST_SAVE,
    ("save", False): CheckpointPolicy.PREFER_SAVE,
    ("recompute", True): CheckpointPolicy.MUST_RECOMPUTE,
    ("recompute", False): CheckpointPolicy.PREFER_RECOMPUTE,
    ("offload", True): CheckpointPolicy.MUST_CPU_OFFLOAD,
    ("offload", False): CheckpointPolicy.PREFER_CPU_OFFLOAD,
    ("auto", False): CheckpointPolicy.PREFER_SAVE,
}
_tables: WeakKeyDictionary[fx.Graph, tuple[int, LayerTable]] = WeakKeyDictionary()


def checkpoint_policy_of(decision: Decision) -> CheckpointPolicy:
    """Return torch's member for a decision."""
    return _MEMBERS[decision.action, decision.must]


def policy_fn(policy: CompiledPolicy, node: fx.Node) -> CheckpointPolicy:
    """Return the fate of an FX node's value, as selective checkpoint tagging passes call it.

    ``node`` is a forward ``call_function`` node with ``meta["val"]`` and ``meta["nn_module_stack"]``. A node that
    yields no single tensor is judged by its operator, with zero bytes. Raises RefusedError where a rule counts
    layers from the end and the graph shows none.
    """
    table = _layers_of(node.graph, policy)
    module = module_of_node(node) or ""
    layer = table.layer_of(module)
    tensor = tensor_of(node)
    activation = SavedActivation(
        name=node.name,
        op=operator_name(node),
        op_class=class_of_node(node),
        module=module,
        layer=layer,
        num_layers=table.num_layers,
        num_bytes=hint(tensor.untyped_storage().nbytes()) if tensor is not None else 0,
        dtype=str(tensor.dtype).removeprefix("torch.") if tensor is not None else "none",
        layout=layout_of(tensor) if tensor is not None else "strided",
        crosses_layer=layer is not None and any(_is_later(table, user, layer) for user in node.users),
        layer_path=table.path_of(module),
    )
    return checkpoint_policy_of(policy.decide(activation))


def _layers_of(graph: fx.Graph, policy: CompiledPolicy) -> LayerTable:
    """Return the layer table of a graph, made anew when the graph has grown."""
    cached = _tables.get(graph)
    if cached is not None and cached[0] == len(graph.nodes):
        return cached[1]
    activations = policy.policy.activations
    modules = [module_of_node(node) or "" for node in graph.nodes if node.op == "call_function"]
    table = tabulate_layers(modules, activations.layers_of if activations is not None else None)
    _tables[graph] = len(graph.nodes), table
    return table


def _is_later(table: LayerTable, user: fx.Node, layer: int) -> bool:
    other = table.layer_of(module_of_node(user) or "")
    return other is not None and other > layer


def context_fn(policy: CompiledPolicy) -> Any:
    """Return the two contexts for ``torch.utils.checkpoint.checkpoint(..., context_fn=policy.context_fn)``.

    Eager checkpointing knows an operator and nothing else. Raises RefusedError for a policy that offloads (eager torch
    would silently recompute instead) and for one whose rules ask for more than the operator.
    """
    _refuse_offload(policy)
    return create_selective_checkpoint_contexts(functools.partial(_eager_policy, policy))


def _refuse_offload(policy: CompiledPolicy) -> None:
    activations = policy.policy.activations
    wanted = [(rule.name, rule.span) for rule in policy.policy.rules if rule.action == "offload"]
    if activations is not None and "offload" in (activations.default, activations.layer_outputs):
        wanted.append(("default or layer_outputs", activations.span))
    if wanted:
        name, span = wanted[0]
        raise RefusedError(
            Diagnostic(
                "GRF310",
                "error",
                f"policy {policy.name!r} offloads ({name}), and eager checkpointing would recompute instead",
                span.file,
                span.line,
                span.column,
                hint='use torch.compile(model, backend="offload"), or change the action to save',
            )
        )


def _eager_policy(policy: CompiledPolicy, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    activation = SavedActivation("", str(op), class_of_operator(op), "", None, None, 0, "", "strided")
    if policy.function is not None:
        return checkpoint_policy_of(policy.decide(activation))
    known = frozenset({"op", "op_class"})
    for rule in policy.policy.rules:
        try:
            if matches(rule.match, activation, known):
                return checkpoint_policy_of(Decision(rule.action, rule.must, rule.name))
        except UnknownKeyError as error:
            raise RefusedError(
                Diagnostic(
                    "GRF311",
                    "error",
                    f"rule {rule.name!r} asks for {error.key}, which eager checkpointing does not tell ({op})",
                    rule.span.file,
                    rule.span.line,
                    rule.span.column,
                    hint='match on op alone, or use torch.compile(model, backend="offload")',
                )
            ) from None
    return checkpoint_policy_of(decide_without_rules(policy.policy.activations, activation))
