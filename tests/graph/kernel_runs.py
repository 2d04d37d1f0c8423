"""Run a graph kernel by kernel, with no memory but what its kernels are said to read and to store."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from offload_runtime.graph.kernels import KernelMap, Launch, launch_of, launches
from offload_runtime.graph.operators import is_random

__all__ = ["run_by_kernels", "run_whole"]


def run_whole(gm: fx.GraphModule, arguments: Sequence[Any]) -> dict[fx.Node, Any]:
    """Return the value of every node, computed in graph order."""
    given = iter(arguments)
    values: dict[fx.Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = operator.attrgetter(node.target)(gm)
        else:
            values[node] = _call(node, values)
    return values


def run_by_kernels(graph: fx.Graph, kernels: KernelMap, whole: Mapping[fx.Node, Any]) -> list[Any]:
    """Return what the graph returns, computed kernel by kernel.

    A kernel sees what it is said to read from memory, if it was stored there before, and what it computes itself. What
    is drawn at random is taken from ``whole``, a run in graph order, as are the inputs. Raises AssertionError where a
    kernel misses something, or stores what is stored already.
    """
    inputs = {node: whole[node] for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    memory: dict[fx.Node, Any] = {}
    for index, kernel in enumerate(kernels.kernels):
        stored = _Kernel(kernel, inputs, memory, whole).run()
        for node, value in stored.items():
            assert node not in memory, f"{node} is stored twice"
            assert kernels.kernel_of[node] == index
            memory[node] = value
    outside = _Kernel(Launch((), dict.fromkeys([*inputs, *memory], 0), frozenset()), inputs, memory, whole)
    return [
        outside.value(node) if isinstance(node, fx.Node) else node for node in graph.output_node().args[0]
    ]


class _Kernel:
    def __init__(
        self,
        kernel: Launch,
        inputs: Mapping[fx.Node, Any],
        memory: Mapping[fx.Node, Any],
        whole: Mapping[fx.Node, Any],
    ) -> None:
        self._kernel, self._inputs, self._memory, self._whole = kernel, inputs, memory, whole
        self._computed: dict[fx.Node, Any] = {}
        self._readable = {launch_of(node) if node.op == "call_function" else node for node in kernel.reads}

    def run(self) -> dict[fx.Node, Any]:
        for node in self._kernel.operators:
            if is_random(node.target):
                self._computed[node] = self._whole[node]
            else:
                values = {argument: self.value(argument) for argument in node.all_input_nodes}
                self._computed[node] = _call(node, values)
        return {node: self._computed[node] for node in self._kernel.operators if node in self._kernel.stored}

    def value(self, node: fx.Node) -> Any:
        if node in self._computed:
            return self._computed[node]
        if node in self._inputs:
            is_number = not isinstance(self._inputs[node], torch.Tensor)
            assert is_number or node in self._readable, f"{node} is read, and not said to be"
            return self._inputs[node]
        if launches(node):
            assert node in self._readable, f"{node} is read, and not said to be"
            assert node in self._memory, f"{node} is read before it is stored"
            return self._memory[node]
        # A view, or one of several results: nothing runs for it.
        return _call(node, {argument: self.value(argument) for argument in node.all_input_nodes})


def _call(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    if node.op == "output":
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    assert node.op == "call_function"
    assert callable(node.target)
    if node.target is operator.getitem:
        return args[0][args[1]]
    return node.target(*args, **kwargs)
