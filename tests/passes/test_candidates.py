from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import use_engine
from tests.passes.pairs import policy, rewrite, verdict_of


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_what_is_returned_to_the_caller_stays() -> None:
    rewritten = rewrite(lambda x: torch.sigmoid(x), _leaf(8), under=policy())
    verdict = verdict_of(rewritten, "aten.sigmoid.default")
    assert verdict.fate == "save"
    assert "returned to the caller" in verdict.reason


def test_what_is_returned_as_a_view_stays_too() -> None:
    rewritten = rewrite(lambda x: torch.sigmoid(x)[:2], _leaf(8), under=policy())
    assert "returned to the caller" in verdict_of(rewritten, "aten.sigmoid.default").reason


def test_inputs_and_weights_are_nobodys_activations() -> None:
    model = nn.Linear(4, 4)
    rewritten = rewrite(lambda x: torch.sin(model(x)), _leaf(2, 4), under=policy())
    assert all(
        verdict.fate == "skip" and verdict.moved_bytes == 0
        for verdict in rewritten.pair.plan.verdicts
        if verdict.activation.op_class == "view"
    )
    assert {t.source.node for t in rewritten.pair.plan.transfers} == {"addmm"}


def test_an_empty_tensor_is_not_moved() -> None:
    rewritten = rewrite(lambda x: torch.tanh(torch.sin(x[:0])) * 2, _leaf(4, 4), under=policy())
    assert rewritten.pair.plan.transfers == ()


@pytest.mark.parametrize("square", [lambda s: s * s, lambda s: s.t() * s.t()], ids=["itself", "transposed"])
def test_a_tensor_and_its_view_move_once(square: Callable[[Tensor], Tensor]) -> None:
    rewritten = rewrite(lambda x: square(torch.sin(x) @ x), _leaf(4, 4), under=policy())
    moved = [t.source.num_bytes for t in rewritten.pair.plan.transfers if t.source.node == "mm"]
    assert moved == [64]
    assert len(rewritten.pair.plan.transfers) == 2, "the product, and the sine that the product reads"


def test_a_small_slice_does_not_drag_its_storage_along() -> None:
    def function(x: Tensor) -> Tensor:
        piece = torch.cumsum(x, 0)[:2]
        return piece * piece

    rewritten = rewrite(function, _leaf(64, 4), under=policy(), partitioning="save_everything")
    (transfer,) = rewritten.pair.plan.transfers
    assert (transfer.source.num_bytes, transfer.source.views) == (2 * 4 * 4, ())


def test_two_small_slices_travel_by_themselves() -> None:
    def function(x: Tensor) -> Tensor:
        base = torch.cumsum(x, 0)
        return base[:2] * torch.sin(base[1:3])

    rewritten = rewrite(function, _leaf(64, 4), under=policy(), partitioning="save_everything")
    assert [t.source.num_bytes for t in rewritten.pair.plan.transfers if not t.source.views][:2] == [32, 32]


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_overlapping_slices_give_right_numbers_whenever_their_copies_run(timing: Any) -> None:
    def function(x: Tensor) -> Tensor:
        base = torch.cumsum(x, 0)
        return base[:2] * torch.sin(base[1:3])

    given = _leaf(64, 4)
    (expected,) = torch.autograd.grad(function(given).sum(), given)
    with use_engine(SimulatedEngine(HostArena(), timing=timing)):
        rewrite(function, given, under=policy(), partitioning="save_everything")
    assert given.grad is not None
    assert torch.equal(given.grad, expected)


def test_pieces_that_cover_a_storage_travel_as_one_and_are_cut_out_again() -> None:
    def function(x: Tensor) -> Tensor:
        left, right = (x @ x).chunk(2, 1)
        return left * torch.sin(right)

    rewritten = rewrite(function, _leaf(4, 4), under=policy(), partitioning="save_everything")
    verdict = verdict_of(rewritten, "aten.mm.default")
    assert (verdict.fate, verdict.moved_bytes, verdict.num_views) == ("offload", 64, 2)
    assert "2 views replayed" in verdict.reason


def test_an_expanded_value_moves_no_more_than_its_storage() -> None:
    def function(x: Tensor) -> Tensor:
        wide = torch.sin(x).expand(50, 4)
        return wide * wide

    rewritten = rewrite(function, _leaf(1, 4), under=policy(), partitioning="save_everything")
    assert sum(t.source.num_bytes for t in rewritten.pair.plan.transfers) == 16


def test_the_copy_starts_after_the_last_write_and_ends_after_the_last_read() -> None:
    def function(x: Tensor) -> Tensor:
        base = torch.sin(x)
        base.mul_(2)
        return torch.cos(base) + torch.tanh(base.t()).t()

    rewritten = rewrite(function, _leaf(4, 4), under=policy())
    forward = [node.name for node in rewritten.reference.forward.graph.nodes]
    for transfer in rewritten.pair.plan.transfers:
        assert transfer.copy_after >= forward.index(transfer.source.node)
        assert transfer.release_after >= transfer.copy_after
