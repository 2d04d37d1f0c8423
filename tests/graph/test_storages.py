import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from offload_runtime.graph.operators import operator_name
from offload_runtime.graph.storages import find_storages, hint, layout_of, tensor_bytes, tensor_of
from tests.graph.traces import storages_of, targets, trace

SQUARE = torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("transpose", lambda x: x.sin().t()),
        ("view", lambda x: x.sin().view(2, 8)),
        ("expand", lambda x: x.sin().unsqueeze(0).expand(3, 4, 4)),
        ("slice", lambda x: x.sin()[1:3, ::2]),
        ("select", lambda x: x.sin()[0]),
        ("diagonal", lambda x: x.sin().diagonal()),
        ("as_strided", lambda x: x.sin().as_strided((2,), (5,), 1)),
        ("split", lambda x: x.sin().split(2, 1)),
        ("chunk", lambda x: x.sin().chunk(2)),
        ("unbind", lambda x: x.sin().unbind(0)),
        ("another dtype", lambda x: x.sin().view(torch.int32)),
        ("real view of complex", lambda x: torch.view_as_real(torch.complex(x, x))),
        ("conjugate", lambda x: torch.complex(x, x).conj()),
        ("detach", lambda x: x.sin().detach()),
    ],
)
def test_views_of_every_kind_share_the_storage_of_their_base(
    name: str, function: Callable[[Tensor], Any]
) -> None:
    (storage,) = storages_of(function, SQUARE)
    assert len(storage.nodes) > 1
    assert storage.writer is storage.base
    assert operator_name(storage.writer) in ("aten.sin.default", "aten.complex.default")


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sin().clone(), lambda x: x.sin().contiguous() + 1, lambda x: x.sin().flip(0), torch.clone],
)
def test_a_copy_has_a_storage_of_its_own(function: Callable[[Tensor], Tensor]) -> None:
    assert all(len(storage.nodes) == 1 for storage in storages_of(function, SQUARE))


def test_bytes_are_those_of_the_storage_and_not_of_the_view() -> None:
    (expanded,) = storages_of(lambda x: x.sin().expand(100, 4), torch.zeros(1, 4))
    assert expanded.num_bytes == 16
    (sliced,) = storages_of(lambda x: x.sin()[:1], torch.zeros(64, 4))
    assert sliced.num_bytes == 64 * 16


def test_outputs_of_one_operator_are_storages_of_their_own() -> None:
    values, indices = storages_of(lambda x: torch.topk(x, 2), SQUARE)
    assert (values.num_bytes, indices.num_bytes) == (4 * 2 * 4, 4 * 2 * 8)
    assert operator_name(values.writer) == operator_name(indices.writer) == "aten.topk.default"


def test_pieces_of_a_split_answer_for_the_operator_that_filled_them() -> None:
    (storage,) = storages_of(lambda x: (x @ x).split(2), SQUARE)
    assert operator_name(storage.writer) == "aten.mm.default"
    assert targets(storage) == ["mm", "getitem", "getitem"]


def test_an_output_that_is_unpacked_twice_is_one_storage() -> None:
    gm = trace(lambda x: torch.topk(x, 2)[0].cos(), SQUARE)
    (first,) = [n for n in gm.graph.nodes if n.target is operator.getitem and n.args[1] == 0]
    with gm.graph.inserting_after(first):
        again = gm.graph.call_function(operator.getitem, first.args)
    again.meta["val"] = torch.empty_like(first.meta["val"])  # as AOTAutograd traces it: another fake tensor
    storage = next(s for s in find_storages(list(gm.graph.nodes)) if first in s.nodes)
    assert again in storage.nodes


