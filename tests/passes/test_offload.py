from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from offload_runtime.offload_plan import OffloadPlan
from offload_runtime.passes.offload import offload_forward_pass, reload_backward_pass
from offload_runtime.runtime.backend import OPS
from tests.fuzz.rewriting import copy_module
from tests.passes.pairs import names_of, policy, rewrite, transfer_calls


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def _chain(x: Tensor) -> Tensor:
    return torch.tanh(torch.sin(x @ x) @ x) @ x


def test_forward_copies_after_the_write_waits_and_returns_the_host_copy() -> None:
    rewritten = rewrite(lambda x: torch.sin(x @ x), _leaf(4, 4), under=policy())
    graph = rewritten.pair.partition.forward.graph
    assert names_of(graph) == ["mm", "d2h_start", "sin", "d2h_wait"] or names_of(graph)[:2] == [
        "mm",
        "d2h_start",
    ]
    results = graph.output_node().args[0]
    assert [node.target for node in results if node in transfer_calls(graph)] == [OPS.d2h_wait]


def test_backward_reloads_before_the_use_and_reads_what_the_wait_returns() -> None:
    rewritten = rewrite(lambda x: torch.sin(x @ x), _leaf(4, 4), under=policy())
    graph = rewritten.pair.partition.backward.graph
    start, wait = transfer_calls(graph)
    assert (start.target, wait.target) == (OPS.h2d_start, OPS.h2d_wait)
    assert start.args[0] is wait.args[1]
    assert {str(user.target) for user in wait.users} == {"aten.cos.default"}


def test_every_transfer_has_a_start_and_a_wait_on_both_sides() -> None:
    pair = rewrite(_chain, _leaf(4, 4), under=policy(defer=3, prefetch=3)).pair
    num_transfers = len(pair.plan.transfers)
    assert num_transfers >= 2
    for gm, ops in (
        (pair.partition.forward, (OPS.d2h_start, OPS.d2h_wait)),
        (pair.partition.backward, (OPS.h2d_start, OPS.h2d_wait)),
    ):
        targets = [node.target for node in transfer_calls(gm.graph)]
        assert [targets.count(op) for op in ops] == [num_transfers, num_transfers]


@pytest.mark.parametrize("anchored", [False, True])
def test_anchors_are_materialised_operations_before_the_transfer(anchored: bool) -> None:
    rewritten = rewrite(_chain, _leaf(4, 4), under=policy())
    keys = {transfer.source.node: index for index, transfer in enumerate(rewritten.pair.plan.transfers)}
    forward = offload_forward_pass(
        copy_module(rewritten.reference.forward),
        plan=rewritten.pair.plan,
        keys=keys,
        ops=OPS,
        anchored=anchored,
    )
    waits = [node for node in transfer_calls(forward.graph) if node.target is OPS.d2h_wait]
    anchors = {str(anchor.target) for wait in waits for anchor in wait.args[2]}
    assert anchors == ({"aten.mm.default"} if anchored else set())


def test_a_plan_without_transfers_changes_nothing() -> None:
    rewritten = rewrite(_chain, _leaf(4, 4), under=policy())
    empty = OffloadPlan("", (), ())
    before = rewritten.reference
    forward = offload_forward_pass(copy_module(before.forward), plan=empty, keys={}, ops=OPS, anchored=False)
    backward = reload_backward_pass(
        copy_module(before.backward), plan=empty, keys={}, ops=OPS, anchored=False, forward=forward
    )
    assert names_of(forward.graph) == names_of(before.forward.graph)
    assert names_of(backward.graph) == names_of(before.backward.graph)


def test_replayed_views_have_the_geometry_of_the_saved_ones() -> None:
    def function(x: Tensor) -> Tensor:
        left, right = (x @ x).chunk(2, 1)
        return left.t() * torch.sin(right.t())

    rewritten = rewrite(function, _leaf(4, 4), under=policy(), partitioning="save_everything")
    graph = rewritten.pair.partition.backward.graph
    views = [node for node in graph.nodes if "replayed_view" in node.meta]
    assert {(tuple(v.args[1]), tuple(v.args[2]), v.args[3]) for v in views} == {
        ((2, 4), (1, 4), 0),
        ((2, 4), (1, 4), 2),
    }


def test_a_permuted_value_comes_back_with_its_strides() -> None:
    rewritten = rewrite(
        lambda x: torch.sin((x @ x).t().contiguous().t()),
        _leaf(4, 6)[:, :4],
        under=policy(),
        partitioning="untagged",
    )
    graph = rewritten.pair.partition.backward.graph
    for start in transfer_calls(graph):
        assert start.meta["val"].shape == (4, 4)


@pytest.mark.parametrize(
    "view",
    [lambda base: base.t(), lambda base: base.view(4, 2, 2).transpose(0, 2)],
    ids=["of the base's rank", "of another rank"],
)
def test_a_reload_is_held_to_the_strides_of_the_base_where_views_were_saved(
    view: Callable[[Tensor], Tensor],
) -> None:
    """Inductor reads the strides to hold a call to from what its arguments were traced with."""

    def function(x: Tensor) -> Tensor:
        one, other = view(torch.sin(x @ x)).chunk(2)
        return one.exp() * one + other * other.cos()

    pair = rewrite(function, _leaf(4, 4), under=policy(), partitioning="save_everything").pair
    assert any(transfer.source.views for transfer in pair.plan.transfers), "a base moves for its views"
    bases = {node.name: node.meta.get("val") for node in pair.partition.forward.graph.nodes}
    expected = {t.source.node: bases[t.source.node] for t in pair.plan.transfers}
    found = [node for node in transfer_calls(pair.partition.backward.graph) if node.target == OPS.h2d_start]
    assert len(found) == len(expected)
    traced = [node.meta["eager_input_vals"][0][0] for node in found]
    assert sorted((tuple(t.shape), t.stride()) for t in traced) == sorted(
        (tuple(t.shape), t.stride()) for t in expected.values()
    )
