"""A small stand-in for the passes: offload every saved activation of a partitioned graph, and reload it.

Just enough to run the operators where they really live: in the forward and backward graphs that AOTAutograd
hands to a compiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch._inductor import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from offload_runtime.runtime import ops

Mode = Literal["graph", "inductor"]
MODES: tuple[Mode, ...] = ("graph", "inductor")


def partition(
    gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split as torch does by default; Inductor passes arguments that only its own partitioner takes."""
    known = ("num_fwd_outputs", "static_lifetime_input_indices")
    return default_partition(gm, joint_inputs, **{name: kwargs[name] for name in known if name in kwargs})


class OffloadEverything(CustomPartitionerFn):  # type: ignore[misc]  # torch ships no types for it
    """Partition, then send every saved tensor that the forward computed to the host and back."""

    def __init__(self, register: Callable[..., int]) -> None:
        self._register = register
        self.keys: list[int] = []
        self.forward: fx.GraphModule | None = None

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        num_outputs = kwargs["num_fwd_outputs"]
        forward, backward = partition(gm, joint_inputs, **kwargs)
        (output,) = forward.graph.find_nodes(op="output")
        results = list(output.args[0])
        for position, node in enumerate(results):
            if position < num_outputs or node in results[:num_outputs] or not _is_activation(node):
                continue
            key = self._register(node.name)
            self.keys.append(key)
            results[position] = _offload(forward.graph, node, output, key)
            _reload(backward.graph, node, key)
        output.args = (tuple(results),)
        for half in (forward, backward):
            half.graph.lint()
            half.recompile()
        self.forward = forward
        return forward, backward

    def uuid(self) -> None:
        """Keep Inductor from caching: these graphs are the tests' own."""


def _is_activation(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)


def _insert(graph: fx.Graph, target: torch._ops.OpOverload, args: tuple[Any, ...]) -> fx.Node:
    node = graph.call_function(target, args)
    fake = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
    mode = next(val.fake_mode for val in fake if isinstance(val, torch.Tensor))
    with mode:
        node.meta["val"] = target(*fake)
    return node


def _offload(graph: fx.Graph, node: fx.Node, output: fx.Node, key: int) -> fx.Node:
    with graph.inserting_after(node):
        host = _insert(graph, ops.d2h_start, (node, [], key))
    with graph.inserting_before(output):
        return _insert(graph, ops.d2h_wait, (host, node, [], key))


def _reload(graph: fx.Graph, saved: fx.Node, key: int) -> None:
    placeholder = next(n for n in graph.find_nodes(op="placeholder") if n.name == saved.name)
    readers = list(placeholder.users)
    device = saved.meta["val"].device
    with graph.inserting_before(readers[0] if readers else None):
        host_value = saved.meta["val"]
        with host_value.fake_mode:
            placeholder.meta["val"] = torch.empty_strided(
                host_value.shape, host_value.stride(), dtype=host_value.dtype, device="cpu"
            )
        dev = _insert(graph, ops.h2d_start, (placeholder, [], device, key))
        reloaded = _insert(graph, ops.h2d_wait, (dev, placeholder, key))
    for reader in readers:
        reader.replace_input_with(placeholder, reloaded)


def backend(mode: Mode, partitioner: OffloadEverything, **inductor_settings: Any) -> Callable[..., Any]:
    """Return a ``torch.compile`` backend whose graphs are rewritten by ``partitioner``."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Any:
        with functorch_config.patch(enable_autograd_cache=False):
            if mode == "graph":
                compile_halves = aot_autograd(
                    fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partitioner
                )
                return compile_halves(gm, list(example_inputs))
            # The cache would try to pickle the partitioner and log the failure with its traceback, which
            # pytest keeps, and with it every tensor of the frames above.
            patches = {"custom_partitioner_fn": partitioner, "fx_graph_cache": False, **inductor_settings}
            return compile_fx.compile_fx(gm, list(example_inputs), config_patches=patches)

    return compile_graph


@contextlib.contextmanager
def no_donated_buffers() -> Iterator[None]:
    """Let a backward run twice, and keep Inductor from writing into what was saved."""
    with functorch_config.patch(donated_buffer=False):
        yield
