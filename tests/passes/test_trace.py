from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from offload_runtime.graph.joint import ModelNames
from offload_runtime.graph.kernels import launch_of
from offload_runtime.graph.storages import tensor_of
from offload_runtime.models.step_places import holdings_at
from offload_runtime.passes.pipeline import JointInputs, PlannedPair, plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.passes.trace import TracedPair
from offload_runtime.policy import Limits
from offload_runtime.runtime.capture import capture_joint_graphs
from tests.fuzz.programs import build_module, draw_program, example_inputs
from tests.graph.kernel_runs import run_whole
from tests.passes.planned import HARDWARE, baseline_of, plan, planned_policy

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


@pytest.mark.parametrize("mode", MODES)
def test_planned_moves_are_the_same_after_they_became_transfers_between_nodes(mode: str) -> None:
    everything = planned_policy("offload", select="largest_first", defer="auto", prefetch="auto")
    selected = plan(everything, mode).selected
    traced = selected.traced
    assert traced is not None
    assert len(selected.transfers) > 4
    moves = traced.moves(selected.transfers, selected.candidates)
    assert traced.transfers(moves, selected.candidates) == selected.transfers
    for move in moves:
        item = traced.trace.items[move.item]
        assert item.ready == move.copy_after <= item.last_forward_use <= move.release_after
        assert move.reload_before <= move.use_before == item.first_backward_use
        assert move.release_after < traced.trace.num_forward <= move.reload_before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", [0, 1, 2, 8])
def test_a_schedule_by_layers_frees_no_earlier_and_reloads_no_later_than_its_nodes(
    mode: str, layers: int
) -> None:
    policy = planned_policy("offload", select="largest_first", defer=layers, prefetch=layers)
    selected = plan(policy, mode).selected
    traced = selected.traced
    assert traced is not None
    by_source = {
        source.node: index
        for index, candidate in enumerate(selected.candidates)
        for source in candidate.sources
    }
    moves = {move.item: move for move in traced.moves(selected.transfers, selected.candidates)}
    assert moves.keys() == {by_source[transfer.source.node] for transfer in selected.transfers}
    backward = range(traced.trace.num_forward, len(traced.positions))
    for transfer in selected.transfers:
        move = moves[by_source[transfer.source.node]]
        done = [k for k in range(traced.trace.num_forward) if traced.positions[k] <= transfer.release_after]
        begun = [k for k in backward if traced.positions[k] >= transfer.reload_before]
        assert move.release_after == max([traced.trace.items[move.item].last_forward_use, *done[-1:]])
        assert move.reload_before == min([move.use_before, *begun[:1]])


@pytest.mark.parametrize("mode", MODES)
def test_each_kernel_is_a_node_of_its_graph_and_runs_once(mode: str) -> None:
    pair = baseline_of(mode)
    traced, partition = traced_of(pair), pair.selected.partition
    for kernels, gm in (
        (range(traced.trace.num_forward), partition.forward),
        (range(traced.trace.num_forward, len(traced.positions)), partition.backward),
    ):
        nodes = list(gm.graph.nodes)
        names = [traced.trace.kernels[kernel].name for kernel in kernels]
        assert len(set(names)) == len(names)
        assert set(names) <= {node.name for node in nodes}
        positions = [traced.positions[kernel] for kernel in kernels]
        assert all(nodes[position].op == "call_function" for position in positions)
        if mode == "graph":
            assert [nodes[position].name for position in positions] == names
            assert positions == sorted(positions)
    fused = len(traced.trace.kernels)
    assert fused < len(traced_of(baseline_of("graph")).trace.kernels) or mode == "graph"


class _Shifted(nn.Module):
    """The product is read by one pointwise operator alone, and backward needs neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("second", torch.randn(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        shifted = x @ self.first + 1.0
        return shifted @ self.second


@pytest.mark.parametrize(("mode", "late"), [("graph", 0), ("inductor", 1)])
def test_a_fused_kernel_writes_into_a_buffer_that_it_is_the_last_to_read(mode: str, late: int) -> None:
    (graph,) = capture_joint_graphs(_Shifted(), [torch.randn(128, 64)], mode=mode, accelerator=False)
    pair = plan(planned_policy("save", select="largest_first"), mode, graph=graph, variant="baseline")
    trace = traced_of(pair).trace
    names = [kernel.name for kernel in trace.kernels]
    product, shifted = (next(name for name in names if name.startswith(start)) for start in ("mm", "add"))
    regions = {region.name: region for region in trace.regions}
    assert regions[product].last == names.index(shifted)
    assert regions[shifted].first == names.index(shifted) + late
    assert regions[shifted].last > names.index(shifted)


class _Embedded(nn.Module):
    """An embedding, whose gradient in bfloat16 is summed up in float32 first, by the last operators of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32, dtype=torch.bfloat16)
        self.head = nn.Linear(32, 32, bias=False, dtype=torch.bfloat16)

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.head(self.table(tokens)).float().square().mean()
        return loss


@pytest.mark.parametrize(("mode", "others"), [("graph", set()), ("inductor", {64 * 32 * 4})])
def test_gradients_are_what_backward_leaves_and_no_temporary_of_its_last_kernel(
    mode: str, others: set[int]
) -> None:
    (graph,) = capture_joint_graphs(
        _Embedded(), [torch.arange(64).reshape(2, 32)], mode=mode, accelerator=False
    )
    pair = plan(planned_policy("save", select="largest_first"), mode, graph=graph, variant="baseline")
    trace = traced_of(pair).trace
    left = [region for region in trace.regions if region.is_gradient]
    assert sorted(region.num_bytes for region in left) == [32 * 32 * 2, 64 * 32 * 2]
    assert all(region.last == len(trace.kernels) - 1 for region in left)
    held = {holding.what: holding.num_bytes for holding in holdings_at(pair, len(trace.kernels) - 1)}
    assert held.pop("gradients") == 32 * 32 * 2 + 64 * 32 * 2
    assert others <= set(held.values())
