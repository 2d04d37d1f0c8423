from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.graph.joint import forward_activations, origin_of, read_joint_graph
from offload_runtime.graph.kernels import launch_of
from offload_runtime.passes.candidates import SavedStorage, collect_candidates, saved_storages
from offload_runtime.passes.partition import partition_pass
from offload_runtime.passes.recompute import recompute_options
from offload_runtime.passes.tag import JudgedStorage, tag_activations_pass
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs
from offload_runtime.step import Recompute
from tests.passes.planned import HARDWARE, planned_policy


class Module(nn.Module):
    """A function of ``x`` and square weights as a module."""

    def __init__(self, function: Callable[..., Any], num_weights: int = 2, **buffers: Tensor) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(16, 16)) for _ in range(num_weights))
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


@dataclasses.dataclass(frozen=True)
class Options:
    """What crosses, by operator, and how each could be computed again."""

    stored: list[SavedStorage]
    options: list[Recompute | None]

    def names(self) -> list[str]:
        return [self.name(item) for item in self.stored]

    def name(self, item: SavedStorage) -> str:
        writer = launch_of(item.storage.writer)
        return "x" if item.judged.decision is None else str(writer.target).split(".")[1]

    def of(self, name: str) -> Recompute | None:
        (index,) = [index for index, found in enumerate(self.names()) if found == name]
        return self.options[index]


def options_of(
    function: Callable[..., Any],
    *,
    save: str = "save",
    rules: list[dict[str, Any]] | None = None,
    mode: str = "graph",
    num_weights: int = 2,
    rows: int = 256,
    **buffers: Tensor,
) -> Options:
    """Split with everything saved (or as the rules say), and ask for the ways back."""
    module = Module(function, num_weights, **buffers)
    x = torch.randn(rows, 16, requires_grad=True)
    (graph,) = capture_joint_graphs(module, [x], mode=mode, accelerator=False)
    return _options(graph, save, rules or [], mode)


def _options(graph: CapturedGraph, save: str, rules: list[dict[str, Any]], mode: str) -> Options:
    policy = planned_policy(save, rules=rules, select="largest_first")
    gm = graph.copy()
    gm.graph.eliminate_dead_code()
    joint = read_joint_graph(
        gm,
        num_fwd_outputs=graph.inputs.num_fwd_outputs,
        static_input_indices=graph.inputs.static_input_indices,
        names=graph.inputs.names,
    )
    judged = [
        JudgedStorage(storage, activation, None if storage.is_input else policy.decide(activation))
        for storage, activation in forward_activations(joint)
    ]
    tag_activations_pass(gm, joint=joint, judged=judged)
    partition = partition_pass(
        gm,
        graph.inputs.example_inputs,
        num_fwd_outputs=graph.inputs.num_fwd_outputs,
        static_input_indices=graph.inputs.static_input_indices,
        splitter="min_cut",
    )
    stored = saved_storages(partition, judged)
    assert len(collect_candidates(joint, partition, stored)) == len(stored)
    return Options(stored, recompute_options(joint, partition, stored, mode=mode, profile=HARDWARE))


def chain(module: Module, x: Tensor) -> Tensor:
    """mm -> silu -> mm -> sin, all of which backward reads."""
    hidden = F.silu(x @ module.weights[0]) @ module.weights[1]
    return hidden.sin().sum()


def test_a_way_back_ends_at_what_is_saved() -> None:
    options = options_of(chain)
    (first, second) = [index for index, name in enumerate(options.names()) if name == "mm"]
    silu = options.names().index("silu")
    assert options.options[silu] is not None
    assert options.options[silu].needs == (first,)
    assert options.options[second] is not None
    assert options.options[second].needs == (silu,)
    # What only inputs and weights are needed for needs no other: those are there anyway.
    assert options.options[first] is not None
    assert {options.names()[index] for index in options.options[first].needs} <= {"x"}


def test_a_way_back_goes_through_what_is_not_saved() -> None:
    rule = {"name": "silu", "match": {"op": "activation"}, "action": "recompute"}
    options = options_of(chain, rules=[rule])
    assert "silu" not in options.names()
    (first, second) = [index for index, name in enumerate(options.names()) if name == "mm"]
    assert options.options[second] is not None
    assert options.options[second].needs == (first,)


def test_what_backward_computes_again_anyway_costs_nothing_more() -> None:
    silu_again = {"name": "silu", "match": {"op": "activation"}, "action": "recompute"}
    kept, again = options_of(chain), options_of(chain, rules=[silu_again])
    second_kept = [o for o, n in zip(kept.options, kept.names(), strict=True) if n == "mm"][1]
    second_again = [o for o, n in zip(again.options, again.names(), strict=True) if n == "mm"][1]
    assert second_kept is not None
    assert second_again is not None
    assert second_again.duration_ms == second_kept.duration_ms


