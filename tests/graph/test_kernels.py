from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from offload_runtime.graph.kernels import (
    KernelMap,
    group_kernels,
    is_scatter,
    is_unfusible,
    launch_of,
    launches,
    values_read,
)
from offload_runtime.passes.partition import partition_pass
from tests.fuzz.programs import build_module, draw_program, example_inputs
from tests.graph.kernel_runs import run_by_kernels, run_whole
from tests.graph.traces import trace

_aten = torch.ops.aten


def names(nodes: Any) -> list[str]:
    return [str(node.target).split(".")[1] if node.op == "call_function" else node.name for node in nodes]


def kernels_of(function: Callable[..., Any], *inputs: Tensor, fused: bool = True) -> KernelMap:
    return group_kernels(list(trace(function, *inputs).graph.nodes), fused=fused)


def operators_of(kernels: KernelMap) -> list[list[str]]:
    return [names(kernel.operators) for kernel in kernels.kernels]


X, W = torch.randn(8, 8), torch.randn(8, 8)


def test_without_fusion_every_operator_is_a_kernel_and_views_are_none() -> None:
    kernels = kernels_of(lambda x, w: (x @ w.t()).sin().view(4, 16).cos(), X, W, fused=False)
    assert operators_of(kernels) == [["mm"], ["sin"], ["cos"]]
    assert [names(kernel.reads) for kernel in kernels.kernels] == [["x_1", "w_1"], ["mm"], ["sin"]]


def test_pointwise_operators_are_one_kernel_between_products() -> None:
    kernels = kernels_of(lambda x, w: ((x * 2).sin() @ w).cos() + x, X, W)
    assert operators_of(kernels) == [["mul", "sin"], ["mm"], ["cos", "add"]]
    assert [names(kernel.stored) for kernel in kernels.kernels] == [["sin"], ["mm"], ["add"]]


def test_a_pointwise_value_is_computed_in_each_kernel_that_reads_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        shared = x.sin()
        return (shared * 2) @ w + shared

    kernels = kernels_of(function, X, W)
    assert operators_of(kernels) == [["sin", "mul"], ["mm"], ["sin", "add"]]
    assert [names(kernel.stored) for kernel in kernels.kernels] == [["mul"], ["mm"], ["add"]]
    assert [storage.base.target for storage in kernels.written if not storage.is_input] == [
        _aten.mul.Tensor,
        _aten.mm.default,
        _aten.add.Tensor,
    ]


def test_a_value_of_many_others_is_stored_where_several_kernels_read_it() -> None:
    inputs = [torch.randn(8, 8) for _ in range(5)]

    def function(*given: Tensor) -> Tensor:
        total = given[0] + given[1] + given[2] + given[3] + given[4]
        return (total * 2) @ given[0] + total

    kernels = kernels_of(function, *inputs)
    assert names(kernels.kernels[0].stored) == ["add", "mul"] or names(kernels.kernels[0].stored) == [
        "mul",
        "add",
    ]
    assert operators_of(kernels)[-1] == ["add"]


def test_a_reduction_and_what_reads_it_are_one_kernel() -> None:
    kernels = kernels_of(lambda x: x - x.amax(-1, keepdim=True), X)
    assert operators_of(kernels) == [["amax", "sub"]]
    assert [names(kernel.stored) for kernel in kernels.kernels] == [["sub"]]
    (stored,) = [storage for storage in kernels.written if not storage.is_input]
    assert names(stored.nodes) == ["sub"]


def test_a_reduction_is_computed_once_though_several_kernels_read_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        scale = x.square().mean(-1, keepdim=True)
        return (x * scale) @ w + scale

    kernels = kernels_of(function, X, W)
    assert operators_of(kernels) == [["pow", "mean", "mul"], ["mm"], ["add"]]
    assert sorted(names(kernels.kernels[0].stored)) == ["mean", "mul"]


