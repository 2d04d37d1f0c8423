from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from offload_runtime.graph.joint import ModelNames
from offload_runtime.graph.kernels import launch_of
from offload_runtime.graph.storages import tensor_of
from offload_runtime.passes.pipeline import JointInputs, PlannedPair, plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.passes.trace import TracedPair
from offload_runtime.policy import Limits
from tests.fuzz.programs import build_module, draw_program, example_inputs
from tests.graph.kernel_runs import run_whole
from tests.passes.planned import HARDWARE, planned_policy

MODES = ["graph", "inductor"]


def traced_of(pair: PlannedPair) -> TracedPair:
    assert pair.selected.traced is not None
    return pair.selected.traced


@dataclass(frozen=True)
class Drawn:
    """A random program, split and described, and what its two graphs were called with."""

    seed: int
    pair: PlannedPair
    forward_arguments: list[Any]
    backward_arguments: list[Any]


def draw(seeds: Sequence[int]) -> Iterator[Drawn]:
    """Draw programs and train each for one step; the policy recomputes what it can in every other one."""
    for seed in seeds:
        program = draw_program(random.Random(seed), max_steps=12)
        if program is None:
            continue
        pairs: list[PlannedPair] = []
        arguments: list[list[Any]] = []

        def partition(
            gm: fx.GraphModule, joint_inputs: Any, pairs: Any = pairs, seed: int = seed, **kwargs: Any
        ) -> Any:
            static = kwargs.get("static_lifetime_input_indices") or ()
            inputs = JointInputs(joint_inputs, kwargs["num_fwd_outputs"], static, ModelNames())
            policy = planned_policy("recompute" if seed % 2 else "save", select="largest_first")
            pairs.append(
                plan_joint(
                    gm,
                    inputs,
                    policy=policy,
                    mode="graph",
                    variant="policy",
                    setting=Setting(Limits(), HARDWARE),
                )
            )
            split = pairs[-1].selected.partition
            return split.forward, split.backward

        def compile_side(gm: fx.GraphModule, example: Any, arguments: Any = arguments) -> Any:
            def run(given: list[Any]) -> Any:
                own = [value.clone() if isinstance(value, Tensor) else value for value in given]
                given.clear()
                arguments.append([value.clone() if isinstance(value, Tensor) else value for value in own])
                return gm(*own)

            run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of what clears its arguments
            return run

        compiled: Any = aot_autograd(
            fw_compiler=compile_side, bw_compiler=compile_side, partition_fn=partition
        )
        try:
            outputs = compiled(build_module(program), example_inputs(program))(*example_inputs(program))
            trained = [output.float().sum() for output in outputs if output.requires_grad]
            if trained:
                torch.stack(trained).sum().backward()
        except RuntimeError:
            continue  # plain autograd refuses it too: a saved value was overwritten
        if pairs and len(arguments) == 2:
            yield Drawn(seed, pairs[0], *arguments)


class _Ran:
    """One graph, run with real tensors: the storage of every value, and when each storage is last read."""

    def __init__(self, gm: fx.GraphModule, arguments: Sequence[Any]) -> None:
        self.nodes = list(gm.graph.nodes)
        self.values = run_whole(gm, arguments)
        self.storage = {
            node: _storage(self.values[node]) for node in self.nodes if tensor_of(node) is not None
        }
        self.num_bytes: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for position, node in enumerate(self.nodes):
            for source in (node, *node.all_input_nodes):
                if source in self.storage and node.op != "output":
                    self.last[self.storage[source]] = position
            tensor = tensor_of(node)
            if tensor is not None:
                at = self.storage[node]
                self.first.setdefault(at, self.nodes.index(launch_of(node)))
                size = tensor.untyped_storage().nbytes()
                self.num_bytes[at] = max(self.num_bytes.get(at, 0), size)

    def inputs(self) -> set[int]:
        return {
            self.storage[node]
            for node in self.nodes
            if node.op in ("placeholder", "get_attr") and node in self.storage
        }

    def returned(self, num_outputs: int | None) -> set[int]:
        results = self.nodes[-1].args[0]
        assert isinstance(results, list | tuple)
        return {self.storage[node] for node in results[:num_outputs] if node in self.storage}


def _storage(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else 0


def living_bytes(drawn: Drawn) -> tuple[list[int], list[int]]:
    """Return the bytes that are alive at each node of both graphs, forward's inputs left out."""
    partition = drawn.pair.selected.partition
    forward = _Ran(partition.forward, drawn.forward_arguments)
    backward = _Ran(partition.backward, drawn.backward_arguments)
    returned = forward.returned(partition.num_fwd_outputs)
    until: dict[int, int] = dict.fromkeys(returned, len(backward.nodes))
    for saved in partition.saved:
        at, received = forward.storage.get(saved.forward), backward.storage.get(saved.backward)
        if at is not None and received is not None:
            until[at] = max(until.get(at, 0), backward.last[received])
    own = set(forward.num_bytes) - forward.inputs()
    kept = {backward.storage[s.backward] for s in partition.saved if s.backward in backward.storage}
    gradients = backward.returned(None)
    first = [
        sum(
            forward.num_bytes[at]
            for at in own
            if forward.first[at] <= position and (position <= forward.last[at] or at in until)
        )
        for position in range(len(forward.nodes))
    ]
    second = [
        sum(forward.num_bytes[at] for at in own if position <= until.get(at, -1))
        + sum(
            backward.num_bytes[at]
            for at in set(backward.num_bytes) - kept
            if backward.first[at] <= position and (position <= backward.last[at] or at in gradients)
        )
        for position in range(len(backward.nodes))
    ]
    return first, second


def test_memory_of_random_steps_is_that_of_a_walk_with_real_tensors() -> None:
    num_kernels = num_recomputed = 0
    for drawn in draw(range(24)):
        traced = traced_of(drawn.pair)
        trace, simulation = traced.trace, drawn.pair.selected.simulation
        assert simulation is not None
        sides = living_bytes(drawn)
        expected = [
            sides[kernel >= trace.num_forward][position] for kernel, position in enumerate(traced.positions)
        ]
        inputs = drawn.pair.selected.partition.backward.graph.find_nodes(op="placeholder")
        unread = {node.name for node in inputs if not node.users}
        beside = [r for r in trace.regions if r.name.startswith("workspace of") or r.name in unread]
        found = [
            num_bytes
            - trace.resident_bytes
            - sum(region.num_bytes for region in beside if region.first <= kernel <= region.last)
            for kernel, num_bytes in enumerate(simulation.device_bytes)
        ]
        assert found == expected, f"seed {drawn.seed}"
        num_kernels += len(trace.kernels)
        num_recomputed += sum(verdict.fate == "recompute" for verdict in drawn.pair.plan.verdicts)
    assert num_kernels > 300
    assert num_recomputed > 10
