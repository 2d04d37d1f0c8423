from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from offload_runtime.errors import RefusedError
from offload_runtime.graph.costs import KernelCost, cost_of_kernel, duration_ms, workspace_bytes
from offload_runtime.graph.kernels import Launch, group_kernels
from offload_runtime.hardware import HardwareProfile, load_hardware

_aten = torch.ops.aten


def kernels_of(function: Callable[..., Any], *inputs: Tensor, fused: bool = False) -> list[Launch]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return list(group_kernels(list(gm.graph.nodes), fused=fused).kernels)


def costs_of(function: Callable[..., Any], *inputs: Tensor, fused: bool = False) -> list[KernelCost]:
    return [cost_of_kernel(kernel, fused=fused) for kernel in kernels_of(function, *inputs, fused=fused)]


def flops_of(function: Callable[..., Any], *inputs: Tensor) -> float:
    costs = costs_of(function, *inputs)
    return sum(cost.matmul_flops + cost.grouped_flops + cost.attention_flops for cost in costs)


def counted_by_torch(function: Callable[..., Any], *inputs: Tensor) -> int:
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        FlopCounterMode(display=False) as counter,
    ):
        function(*inputs)
    return counter.get_total_flops()


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(3, 5), (5, 7)]),
        (lambda x: torch.mm(x, x), [(6, 6)]),
        (lambda x: torch.mm(x, x.t()), [(6, 3)]),
        (torch.bmm, [(2, 3, 5), (2, 5, 7)]),
        (lambda x: torch.bmm(x, x), [(2, 5, 5)]),
        (torch.addmm, [(7,), (3, 5), (5, 7)]),
        (lambda x: torch.addmm(x, x, x), [(5, 5)]),
        (torch.baddbmm, [(2, 3, 7), (2, 3, 5), (2, 5, 7)]),
        (F.linear, [(2, 3, 5), (7, 5), (7,)]),
        (F.conv2d, [(2, 4, 9, 9), (6, 4, 3, 3), (6,)]),
        (lambda x, w: F.conv2d(x, w, stride=2, groups=2), [(2, 4, 9, 9), (6, 2, 3, 3)]),
        (lambda x, w: F.conv_transpose2d(x, w), [(2, 4, 9, 9), (4, 6, 3, 3)]),
        (lambda x, w: F.conv1d(x, w, padding=1), [(2, 4, 9), (6, 4, 3)]),
    ],
)
def test_products_and_convolutions_are_counted_as_torch_counts_them(
    function: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    expected = counted_by_torch(function, *inputs)
    assert expected > 0
    assert flops_of(function, *inputs) == expected


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(3, 5), (5, 7)]),
        (F.linear, [(2, 3, 5), (7, 5), (7,)]),
        (lambda x, w: F.conv2d(x, w, padding=1), [(2, 4, 9, 9), (6, 4, 3, 3)]),
    ],
)
def test_the_backward_of_products_and_convolutions_is_counted_as_torch_counts_it(
    function: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def forward_backward(*given: Tensor) -> Any:
        output = function(*given)
        return torch.autograd.grad(output, given, torch.ones_like(output))

    expected = counted_by_torch(forward_backward, *inputs)
    assert flops_of(forward_backward, *inputs) == expected


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (torch.mv, [(3, 5), (5,)], 2 * 3 * 5),
        (torch.dot, [(5,), (5,)], 2 * 5),
        (torch.addbmm, [(3, 7), (2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        (torch.addmv, [(3,), (3, 5), (5,)], 2 * 3 * 5),
    ],
)
def test_products_that_torch_does_not_count_are_counted_by_their_shapes(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], flops: int
) -> None:
    assert flops_of(function, *(torch.randn(shape) for shape in shapes)) == flops


TOKENS, EXPERTS, INNER, OUTER = 32, 4, 16, 24


@pytest.mark.parametrize(
    ("shapes", "has_offsets"),
    [
        ([(TOKENS, INNER), (EXPERTS, INNER, OUTER)], True),
        ([(INNER, TOKENS), (TOKENS, OUTER)], True),
        ([(EXPERTS, TOKENS // EXPERTS, INNER), (EXPERTS, INNER, OUTER)], False),
        ([(EXPERTS, OUTER, INNER), (INNER, TOKENS)], True),
    ],
)
def test_products_by_groups_count_each_row_once(shapes: list[tuple[int, ...]], has_offsets: bool) -> None:
    left, right = (meta(*shape, dtype=torch.bfloat16) for shape in shapes)
    offsets = meta(EXPERTS, dtype=torch.int32) if has_offsets else None
    graph = fx.Graph()
    given = [graph.placeholder("left"), graph.placeholder("right")]
    for node, tensor in zip(given, (left, right), strict=True):
        node.meta["val"] = tensor
    if offsets is not None:
        given.append(graph.placeholder("offsets"))
        given[-1].meta["val"] = offsets
    node = graph.call_function(_aten._grouped_mm.default, tuple(given))
    node.meta["val"] = _aten._grouped_mm.default(left, right, offsets)
    graph.output(node)
    (kernel,) = group_kernels(list(graph.nodes), fused=True).kernels
    cost = cost_of_kernel(kernel, fused=True)
    assert cost.grouped_flops == 2 * TOKENS * INNER * OUTER
    assert cost.matmul_flops == 0
    assert cost.dtype == "bfloat16"


def attention(kind: str, *, causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return attention as an accelerator runs it; traced with fake tensors, it runs nowhere."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if kind == "flash":
            results = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        elif kind == "efficient":
            results = _aten._scaled_dot_product_efficient_attention(
                query, key, value, None, True, 0.0, causal
            )
        else:
            results = _aten._scaled_dot_product_cudnn_attention(
                query, key, value, None, True, 0.0, causal, False
            )
        output: Tensor = results[0]
        return output

    return run


def with_backward(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(*inputs: Tensor) -> Any:
        output = function(*inputs)
        return torch.autograd.grad(output, inputs, torch.ones_like(output))

    return run


@pytest.mark.parametrize(
    ("kind", "dims"),
    [
        ("flash", (8, 8)),  # it takes one head size
        ("efficient", (8, 8)),
        ("efficient", (24, 16)),
        ("cudnn", (8, 8)),
        ("cudnn", (24, 16)),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_attention_is_counted_as_torch_counts_it_and_by_half_where_it_is_causal(
    kind: str, dims: tuple[int, int], backward: bool
) -> None:
    dim, value_dim = dims
    shapes = [(2, 4, 16, dim), (2, 4, 12, dim), (2, 4, 12, value_dim)]
    inputs = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=backward) for shape in shapes]
    full, causal = attention(kind, causal=False), attention(kind, causal=True)
    if backward:
        full, causal = with_backward(full), with_backward(causal)
    expected = counted_by_torch(full, *inputs)
    assert expected >= 2 * 2 * 4 * 16 * 12 * (dim + value_dim)
    assert flops_of(full, *inputs) == expected
    assert flops_of(causal, *inputs) == expected / 2


def test_grouped_query_attention_counts_every_head_of_the_query() -> None:
    query = torch.randn(2, 8, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    key, value = (torch.randn(2, 2, 16, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    scores = 2 * 8 * 16 * 16
    forward = attention("cudnn", causal=False)
    assert flops_of(forward, query, key, value) == 2 * scores * (32 + 32)
    both = with_backward(forward)
    assert flops_of(both, query, key, value) == 2 * scores * (2 * 32 + 5 * 32)


def test_attention_of_one_tensor_with_itself_is_counted_whole() -> None:
    x = torch.randn(1, 2, 8, 16, dtype=torch.bfloat16)
    once = attention("cudnn", causal=False)
    assert flops_of(lambda x: once(x, x, x), x) == flops_of(once, x, x.clone(), x.clone())


def test_backward_attention_sums_the_gradient_of_the_query_in_float32() -> None:
    inputs = [torch.randn(2, 4, 16, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    kernels = kernels_of(with_backward(attention("cudnn", causal=True)), *inputs)
    workspaces = [workspace_bytes(kernel) for kernel in kernels]
    assert [num_bytes for num_bytes in workspaces if num_bytes] == [4 * inputs[0].numel()]
    costs = [cost_of_kernel(kernel, fused=False) for kernel in kernels]
    assert [cost.is_backward for cost in costs if cost.attention_flops] == [False, True]


@pytest.mark.parametrize("fused", [False, True])
def test_a_pointwise_kernel_reads_and_writes_each_value_once(fused: bool) -> None:
    x = torch.randn(100)
    costs = costs_of(lambda x: (x * x).sin() + 1, x, fused=fused)
    expected = [800] if fused else [800, 800, 800]
    assert [cost.num_bytes for cost in costs] == expected


def test_an_expanded_value_is_read_once_and_a_slice_in_part() -> None:
    assert [c.num_bytes for c in costs_of(lambda x: x.expand(50, 4) + 1, torch.randn(4))] == [16 + 800]
    assert [c.num_bytes for c in costs_of(lambda x: x[:10].sin(), torch.randn(100))] == [40 + 40]
    assert [c.num_bytes for c in costs_of(lambda x: x[:10].expand(5, 10).sin(), torch.randn(100))] == [
        40 + 200
    ]


def test_a_gather_reads_what_it_gathers() -> None:
    table, rows = torch.randn(1000, 8), torch.arange(4)
    (cost,) = costs_of(torch.embedding, table, rows)
    assert cost.num_bytes == 4 * 8 * 4 + 4 * 8 + 4 * 8 * 4  # rows of the table, indices, result


def test_a_scatter_of_a_fusing_compiler_touches_only_the_places_that_it_writes() -> None:
    def scatter(rows: Tensor, index: Tensor, values: Tensor) -> Tensor:
        result: Tensor = _aten.index_put.default(rows, [index], values, True)
        return result

    inputs = torch.zeros(1000, 8), torch.arange(4), torch.randn(4, 8)
    (fused,), (plain,) = costs_of(scatter, *inputs, fused=True), costs_of(scatter, *inputs)
    assert fused.num_bytes == 3 * (4 * 8 + 4 * 8 * 4)
    assert plain.num_bytes == 2 * 1000 * 8 * 4 + 4 * 8 + 4 * 8 * 4


def test_sorting_makes_several_passes() -> None:
    (cost,) = costs_of(lambda x: torch.sort(x), torch.randn(1000))
    assert cost.num_bytes > 2 * (4000 + 4000 + 8000)


PROFILE = load_hardware("h200-pcie5")
NOTHING = KernelCost(0.0, 0.0, 0.0, is_backward=False, dtype="bfloat16", num_bytes=0)


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic_and_one_launch() -> None:
    launch_ms = PROFILE.launch_ms or 0.0
    rate, hbm = PROFILE.matmul_flops_per_ms("bfloat16"), PROFILE.hbm_bytes_per_ms
    assert rate is not None
    assert hbm is not None
    assert duration_ms(NOTHING, PROFILE) == launch_ms
    arithmetic = dataclasses.replace(NOTHING, matmul_flops=3 * rate)
    assert duration_ms(arithmetic, PROFILE) == pytest.approx(3 + launch_ms)
    traffic = dataclasses.replace(arithmetic, num_bytes=int(5 * hbm))
    assert duration_ms(traffic, PROFILE) == pytest.approx(5 + launch_ms)
    grouped = dataclasses.replace(NOTHING, grouped_flops=3 * rate)
    assert duration_ms(grouped, PROFILE) == pytest.approx(3 / PROFILE.grouped_matmul_share + launch_ms)


def test_attention_runs_at_its_own_rate_forward_and_backward() -> None:
    forward = dataclasses.replace(NOTHING, attention_flops=1e12)
    backward = dataclasses.replace(forward, is_backward=True)
    launch_ms = PROFILE.launch_ms or 0.0
    for cost in (forward, backward):
        rate = PROFILE.attention_flops_per_ms("bfloat16", backward=cost.is_backward)
        assert rate is not None
        assert duration_ms(cost, PROFILE) == pytest.approx(1e12 / rate + launch_ms)


def test_a_profile_without_a_rate_of_memory_is_refused_by_name() -> None:
    figures = tuple(figure for figure in PROFILE.figures if figure.key != "device.hbm_rate")
    with pytest.raises(RefusedError, match=r"device\.hbm_rate") as raised:
        duration_ms(NOTHING, HardwareProfile("of-mine", "", figures))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "PLN411"
    assert "of-mine" in diagnostic.message
    assert diagnostic.hint


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(6, 4), (4, 4)]),
        (lambda x, w: F.conv1d(x.unsqueeze(0).expand(4, 4, 6), w), [(6,), (3, 4, 3)]),
        (lambda x: torch.sort(x * 2).values.sum(), [(6, 4)]),
        (
            lambda x, y: attention("cudnn", causal=True)(x[None, None], y[None, None], y[None, None]),
            [(6, 8), (6, 8)],
        ),
    ],
)
def test_costs_of_symbolic_shapes_are_numbers_and_leave_no_guard(
    function: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    gm = make_fx(function, tracing_mode="symbolic")(*inputs)
    shape_env = next(node.meta["val"].fake_mode.shape_env for node in gm.graph.find_nodes(op="placeholder"))
    guards = len(shape_env.guards)
    for fused in (False, True):
        for kernel in group_kernels(list(gm.graph.nodes), fused=fused).kernels:
            cost = cost_of_kernel(kernel, fused=fused)
            assert type(cost.num_bytes) is int
            assert type(cost.matmul_flops + cost.attention_flops) is float
            assert type(duration_ms(cost, PROFILE)) is float
    assert len(shape_env.guards) == guards