def test_random_numbers_are_drawn_once_though_several_kernels_read_them() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        kept = torch.rand_like(x) > 0.5
        return torch.where(kept, x, 0) @ w + torch.where(kept, x, 0)

    kernels = kernels_of(function, X, W)
    drawn = [index for index, found in enumerate(operators_of(kernels)) if "rand_like" in found]
    assert drawn == [0]


def test_several_results_of_one_operator_are_stored_by_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        return ((x - mean) * variance) @ w + mean

    kernels = kernels_of(function, X, W)
    assert operators_of(kernels) == [["var_mean", "sub", "mul"], ["mm"], ["add"]]
    assert names(map(launch_of, kernels.kernels[2].reads)) == ["mm", "var_mean"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_norm_that_stays_whole_is_launched(fused: bool) -> None:
    kernels = kernels_of(lambda x: F.layer_norm(x, (8,)).sin(), X, fused=fused)
    assert operators_of(kernels) == (
        [["native_layer_norm", "sin"]] if fused else [["native_layer_norm"], ["sin"]]
    )


@pytest.mark.parametrize(
    ("function", "alone"),
    [
        (lambda x, w: (x * 2) @ w * 2, "mm"),
        (lambda x, w: torch.sort(x * 2).values * 2, "sort"),
        (lambda x, w: torch.topk(x * 2, 2).values * 2, "topk"),
        (lambda x, w: (x * 2).cumsum(0) * 2, "cumsum"),
        (lambda x, w: _aten.index_put(x * 2, [torch.arange(2)], w[:2] * 2) * 2, "index_put"),
        (
            lambda x, w: torch.scatter(x * 2, 0, torch.zeros(1, 8, dtype=torch.int64), w[:1] * 2) * 2,
            "scatter",
        ),
        (lambda x, w: torch.ops.storage_tests.opaque(x * 2) * 2, "opaque"),
    ],
)
def test_what_no_compiler_fuses_is_a_kernel_of_its_own(function: Callable[..., Any], alone: str) -> None:
    kernels = kernels_of(function, X, W)
    (kernel,) = [found for found in kernels.kernels if alone in names(found.operators)]
    assert len(kernel.operators) == 1
    assert is_unfusible(kernel.operators[0])
    assert kernel.operators[0] in kernel.stored
    index = kernels.kernels.index(kernel)
    assert 0 < index < len(kernels.kernels) - 1


def test_a_scatter_is_known_and_a_gather_is_none() -> None:
    gm = trace(lambda x: _aten.index_put(x, [torch.arange(2)], x[:2]) + x[torch.arange(2)][0], X)
    calls = {names([node])[0]: node for node in gm.graph.nodes if node.op == "call_function"}
    assert is_scatter(calls["index_put"])
    assert not is_scatter(calls["index"])
    assert not is_unfusible(calls["index"])


def test_groups_of_one_level_form_no_cycle() -> None:
    # The second sum reads the product of the first: fusing all pointwise operators would be a cycle.
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = x.sin()
        second = first @ w
        return first + second, first * 2

    kernels = kernels_of(function, X, W)
    order = operators_of(kernels)
    assert order.index(["mm"]) < next(index for index, found in enumerate(order) if "add" in found)


def test_a_value_is_looked_up_behind_views_with_the_bytes_that_are_read() -> None:
    gm = trace(lambda x: (x.sin().t()[:2] + x[2:4]).sum(), X)
    add = next(node for node in gm.graph.nodes if node.target is _aten.add.Tensor)
    assert {node.name: num_bytes for node, num_bytes in values_read(add).items()} == {
        "sin": 2 * 8 * 4,
        "x_1": 2 * 8 * 4,
    }


def test_values_stand_in_the_order_of_the_arguments() -> None:
    gm = trace(lambda a, b, c: torch.addcmul(a[0], b.t(), c), X, W, X.clone())
    (call,) = [node for node in gm.graph.nodes if launches(node)]
    assert names(values_read(call)) == ["a_1", "b_1", "c_1"]


def test_the_pieces_of_a_split_are_values_of_what_was_split() -> None:
    gm = trace(lambda x: x.sin().split(4)[1].cos(), X)
    cos = next(node for node in gm.graph.nodes if node.target is _aten.cos.default)
    assert {node.name: num_bytes for node, num_bytes in values_read(cos).items()} == {"sin": 4 * 8 * 4}


def test_a_getitem_leads_to_its_call() -> None:
    gm = trace(lambda x: torch.topk(x, 2).values.sin(), X)
    piece = next(node for node in gm.graph.nodes if node.name.startswith("getitem"))
    assert names([launch_of(piece)]) == ["topk"]
    assert not launches(piece)


@dataclass(frozen=True)
class Side:
    """One graph of a partitioned pair, and what it was called with."""

    gm: fx.GraphModule
    arguments: list[Any]


def sides_of(seed: int, *, decomposed: bool) -> Iterator[Side]:
    """Draw a program, train it one step, and yield the forward and the backward graph that ran.

    ``decomposed`` as Inductor decomposes; every other program is split saving everything.
    """
    program = draw_program(random.Random(seed), max_steps=14)
    if program is None:
        return
    found: list[Side] = []

    def partition(gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        pair = partition_pass(
            gm,
            joint_inputs,
            num_fwd_outputs=kwargs["num_fwd_outputs"],
            static_input_indices=kwargs.get("static_lifetime_input_indices") or (),
            splitter="min_cut" if seed % 2 else "save_everything",
        )
        return pair.forward, pair.backward

    def compile_side(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        def run(arguments: list[Any]) -> Any:
            own = [value.clone() if isinstance(value, Tensor) else value for value in arguments]
            arguments.clear()
            found.append(Side(gm, [value.clone() if isinstance(value, Tensor) else value for value in own]))
            return gm(*own)

        run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark of what clears its arguments
        return run

    compiled: Any = aot_autograd(
        fw_compiler=compile_side,
        bw_compiler=compile_side,
        partition_fn=partition,
        decompositions=select_decomp_table() if decomposed else None,
    )
    try:
        outputs = compiled(build_module(program), example_inputs(program))(*example_inputs(program))
        trained = [output.float().sum() for output in outputs if output.requires_grad]
        if trained:
            torch.stack(trained).sum().backward()
    except RuntimeError:
        return  # plain autograd refuses it too: a saved value was overwritten
    yield from found


@pytest.mark.parametrize("decomposed", [False, True])
def test_kernels_of_random_graphs_compute_what_the_graph_computes(decomposed: bool) -> None:
    num_sides = num_kernels = num_operators = 0
    for seed in range(16):
        for side in sides_of(seed, decomposed=decomposed):
            num_sides += 1
            nodes = list(side.gm.graph.nodes)
            whole = run_whole(side.gm, side.arguments)
            expected = [
                whole[node] if isinstance(node, fx.Node) else node
                for node in side.gm.graph.output_node().args[0]
            ]
            for fused in (False, True):
                kernels = group_kernels(nodes, fused=fused)
                for ours, theirs in zip(run_by_kernels(side.gm.graph, kernels, whole), expected, strict=True):
                    if isinstance(theirs, Tensor):
                        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num()), f"seed {seed}"
                if fused:
                    num_kernels += len(kernels.kernels)
                    num_operators += sum(launches(node) for node in nodes)
    assert num_sides > 16
    assert num_kernels < 0.8 * num_operators, "little was fused"


@pytest.mark.parametrize("fused", [False, True])
def test_the_storages_that_kernels_leave_are_those_that_others_read(fused: bool) -> None:
    for side in sides_of(3, decomposed=True):
        nodes = list(side.gm.graph.nodes)
        kernels = group_kernels(nodes, fused=fused)
        stored = {node for kernel in kernels.kernels for node in kernel.stored}
        read = {launch_of(node) for kernel in kernels.kernels for node in kernel.reads}
        returned = set(map(launch_of, values_read(side.gm.graph.output_node())))
        assert {node for node in read | returned if launches(node)} <= stored
        left = {launch_of(storage.base) for storage in kernels.written if not storage.is_input}
        assert {node for node in left if launches(node)} == stored
