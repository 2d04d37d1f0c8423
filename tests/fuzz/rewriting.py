"""Put a policy between AOTAutograd and the two sides it runs, and keep what it takes to run them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.graph.joint import ModelNames
from offload_runtime.offload_plan import TransferSource, Variant
from offload_runtime.passes import pipeline, selection
from offload_runtime.passes.partition import Partition, partition_pass, read_partition
from offload_runtime.passes.pipeline import JointInputs, RewrittenPair, rewrite_joint
from offload_runtime.runtime.backend import OPS
from offload_runtime.runtime.transfer import register_transfer

__all__ = ["Capture", "RecordedSide", "Rewritten", "Treatment", "copy_module", "run_pair"]


@dataclass(frozen=True)
class Treatment:
    """What is done to a graph: the policy, how the graph is split, and when the simulated engine copies.

    ``partitioning`` is ``tagged`` as users get it. The others split without the policy's tags, by min-cut or
    saving everything: then views and slices are saved, which tags would have recomputed, and the passes have
    to replay them.
    """

    policy: CompiledPolicy
    partitioning: str
    timing: Any
    engine_seed: int


@dataclass(frozen=True)
class Rewritten:
    """A rewritten pair, and a copy of the partition as it was before: each offload replaced by save."""

    pair: RewrittenPair
    reference: Partition
    keys: tuple[int, ...]


class Capture:
    """A partitioner and both compilers for ``aot_autograd``: records one run.

    ``rewritten`` holds the joint graph after each treatment; the first is the one that AOTAutograd runs.
    """

    def __init__(self, treatments: Sequence[Treatment], variant: Variant = "policy") -> None:
        self._treatments, self._variant = treatments, variant
        self.rewritten: list[Rewritten] = []
        self.forward: RecordedSide | None = None
        self.backward: RecordedSide | None = None

    @property
    def is_differentiated(self) -> bool:
        """Whether there was a joint graph to split."""
        return bool(self.rewritten) and self.forward is not None and self.backward is not None

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> Any:
        inputs = JointInputs(
            joint_inputs,
            kwargs["num_fwd_outputs"],
            kwargs.get("static_lifetime_input_indices") or (),
            ModelNames(),
        )
        # Partitioning asks for AOTAutograd's fake mode, so all treatments are given here.
        graphs = [gm, *(copy_module(gm) for _ in self._treatments[1:])]
        self.rewritten = [
            _rewrite(graph, inputs, treatment, self._variant)
            for graph, treatment in zip(graphs, self._treatments, strict=True)
        ]
        first = self.rewritten[0].pair.partition
        return first.forward, first.backward

    def compile_forward(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        """Return the forward as it is, recorded."""
        self.forward = RecordedSide(gm)
        return self.forward

    def compile_backward(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        """Return the backward as it is, recorded."""
        self.backward = RecordedSide(gm)
        return self.backward


def _rewrite(gm: fx.GraphModule, inputs: JointInputs, treatment: Treatment, variant: Variant) -> Rewritten:
    keys: list[int] = []

    def register(source: TransferSource) -> int:
        keys.append(register_transfer(source.node, source.num_bytes, poison_source=True))
        return keys[-1]

    with _splitting(treatment.partitioning, variant) as partitions:
        pair = rewrite_joint(
            gm,
            inputs,
            policy=treatment.policy,
            mode="graph",
            variant=variant,
            ops=OPS,
            register=register,
        )
    return Rewritten(pair, partitions[0], tuple(keys))


@contextmanager
def _splitting(partitioning: str, variant: Variant) -> Iterator[list[Partition]]:
    """Split in the way that the treatment asks for; keep copies of the partitions as they were before."""
    partitions: list[Partition] = []

    def split(*args: Any, **kwargs: Any) -> Partition:
        if partitioning == "save_everything":
            kwargs["splitter"] = "save_everything"
        partition = partition_pass(*args, **kwargs)
        copies = copy_module(partition.forward), copy_module(partition.backward)
        partitions.append(read_partition(*copies, num_fwd_outputs=partition.num_fwd_outputs))
        return partition

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(pipeline, "partition_pass", split))
        if partitioning != "tagged" and variant != "baseline":
            stack.enter_context(mock.patch.object(selection, "tag_activations_pass"))
        yield partitions


class RecordedSide:
    """A graph module as a compiled function; keeps copies of what it was called with and what it returned."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._boxed_call = True  # on the instance: AOTAutograd's wrappers copy it from there
        self._gm = gm
        self._names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        self._is_backward = any("tangents" in name for name in self._names)
        self.arguments: list[Any] = []
        self.tangents: dict[str, Any] = {}
        self.results: list[Any] = []
        self.rng_state = torch.get_rng_state()

    def __call__(self, arguments: list[Any]) -> Any:
        own = list(arguments)
        arguments.clear()
        self.rng_state = torch.get_rng_state()
        if self._is_backward:
            pairs = zip(self._names, own, strict=True)
            self.tangents = {name: _copy(value) for name, value in pairs if "tangents" in name}
        else:
            self.arguments = [_copy(value) for value in own]
        results = self._gm(*own)
        # The host buffers at the end of a forward are the engine's to read, nobody else's.
        hosts = {node for node in self._gm.graph.nodes if node.target in (OPS.d2h_start, OPS.d2h_wait)}
        nodes = self._gm.graph.output_node().args[0]
        self.results = [
            None if node in hosts else _copy(value) for node, value in zip(nodes, results, strict=True)
        ]
        return results


def run_pair(
    forward: fx.GraphModule, backward: fx.GraphModule, num_outputs: int, capture: Capture
) -> tuple[list[Any], list[Any]]:
    """Run a pair on what a capture recorded; return the outputs and the gradients."""
    assert capture.forward is not None
    assert capture.backward is not None
    torch.set_rng_state(capture.forward.rng_state)
    results = forward(*map(_copy, capture.forward.arguments))
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    saved = [name for name in names if "tangents" not in name]
    crossing = dict(zip(saved, results[num_outputs:], strict=True)) | capture.backward.tangents
    outputs = [_copy(value) for value in results[:num_outputs]]
    del results
    return outputs, list(backward(*(crossing[name] for name in names)))


def copy_module(gm: fx.GraphModule) -> fx.GraphModule:
    """Copy a graph module; fake tensors stay shared, because storages are told apart by them."""
    graph = fx.Graph()
    environment: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, environment))
    graph.output_node().meta = dict(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