def test_a_value_computed_again_beside_its_saved_self_is_another_storage() -> None:
    gm = trace(lambda x: (lambda y: (y.detach(), y.cos()))(x.sin()), SQUARE)
    saved, _ = gm.graph.output_node().args[0]
    (sin,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    backward = fx.Graph()
    given = backward.placeholder("detach")
    again = backward.call_function(torch.ops.aten.sin.default, (backward.placeholder("x"),))
    given.meta["val"], again.meta["val"] = saved.meta["val"], sin.meta["val"]
    storages = find_storages([given, again])
    assert [storage.nodes for storage in storages] == [(given,), (again,)]


def test_a_write_in_place_makes_its_operator_the_last_writer() -> None:
    (storage,) = storages_of(lambda x: x.sin().relu_(), SQUARE)
    assert operator_name(storage.writer) == "aten.relu_.default"
    assert len(storage.writes) == 2


def test_a_write_through_a_view_is_a_write_of_the_base() -> None:
    def write(x: Tensor) -> Tensor:
        base = x.sin()
        base[:2].add_(1)
        return base * 2

    storage, _ = storages_of(write, SQUARE)
    assert "add_" in targets(storage)
    assert max(storage.writes) > min(storage.writes)


def test_reads_count_through_every_alias() -> None:
    gm = trace(lambda x: (lambda y: (y.t().cos(), y.exp()))(x.sin()), SQUARE)
    nodes = list(gm.graph.nodes)
    storage = next(s for s in find_storages(nodes) if "sin" in targets(s))
    readers = {str(nodes[read].target) for read in storage.reads}
    assert readers == {"aten.t.default", "aten.cos.default", "aten.exp.default"}


def test_a_custom_operator_that_says_so_writes_its_argument() -> None:
    def write(x: Tensor) -> Tensor:
        y = x.sin()
        torch.ops.storage_tests.scale_(y)
        return y * 2

    storage, _ = storages_of(write, SQUARE)
    assert len(storage.writes) == 2


def test_a_custom_operator_that_says_nothing_may_write_what_it_reads_and_alias_it_in_its_result() -> None:
    gm = trace(lambda x: torch.ops.storage_tests.opaque(x.sin()).cos(), SQUARE)
    nodes = list(gm.graph.nodes)
    storage = next(s for s in find_storages(nodes) if "sin" in targets(s))
    names = [str(node.target).partition(".")[2] for node in nodes]
    assert names.index("opaque.default") in storage.writes
    assert names.index("cos.default") in storage.reads


def test_what_comes_in_from_outside_is_an_input_and_so_are_its_views() -> None:
    gm = trace(lambda x: x.t().sin(), SQUARE)
    given, made = find_storages(list(gm.graph.nodes))
    assert given.is_input
    assert not made.is_input


def test_a_tensor_without_elements_has_no_bytes() -> None:
    (storage,) = storages_of(lambda x: x[:0].sin(), SQUARE)
    assert storage.num_bytes == 0


@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (torch.zeros(2, 3), "contiguous"),
        (torch.zeros(2, 3).t(), "dense"),
        (torch.zeros(2, 3, 4).permute(2, 0, 1), "dense"),
        (torch.zeros(4, 4)[:, :2], "strided"),
        (torch.zeros(1, 4).expand(3, 4), "strided"),
        (torch.zeros(4, 4)[1:3], "contiguous"),
        (torch.zeros(()), "contiguous"),
        (torch.zeros(0, 3).t(), "contiguous"),
        (torch.zeros(3, 1).t(), "contiguous"),
        (torch.zeros(6).as_strided((2, 2), (1, 1)), "strided"),
    ],
)
def test_a_layout_is_contiguous_else_dense_else_strided(tensor: Tensor, layout: str) -> None:
    assert layout_of(tensor) == layout


def test_bytes_of_a_tensor_are_its_elements() -> None:
    assert tensor_bytes(torch.zeros(1, 4, dtype=torch.bfloat16).expand(3, 4)) == 24


def test_a_symbolic_size_gets_a_number_without_a_guard() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.zeros(7, 3), symbolic_context=context)
    assert isinstance(fake.shape[0], torch.SymInt)
    assert hint(fake.shape[0]) == 7
    assert not shape_env.guards


def test_a_node_that_yields_no_tensor_has_none() -> None:
    gm = trace(lambda x: torch.topk(x, 2), SQUARE)
    (topk,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default)
    assert tensor_of(topk) is None
