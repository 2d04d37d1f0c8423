import pytest
import torch
from torch import Tensor, fx

from offload_runtime.passes.verify import (
    Defect,
    OriginalPair,
    VerificationError,
    read_original,
    verify_partition,
)
from offload_runtime.runtime.backend import OPS
from tests.fuzz.rewriting import copy_module
from tests.passes.pairs import policy, rewrite, transfer_calls


@pytest.fixture(scope="module")
def sound() -> tuple[fx.GraphModule, fx.GraphModule, OriginalPair]:
    def function(x: Tensor) -> Tensor:
        return torch.tanh(torch.sin(x @ x) @ x) @ x

    rewritten = rewrite(function, torch.randn(4, 4, requires_grad=True), under=policy())
    partition = rewritten.pair.partition
    return partition.forward, partition.backward, read_original(rewritten.reference)


def _kinds(forward: fx.GraphModule, backward: fx.GraphModule, original: OriginalPair) -> set[str]:
    with pytest.raises(VerificationError) as caught:
        verify_partition(forward, backward, original=original, ops=OPS)
    return {defect.kind for defect in caught.value.defects}


def test_a_sound_pair_passes(sound: tuple[fx.GraphModule, fx.GraphModule, OriginalPair]) -> None:
    forward, backward, original = sound
    verify_partition(forward, backward, original=original, ops=OPS)


def test_a_pair_without_any_transfer_is_not_what_was_asked_to_be_compared(
    sound: tuple[fx.GraphModule, fx.GraphModule, OriginalPair],
) -> None:
    forward, _, original = sound
    empty = fx.GraphModule({}, fx.Graph())
    empty.graph.output(())
    assert {"lost copy", "lost value", "changed computation"} <= _kinds(forward, empty, original)


def test_a_wait_for_something_that_is_no_copy_is_named(
    sound: tuple[fx.GraphModule, fx.GraphModule, OriginalPair],
) -> None:
    forward, backward, original = copy_module(sound[0]), copy_module(sound[1]), sound[2]
    wait = next(node for node in transfer_calls(forward.graph) if node.target is OPS.d2h_wait)
    wait.args = (wait.args[1], *wait.args[1:])
    assert "wait without transfer" in _kinds(forward, backward, original)


def test_a_wait_under_the_key_of_another_transfer_is_named(
    sound: tuple[fx.GraphModule, fx.GraphModule, OriginalPair],
) -> None:
    forward, backward, original = copy_module(sound[0]), copy_module(sound[1]), sound[2]
    first, second = [node for node in transfer_calls(forward.graph) if node.target is OPS.d2h_wait][:2]
    first.args = (*first.args[:-1], second.args[-1])
    assert {"wrong wait", "doubled free", "dropped wait"} <= _kinds(forward, backward, original)


def test_a_gradient_that_is_not_returned_is_named(
    sound: tuple[fx.GraphModule, fx.GraphModule, OriginalPair],
) -> None:
    forward, backward, original = sound[0], copy_module(sound[1]), sound[2]
    backward.graph.output_node().args = ((None,),)
    assert _kinds(forward, backward, original) == {"changed computation"}


def test_an_error_says_kind_place_and_reason_of_every_defect() -> None:
    error = VerificationError(
        [Defect("stale copy", "d2h_start", "written later"), Defect("freed input", "w", "x")]
    )
    assert str(error) == "stale copy at d2h_start: written later; freed input at w: x"


LIBRARY = torch.library.Library("verify_tests", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CPU")
torch.library.register_fake("verify_tests::twice", lambda x: torch.empty_like(x), lib=LIBRARY)
torch.library.register_autograd("verify_tests::twice", lambda context, gradient: gradient * 2, lib=LIBRARY)


@pytest.mark.parametrize("defer", [0, 1])
def test_both_sides_of_a_custom_operator_may_be_offloaded(defer: int) -> None:
    """The operator may alias what it reads; then the alias keeps the memory alive until its own copy is done."""

    def function(x: Tensor) -> Tensor:
        h = x @ x
        return torch.ops.verify_tests.twice(h).sin() + h.cos()

    rewritten = rewrite(function, torch.randn(4, 4, requires_grad=True), under=policy(defer=defer))
    offloaded = {transfer.source.node for transfer in rewritten.pair.plan.transfers}
    assert {"mm", "twice"} <= offloaded


def test_a_copy_of_a_possible_alias_that_starts_after_the_release_is_named() -> None:
    def function(x: Tensor) -> Tensor:
        h = x @ x
        return torch.ops.verify_tests.twice(h).sin() + h.cos()

    rewritten = rewrite(function, torch.randn(4, 4, requires_grad=True), under=policy())
    forward, backward = rewritten.pair.partition.forward, rewritten.pair.partition.backward
    calls = transfer_calls(forward.graph)
    start = next(n for n in calls if n.target is OPS.d2h_start and str(n.args[0]) == "twice")
    wait = next(n for n in calls if n.target is OPS.d2h_wait and str(n.args[1]) == "twice")
    wait.prepend(start)
    base = next(n for n in calls if n.target is OPS.d2h_wait and str(n.args[1]) == "mm")
    start.prepend(base)
    assert "read after free" in _kinds(forward, backward, read_original(rewritten.reference))
