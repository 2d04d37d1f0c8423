"""The bitwise comparison sees every bit, and its fingerprint every byte and its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.models.numbers import (
    equal_bytes,
    final_numbers,
    fingerprint,
    first_final_difference,
    first_step_difference,
    step_numbers,
)


def trained_layer() -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    layer.register_buffer("running", torch.zeros(2))
    loss = layer(torch.ones(2, 4)).square().mean()
    loss.backward()
    return layer, loss


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(7),
        torch.randn(3, 5, dtype=torch.float64),
        torch.randn(5, 3).bfloat16(),
        torch.randn(9, dtype=torch.complex64),
        torch.arange(13, dtype=torch.uint8),
        torch.tensor([True, False, True]),
        torch.tensor(3.5),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_one_flipped_bit_changes_the_fingerprint(tensor: Tensor) -> None:
    changed = tensor.clone()
    if tensor.dtype == torch.bool:
        changed[0] = False
    else:
        changed.reshape(-1).view(torch.uint8)[-1] ^= 1
    assert fingerprint(tensor) == fingerprint(tensor.clone())
    assert fingerprint(tensor) != fingerprint(changed)


def test_a_fingerprint_depends_on_the_place_of_each_value() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert fingerprint(values) != fingerprint(values.flip(0))
    assert fingerprint(values) != fingerprint(values[[1, 0, 2, 3]])


def test_a_fingerprint_goes_by_values_and_not_by_strides() -> None:
    tensor = torch.randn(6, 4)
    assert fingerprint(tensor) == fingerprint(tensor.t().contiguous().t())


def test_a_fingerprint_is_the_same_whatever_the_size_of_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1001)
    whole = fingerprint(tensor)
    monkeypatch.setattr("offload_runtime.models.numbers._CHUNK_WORDS", 17)
    assert fingerprint(tensor) == whole


def test_no_fingerprints_of_many_close_tensors_collide() -> None:
    base = torch.zeros(512)
    prints = set()
    for place in range(512):
        changed = base.clone()
        changed[place] = 1.0
        prints.add(fingerprint(changed))
    assert len(prints) == 512


def test_nan_equals_the_same_nan_and_minus_zero_is_not_zero() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert equal_bytes(nan, nan.clone())
    assert not equal_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not equal_bytes(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not equal_bytes(torch.zeros(2), torch.zeros(1, 2))


def test_equal_trainings_show_no_difference() -> None:
    ours, theirs = trained_layer(), trained_layer()
    assert first_step_difference(step_numbers(*ours), step_numbers(*theirs), 1) is None
    assert first_final_difference(ours[0], final_numbers(theirs[0]), 1) is None


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("gradient", "weight", lambda layer: layer.weight.grad.add_(1)),
        ("parameter", "bias", lambda layer: layer.bias.data.add_(1)),
        ("buffer", "running", lambda layer: layer.running.add_(1)),
    ],
)
def test_the_first_difference_at_the_end_is_named_and_measured(kind, name, change) -> None:
    (ours, _), (theirs, _) = trained_layer(), trained_layer()
    change(theirs)
    difference = first_final_difference(ours, final_numbers(theirs), 5)
    assert difference is not None
    assert (difference.kind, difference.name, difference.step) == (kind, name, 5)
    assert difference.max_abs_difference == pytest.approx(1.0)


def test_a_gradient_that_differs_in_one_step_is_named() -> None:
    (ours, loss), (theirs, _) = trained_layer(), trained_layer()
    mine = step_numbers(ours, loss)
    theirs.bias.grad = None
    difference = first_step_difference(mine, step_numbers(theirs, loss), 2)
    assert str(difference) == "gradient bias at step 2"


def test_a_loss_that_differs_comes_before_the_gradients() -> None:
    (ours, loss), (theirs, other) = trained_layer(), trained_layer()
    theirs.bias.grad = None
    difference = first_step_difference(step_numbers(ours, loss), step_numbers(theirs, other + 1), 1)
    assert difference is not None
    assert difference.kind == "loss"


def test_a_gradient_that_only_one_training_has_is_a_difference() -> None:
    (ours, _), (theirs, _) = trained_layer(), trained_layer()
    theirs.weight.grad = None
    for pair in ((ours, theirs), (theirs, ours)):
        difference = first_final_difference(pair[0], final_numbers(pair[1]), 1)
        assert difference is not None
        assert (difference.kind, difference.name) == ("gradient", "weight")


def test_a_sparse_gradient_is_compared_by_its_values() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2, 1])).sum().backward()
    assert table.weight.grad is not None
    assert fingerprint(table.weight.grad) == fingerprint(table.weight.grad.to_dense())
