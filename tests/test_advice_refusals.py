"""A refusal names the floor, what holds it and what lowers it, and the cures that suffice stand apart."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from offload_runtime.advice import Conclusion
from offload_runtime.codes import CODES
from offload_runtime.predicates import Scalar
from tests.test_advice import DEVICE, EIGHT_BILLION, GIB, advice, estimate_of


def test_a_refusal_names_the_floor_what_holds_it_and_what_lowers_it() -> None:
    found = advice({**EIGHT_BILLION, "master_weights": True})
    assert found.refusal is not None
    assert (found.refusal.code, found.refusal.severity) == ("ADV910", "error")
    assert "the floor is 120 GiB" in found.refusal.message
    assert "parameters 15 GiB, gradients 15 GiB, optimizer state 89.7 GiB" in found.refusal.message
    assert "; the device has 80 GiB" in found.refusal.message
    lowers = "\n".join(found.cures.enough)
    assert "offload the optimizer's state, 89.7 GiB" in lowers
    assert "29.9 GiB of state stay" in lowers
    assert "2 ranks hold 59.8 GiB each" in lowers
    assert "LoRA" in lowers
    assert found.refusal.hint == "; ".join(found.cures.enough)


TIGHT: dict[str, Scalar] = {**DEVICE, "resident_bytes": 20 * GIB, "peak_bytes": 100 * GIB}


@pytest.mark.parametrize(
    ("floor_gib", "conclusion", "limit_gib"),
    [(75, "activations", None), (77, "activations", 77), (80, "activations", 80), (81, "refused", None)],
)
def test_a_floor_between_the_usual_limit_and_the_device_is_reached_under_a_raised_limit(
    floor_gib: int, conclusion: Conclusion, limit_gib: int | None
) -> None:
    found = advice({**TIGHT, "floor_bytes": floor_gib * GIB})
    assert found.conclusion == conclusion
    assert found.device_peak_bytes == (None if limit_gib is None else limit_gib * GIB)
    assert ("under a raised limit" in found.summary) is (limit_gib is not None)
    assert [warning.code for warning in found.warnings] == ([] if limit_gib is None else ["ADV913"])
    assert (found.refusals == ()) is (conclusion == "activations")


def test_under_a_raised_limit_headline_order_and_arithmetic_name_the_same_limit() -> None:
    found = advice({**TIGHT, "floor_bytes": 77 * GIB, "window_bytes": 10 * GIB})
    assert "limits.device_peak=78848MiB" in found.summary
    assert "takes 75.2 GiB (94 %) of the device's 80 GiB by itself" in found.summary
    assert "23 GiB have to go" in found.order[0].why
    lines = {line.label: line for section in found.sections for line in section.lines}
    assert lines["has to go"].value == pytest.approx(23)
    assert "the floor" in lines["has to go"].source
    assert "leaves 3 GiB for what no plan counts" in found.warnings[0].message


@pytest.mark.parametrize(
    ("optimizer", "step_gib", "least_gib", "enough", "words"),
    [
        ("adamw", 77, 30, True, "takes 62 GiB"),
        ("adamw", 77, 70, True, "takes 62 GiB; forward and backward take 70 GiB at the least"),
        ("adamw", 77, 76, False, "takes 62 GiB; forward and backward take 76 GiB at the least"),
        ("sgd", 77, 30, False, ""),
    ],
)
def test_temporaries_that_hold_the_floor_are_cured_by_the_fused_step(
    optimizer: str, step_gib: int, least_gib: int, enough: bool, words: str
) -> None:
    estimate = replace(
        estimate_of(step_gib), step_temporary_bytes=15 * GIB, least_backward_bytes=least_gib * GIB
    )
    cures = advice({**TIGHT, "floor_bytes": step_gib * GIB, "optimizer": optimizer}, estimate).cures
    fused = "AdamW(fused=True), planned as --optimizer adamw-fused: its step holds no temporaries, 15 GiB less, and "
    assert [text for text in cures.enough if "fused" in text] == ([f"{fused}{words}"] if enough else [])
    is_named = optimizer == "adamw" and not enough
    assert [text for text in cures.too_little if "fused" in text] == ([f"{fused}{words}"] if is_named else [])


def test_what_only_lowers_the_floor_is_not_said_to_make_it_fit() -> None:
    estimate = replace(estimate_of(150), step_temporary_bytes=30 * GIB)
    found = advice({**EIGHT_BILLION, "master_weights": True, "peak_bytes": 178 * GIB}, estimate)
    assert found.conclusion == "refused"
    assert [text for text in found.cures.enough if "fused" in text] == []
    (lower,) = found.cures.too_little
    assert "takes 120 GiB" in lower


@pytest.mark.parametrize(
    ("peak_gib", "words"),
    [
        (
            178,
            "the peak is then 88.3 GiB, still more than 80 GiB: activations have to be offloaded or recomputed",
        ),
        (150, "the peak is then 60.3 GiB, which fits: activations can stay"),
        (None, "activations come on top"),
    ],
)
def test_beside_state_that_leaves_it_is_said_whether_activations_have_to_go(
    peak_gib: int | None, words: str
) -> None:
    known: dict[str, Scalar] = {} if peak_gib is None else {"peak_bytes": peak_gib * GIB}
    found = advice({**EIGHT_BILLION, "master_weights": True, **known})
    (offloaded,) = (text for text in found.cures.enough if text.startswith("offload the optimizer's state"))
    assert words in offloaded
    (shared,) = (text for text in found.cures.enough if text.startswith("share the state"))
    assert ("activations" in shared) is True


def test_a_peak_in_the_optimizers_step_goes_with_the_step_and_is_shared_with_it() -> None:
    # Backward alone peaks at 110 GiB; the step holds 120 GiB of state and 58 GiB of temporaries.
    estimate = replace(estimate_of(178), step_temporary_bytes=58 * GIB, backward_peak_bytes=110 * GIB)
    found = advice({**EIGHT_BILLION, "master_weights": True, "peak_bytes": 178 * GIB}, estimate)
    (offloaded,) = (text for text in found.cures.enough if text.startswith("offload the optimizer's state"))
    assert "the peak is then 20.3 GiB, which fits" in offloaded
    (shared,) = (text for text in found.cures.enough if text.startswith("share the state"))
    # Half of state and temporaries, 59.8 and 29 GiB, are more than what backward then holds.
    assert "the peak is then 88.8 GiB, still more than 80 GiB" in shared


def test_the_parts_of_a_floor_that_was_given_add_up() -> None:
    found = advice({**EIGHT_BILLION, "master_weights": False, "floor_bytes": 90 * GIB})
    assert found.refusal is not None
    assert (
        "the floor is 90 GiB, at least (parameters 15 GiB, gradients 15 GiB, optimizer state 29.9 GiB, "
        "what a step needs beside them 30.2 GiB)"
    ) in found.refusal.message


def test_without_a_word_on_master_weights_both_forms_of_the_state_are_shown() -> None:
    lines = {
        (line.expression, line.value and round(line.value, 1))
        for section in advice({**EIGHT_BILLION, "out_of_memory": True}).sections
        for line in section.lines
    }
    assert ("8 B x 8,030,261,248 trained", 59.8) in lines
    assert ("16 B x 8,030,261,248 trained", 119.7) in lines


def test_a_floor_in_the_optimizer_s_step_is_said_to_be_there() -> None:
    facts: dict[str, Scalar] = {
        **DEVICE,
        "peak_bytes": 150 * GIB,
        "resident_bytes": 60 * GIB,
        "floor_fits": False,
    }
    found = advice(facts, estimate_of(81))
    assert found.refusal is not None
    assert "the floor is 81 GiB, in the optimizer's step" in found.refusal.message


def test_a_floor_that_one_step_needs_is_lowered_by_a_smaller_batch() -> None:
    facts: dict[str, Scalar] = {
        **DEVICE,
        "peak_bytes": 150 * GIB,
        "resident_bytes": 20 * GIB,
        "floor_bytes": 90 * GIB,
    }
    found = advice(facts, estimate_of(25, logits=70, resident=20))
    assert found.refusal is not None
    assert (
        "the floor is 90 GiB, at the least peak that a plan reaches (logits 70 GiB" in found.refusal.message
    )
    assert any("smaller batch" in item for item in found.cures.enough)


@pytest.mark.parametrize("code", ["ADV910", "PLN413"])
def test_the_parts_in_a_sample_message_add_up(code: str) -> None:
    sample = CODES[code].message_example
    assert sample is not None
    whole = re.search(r"(?:floor is|alone takes) ([\d.]+) GiB", sample)
    assert whole is not None
    parts = re.findall(r"(?:parameters|gradients|state|step|workspace) ([\d.]+) GiB", sample)
    assert sum(map(float, parts)) == pytest.approx(float(whole[1]))
