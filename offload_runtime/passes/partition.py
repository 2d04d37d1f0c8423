"""Split a tagged joint graph into forward and backward with torch's own partitioner, and read what crosses.

The only module that names ``torch._functorch.partitioners`` and ``torch.fx._lazy_graph_module``; what it calls of them
is present in torch 2.11 and 2.13, as is ``torch._guards.detect_fake_mode``.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import fx
from torch._functorch import partitioners
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import _lazy_graph_module as lazy

from offload_runtime.graph.storages import tensor_of

__all__ = ["Partition", "Saved", "Splitter", "copy_graph", "partition_pass", "read_partition"]

Splitter = Literal["min_cut", "save_everything"]


@dataclass(frozen=True)
class Saved:
    """A value that autograd saves: the forward node that is returned, and the backward input that receives it."""

    forward: fx.Node
    backward: fx.Node


@dataclass(frozen=True)
class Partition:
    """A forward and a backward graph, and what crosses between them."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    num_fwd_outputs: int
    saved: tuple[Saved, ...]

    @property
    def returned_to_caller(self) -> frozenset[fx.Node]:
        """The forward nodes that the caller gets."""
        results = self.forward.graph.output_node().args[0]
        assert isinstance(results, (list, tuple))
        return frozenset(node for node in results[: self.num_fwd_outputs] if isinstance(node, fx.Node))


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph that passes may change; the values of its nodes (fake tensors) are shared.

    Its Python code is written when it is first called or read: most copies are planned on and never run.
    """
    graph = fx.Graph()
    result = graph.graph_copy(gm.graph, {}, return_output_node=True)
    assert isinstance(result, tuple), "a captured graph ends in an output"
    value, output = result
    graph.output(value).meta = copy.copy(output.meta)
    with lazy._use_lazy_graph_module(True):
        return lazy._make_graph_module(gm, graph)


def partition_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    static_input_indices: Sequence[int],
    splitter: Splitter,
) -> Partition:
    """Split ``gm`` under its tags.

    ``min_cut`` obeys the tags and decides what they leave open; ``save_everything`` is what a run without
    any policy does in mode ``graph``.
    """
    split = (
        partitioners.min_cut_rematerialization_partition
        if splitter == "min_cut"
        else partitioners.default_partition
    )
    if splitter == "save_everything":
        _give_dead_calls_a_user(gm.graph)
    # As torch.compile does: what is planned and not run needs no Python code.
    with lazy._use_lazy_graph_module(True), _fake_mode_of(gm):
        forward, backward = split(
            gm,
            example_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=list(static_input_indices),
        )
    _drop_repeated(forward, backward)
    _drop_unread(forward, backward, num_fwd_outputs)
    return read_partition(forward, backward, num_fwd_outputs=num_fwd_outputs)


def _fake_mode_of(gm: fx.GraphModule) -> AbstractContextManager[object]:
    """Return what lets torch find the fake mode of a graph that is split after it was traced.

    It asks for it where a random operator is computed again.
    """
    if detect_fake_mode() is not None:
        return nullcontext()
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), nullcontext())


def _give_dead_calls_a_user(graph: fx.Graph) -> None:
    """Let torch's default partitioner see that an unused call (a dead attention) yields several tensors.

    Dead code elimination keeps calls that may draw random numbers, and the partitioner knows a multi-output
    call by its ``getitem`` users alone.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), (tuple, list)):
            with graph.inserting_after(node):
                first = graph.call_function(operator.getitem, (node, 0))
            first.meta["val"] = node.meta["val"][0]


def _drop_repeated(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Take out of backward what forward has computed and nothing in backward reads.

    The default partitioner computes a call that may draw random numbers (attention, dropout or not) once more in
    backward, whose results backward has been given: dead code elimination keeps such calls. It costs the time of that
    call, and would draw numbers that no eager run draws.
    """
    computed = {node.name: node.target for node in forward.graph.nodes if node.op == "call_function"}
    for node in reversed(list(backward.graph.nodes)):
        is_repeated = node.op == "call_function" and computed.get(node.name) == node.target
        if is_repeated and not node.users and not _mutates(node):
            backward.graph.erase_node(node)
    backward.graph.lint()
    backward.recompile()


def _mutates(node: fx.Node) -> bool:
    return not isinstance(node.target, OpOverload) or node.target._schema.is_mutable


def _drop_unread(forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Stop saving tensors that backward takes in and never reads; the partitioner leaves some beside random ops."""
    output = forward.graph.output_node()
    results = output.args[0]
    assert isinstance(results, (list, tuple))
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    unread = {
        node.name
        for node in results[num_fwd_outputs:]
        if isinstance(node, fx.Node) and tensor_of(node) is not None and node.name in inputs
        if not inputs[node.name].users
    }
    if not unread:
        return
    for name in unread:
        backward.graph.erase_node(inputs[name])
    kept = [
        index
        for index, node in enumerate(results)
        if index < num_fwd_outputs or not isinstance(node, fx.Node) or node.name not in unread
    ]
    output.args = (tuple(results[index] for index in kept),)
    if "desc" in output.meta:
        output.meta["desc"] = [output.meta["desc"][index] for index in kept]
    for gm in (forward, backward):
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()


def read_partition(forward: fx.GraphModule, backward: fx.GraphModule, *, num_fwd_outputs: int) -> Partition:
    """Pair what forward returns for backward with the inputs of backward, by name."""
    results = forward.graph.output_node().args[0]
    assert isinstance(results, (list, tuple))
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    saved = tuple(
        Saved(node, inputs[node.name])
        for node in results[num_fwd_outputs:]
        if isinstance(node, fx.Node) and node.name in inputs
    )
    return Partition(forward, backward, num_fwd_outputs, saved)
