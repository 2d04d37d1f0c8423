"""The card of the diagnosis says the same as the advice: whom it is for, and what is none of its matter."""

from __future__ import annotations

import pytest

from offload_runtime.card import Card
from offload_runtime.card_verdicts import judge_card
from offload_runtime.diagnosis_fixes import PAGEABLE
from offload_runtime.predicates import Scalar
from tests.test_advice_diagnosis import PROVEN, SLOW


def test_the_card_is_not_for_a_step_that_fits_without_nor_for_full_memory_without_a_slowdown(
    diagnosis_card: Card,
) -> None:
    fits = judge_card(diagnosis_card, {**SLOW, "offload_mechanism": "zero_offload", "fits": True})
    assert fits.applies is False
    assert any("take it off" in reason for reason in fits.reasons)
    assert (
        judge_card(diagnosis_card, {**SLOW, "offload_mechanism": "zero_offload", "fits": False}).applies
        is True
    )
    full = judge_card(diagnosis_card, {**PROVEN, "slowdown": 1.0, "memory_headroom_fraction": 0.01})
    assert any("a different problem, of memory" in reason for reason in full.reasons)


@pytest.mark.parametrize("mechanism", ["megatron_layers", "offload_runtime"])
def test_a_long_cpu_step_is_no_reason_of_the_card_where_activations_alone_move(
    diagnosis_card: Card, mechanism: str
) -> None:
    facts: dict[str, Scalar] = {**SLOW, "offload_mechanism": mechanism, "cpu_step_fraction": 0.5}
    found = judge_card(diagnosis_card, facts)
    assert not any("optimizer's step" in reason for reason in found.reasons)
    assert not any("no setting of the link" in each.text for each in found.interactions)
    said = judge_card(diagnosis_card, {**facts, "optimizer_offload": False})
    assert any("the optimizer steps on the GPU" in each.text for each in said.interactions)


@pytest.mark.parametrize(("share", "applies"), [(PAGEABLE / 2, None), (PAGEABLE, True)])
def test_a_trace_of_pageable_copies_is_no_reason_of_the_card(
    diagnosis_card: Card, share: float, applies: bool | None
) -> None:
    found = judge_card(
        diagnosis_card, {"offload_mechanism": "fsdp2", "offload_enabled": True, "pageable_fraction": share}
    )
    assert found.applies is applies
    assert any("Prefetch" in each.text for each in found.interactions) is (applies is True)


def test_recomputing_is_said_to_make_room_where_state_moves(diagnosis_card: Card) -> None:
    facts: dict[str, Scalar] = {**SLOW, "exposed_copy_fraction": 0.5}
    texts = [
        each.text for each in judge_card(diagnosis_card, {**facts, "optimizer_offload": True}).interactions
    ]
    assert any("it makes room" in text for text in texts)
    less = {**facts, "optimizer_offload": False, "parameter_offload": False}
    assert not any("it makes room" in each.text for each in judge_card(diagnosis_card, less).interactions)