def test_a_way_back_costs_what_its_kernels_cost() -> None:
    def deep(module: Module, x: Tensor) -> Tensor:
        hidden = (x @ module.weights[0]).exp().exp()
        return (hidden @ module.weights[1]).sum()

    options = options_of(deep)
    # The first comes from a product that is not saved, the second from the first.
    durations = [
        o.duration_ms for o, n in zip(options.options, options.names(), strict=True) if n == "exp" and o
    ]
    assert [round(duration / (HARDWARE.launch_ms or 0.0)) for duration in durations] == [2, 1]


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_pointwise_operators_are_one_kernel_where_they_fuse(mode: str) -> None:
    def pointwise(module: Module, x: Tensor) -> Tensor:
        hidden = ((x @ module.weights[0]) * 2 + 1) * 3
        return (hidden @ module.weights[1]).sum()

    options = options_of(pointwise, mode=mode)
    (index,) = [i for i, item in enumerate(options.stored) if options.names()[i] == "mul"]
    option = options.options[index]
    assert option is not None
    launch_ms = HARDWARE.launch_ms or 0.0
    num_launches = round(option.duration_ms / launch_ms)
    # The product is not saved: it is computed again, too, and three pointwise operators behind it.
    assert num_launches == (2 if mode == "inductor" else 4)


def test_random_numbers_are_never_drawn_twice() -> None:
    options = options_of(lambda module, x: F.dropout(x @ module.weights[0], 0.5).square().sum())
    drawn = [o for o, n in zip(options.options, options.names(), strict=True) if n == "native_dropout"]
    assert drawn
    assert set(drawn) == {None}


def test_no_way_back_leads_through_a_random_operator() -> None:
    def noisy(module: Module, x: Tensor) -> Tensor:
        return ((torch.rand_like(x) + x) @ module.weights[0]).sum()

    assert options_of(noisy).of("add") is None
    assert options_of(lambda module, x: ((x + 1) @ module.weights[0]).sum()).of("add") is not None


def test_nothing_is_computed_again_from_an_input_that_the_step_overwrites() -> None:
    def running(module: Any, x: Tensor) -> Tensor:
        shifted = x + module.shift
        module.shift.add_(1.0)
        return (shifted @ module.weights[0]).sum()

    assert options_of(running, shift=torch.ones(16)).of("add") is None
    still = options_of(lambda module, x: ((x + module.shift) @ module.weights[0]).sum(), shift=torch.ones(16))
    assert still.of("add") is not None


def test_inputs_and_what_the_caller_gets_are_not_computed_again() -> None:
    def returning(module: Module, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (x @ module.weights[0]).sigmoid()
        return hidden, (hidden @ module.weights[1]).sum()

    options = options_of(returning)
    assert options.of("sigmoid") is None
    assert {
        option for item, option in zip(options.stored, options.options, strict=True) if item.storage.is_input
    } == {None}


def test_a_way_back_of_more_than_64_operators_is_none() -> None:
    def long(module: Module, x: Tensor) -> Tensor:
        for _ in range(70):
            x = x + 1
        return (x @ module.weights[0]).sum()

    def short(module: Module, x: Tensor) -> Tensor:
        for _ in range(50):
            x = x + 1
        return (x @ module.weights[0]).sum()

    assert options_of(long).of("add") is None
    assert options_of(short).of("add") is not None


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_what_an_option_needs_suffices(mode: str) -> None:
    """Every operator on a way back reads inputs, what is needed, or what is on the way."""

    def norm(module: Module, x: Tensor) -> Tensor:
        hidden = F.layer_norm(x @ module.weights[0], (16,))
        return (F.gelu(hidden) @ module.weights[1] + hidden).square().sum()

    options = options_of(norm, mode=mode)
    saved = {node: index for index, item in enumerate(options.stored) for node in item.storage.nodes}
    assert any(option is not None and option.needs for option in options.options)
    for index, (item, option) in enumerate(zip(options.stored, options.options, strict=True)):
        if option is None:
            continue
        pending, seen = [launch_of(item.storage.writer)], set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            for source in node.all_input_nodes:
                other = saved.get(source, index)
                if other != index:
                    assert other in option.needs or options.stored[other].storage.is_input
                elif source.op != "placeholder":
                    pending.append(source)
        assert index not in option.needs
        assert origin_of(item.storage.writer) is not None
