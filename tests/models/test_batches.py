"""Batches are real data, and depend on seed and step only."""

from __future__ import annotations

import pytest
import torch

from offload_runtime.errors import RefusedError
from offload_runtime.models.batches import TextBatches, corpus, normal, text_rows

CPU = torch.device("cpu")


def test_the_text_is_english_prose_in_ascii() -> None:
    text = corpus().decode("ascii")
    assert len(text) > 10_000
    assert "Licensor" in text


def test_a_row_is_a_passage_of_the_text() -> None:
    (row,) = text_rows(0, batch=1, length=64, seed=0)
    assert row in corpus() * 2


def test_a_row_longer_than_the_text_goes_round() -> None:
    text = corpus()
    (row,) = text_rows(3, batch=1, length=2 * len(text) + 5, seed=1)
    assert len(row) == 2 * len(text) + 5
    assert row[: len(text)] == row[len(text) : 2 * len(text)]


@pytest.mark.parametrize(("seed", "step", "same"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_rows_repeat_for_the_same_seed_and_step_only(seed: int, step: int, same: bool) -> None:
    first = text_rows(0, batch=4, length=32, seed=0)
    assert (text_rows(step, batch=4, length=32, seed=seed) == first) is same


def test_targets_are_the_tokens_one_place_later() -> None:
    tokens, targets = TextBatches(2, 16, 256, CPU, seed=0)(0)
    assert tokens.shape == targets.shape == (2, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_small_vocabulary_folds_the_bytes_into_it() -> None:
    tokens, _ = TextBatches(4, 64, 100, CPU, seed=0)(0)
    assert int(tokens.max()) < 100


def test_random_numbers_leave_torch_s_random_state_alone() -> None:
    before = torch.get_rng_state()
    normal((4,), step=0, stream="noise", dtype=torch.float32, device=CPU, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_streams_of_one_step_are_independent() -> None:
    images, noise = (
        normal((64,), step=0, stream=stream, dtype=torch.float32, device=CPU, seed=0)
        for stream in ("images", "noise")
    )
    assert not torch.equal(images, noise)


def test_a_batch_that_cannot_fit_is_refused_before_it_is_built() -> None:
    with pytest.raises(RefusedError, match=r"MOD703 a batch of 999999999 x 999999 tokens needs .* free"):
        TextBatches(999_999_999, 999_999, 256, torch.device("cpu"), 0)
