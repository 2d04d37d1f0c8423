"""What the facts lead to: nothing, activations, a refusal with the floor, or a fact that is missing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from offload_runtime.advice import Advice, Conclusion, advise
from offload_runtime.codes import CODES
from offload_runtime.fact_sheet import FactSheet, FactsResult, MemoryPart, ModelEstimate
from offload_runtime.predicates import Scalar
from offload_runtime.state_facts import derived

GIB = 1 << 30
DEVICE: dict[str, Scalar] = {"gpu_total_bytes": 80 * GIB, "link_d2h_gbps": 55.0}
EIGHT_BILLION: dict[str, Scalar] = {
    **DEVICE,
    "num_parameters": 8_030_261_248,
    "trainable_fraction": 1.0,
    "dtype": "bfloat16",
    "optimizer": "adamw",
}
ADAPTERS: dict[str, Scalar] = {**EIGHT_BILLION, "trainable_fraction": 0.0017}


def advice(facts: dict[str, Scalar], estimate: ModelEstimate | None = None) -> Advice:
    return advise(FactsResult(derived(FactSheet().with_facts(facts, "given")), estimate))


def estimate_of(step_gib: int, **floor_gib: int) -> ModelEstimate:
    return ModelEstimate(
        hardware="h100-pcie5",
        step_bytes=step_gib * GIB,
        step_parts=(MemoryPart("parameters", step_gib * GIB),),
        peak_at="backward",
        floor_parts=tuple(MemoryPart(what, size * GIB) for what, size in floor_gib.items()),
        window_ms=600.0,
    )


@pytest.mark.parametrize(
    ("facts", "conclusion", "first", "missing"),
    [
        ({**DEVICE, "peak_bytes": 60 * GIB, "resident_bytes": 20 * GIB}, "nothing", None, ()),
        (
            {**DEVICE, "peak_bytes": 100 * GIB, "resident_bytes": 20 * GIB, "floor_bytes": 40 * GIB},
            "activations",
            "activations",
            (),
        ),
        (
            {**DEVICE, "peak_bytes": 100 * GIB, "resident_bytes": 20 * GIB},
            "activations",
            "activations",
            ("floor_bytes",),
        ),
        (
            {**DEVICE, "out_of_memory": True, "resident_bytes": 20 * GIB},
            "activations",
            "activations",
            ("floor_bytes",),
        ),
        ({**DEVICE, "out_of_memory": True}, "unknown", None, ("resident_bytes", "compiled")),
        ({**DEVICE, "out_of_memory": True, "compiled": False}, "unknown", None, ("resident_bytes",)),
        ({"out_of_memory": True}, "unknown", None, ("resident_bytes", "gpu_total_bytes", "compiled")),
        (
            {"out_of_memory": True, "framework": "deepspeed"},
            "unknown",
            None,
            ("resident_bytes", "gpu_total_bytes"),
        ),
        ({"framework": "pytorch"}, "unknown", None, ("out_of_memory", "peak_bytes", "gpu_total_bytes")),
        ({**DEVICE, "resident_bytes": 90 * GIB}, "refused", "optimizer_state", ()),
        (
            {**DEVICE, "peak_bytes": 100 * GIB, "resident_bytes": 20 * GIB, "floor_bytes": 90 * GIB},
            "refused",
            "activations",
            (),
        ),
        ({**EIGHT_BILLION, "master_weights": True}, "refused", "optimizer_state", ()),
        (
            {**EIGHT_BILLION, "resident_bytes": 60 * GIB, "peak_bytes": 70 * GIB},
            "unknown",
            None,
            ("master_weights",),
        ),
        ({**EIGHT_BILLION, "master_weights": False, "peak_bytes": 70 * GIB}, "nothing", None, ()),
        (
            {**ADAPTERS, "resident_bytes": 15 * GIB, "peak_bytes": 103 * GIB},
            "activations",
            "activations",
            ("floor_bytes",),
        ),
        (
            {**ADAPTERS, "tensor_parallel": 2, "out_of_memory": True},
            "unknown",
            None,
            ("resident_bytes", "compiled"),
        ),
    ],
    ids=str,
)
def test_what_comes_first_hangs_on_what_fits(
    facts: dict[str, Scalar], conclusion: Conclusion, first: str | None, missing: tuple[str, ...]
) -> None:
    found = advice(facts)
    assert found.conclusion == conclusion
    assert [step.mechanism for step in found.order[:1]] == ([] if first is None else [first])
    assert found.missing == missing
    assert (found.refusal is not None) is (conclusion == "refused")
    assert found.summary.endswith(".")


def test_state_that_does_not_fit_leaves_in_the_order_of_size_by_use() -> None:
    found = advice({**EIGHT_BILLION, "master_weights": True})
    assert [step.mechanism for step in found.order] == [
        "optimizer_state",
        "gradients",
        "parameters",
        "activations",
    ]
    assert [step.num_bytes and round(step.num_bytes / GIB, 1) for step in found.order] == [
        89.7,
        15.0,
        15.0,
        None,
    ]


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


@pytest.mark.parametrize(("window_gib", "words"), [(40, "within the 40 GiB"), (10, "recompute the rest")])
def test_what_has_to_go_is_compared_with_what_leaves_for_free(window_gib: int, words: str) -> None:
    facts: dict[str, Scalar] = {
        **DEVICE,
        "peak_bytes": 103 * GIB,
        "resident_bytes": 15 * GIB,
        "floor_bytes": 40 * GIB,
        "window_bytes": window_gib * GIB,
    }
    (first, *others) = advice(facts, estimate_of(16)).order
    assert "27.8 GiB have to go" in first.why
    assert words in first.why
    assert [step.mechanism for step in others] == ["optimizer_state", "gradients", "parameters"]


FITTING: dict[str, Scalar] = {**DEVICE, "peak_bytes": 70 * GIB, "resident_bytes": 20 * GIB}


def test_a_measured_overflow_that_was_not_predicted_is_pointed_out() -> None:
    found = advice({**FITTING, "out_of_memory": True, "compiled": True, "floor_bytes": 30 * GIB})
    assert found.conclusion == "activations"
    assert found.summary.startswith("The step was predicted to fit, 70 GiB of 80 GiB, and ran out of memory")


@pytest.mark.parametrize(
    ("facts", "limit_mib", "has_to_go"),
    [
        # 10 GiB were missed at least, and 6 % of the device are left: 80 - 10 - 4.8.
        ({"floor_bytes": 30 * GIB}, 66764, "4.8 GiB have to go"),
        # Never below what no plan gets under.
        ({"floor_bytes": 68 * GIB}, 69632, "2 GiB have to go"),
        ({"resident_bytes": 67 * GIB}, 68608, "3 GiB have to go"),
    ],
)
def test_an_overflow_that_was_not_predicted_is_planned_below_the_predicted_peak(
    facts: dict[str, Scalar], limit_mib: int, has_to_go: str
) -> None:
    found = advice({**FITTING, "window_bytes": 40 * GIB, "out_of_memory": True, **facts})
    assert found.conclusion == "activations"
    assert found.device_peak_bytes is not None
    assert found.device_peak_bytes == limit_mib << 20
    assert found.device_peak_bytes < 70 * GIB
    assert f"limits.device_peak={limit_mib}MiB" in found.summary
    assert has_to_go in found.order[0].why
    assert "0 B" not in str(found)
    lines = {line.label: line.value for section in found.sections for line in section.lines}
    assert lines["has to go"] == pytest.approx((70 * GIB - found.device_peak_bytes) / GIB)


def test_an_overflow_whose_predicted_peak_no_policy_lowers_is_not_sent_to_a_plan() -> None:
    found = advice({**FITTING, "out_of_memory": True, "floor_bytes": 70 * GIB})
    assert (found.conclusion, found.order, found.device_peak_bytes) == ("unknown", (), None)
    assert "no policy on activations lowers it" in found.summary


@pytest.mark.parametrize(
    "facts",
    [
        {**DEVICE, "peak_bytes": 100 * GIB, "resident_bytes": 20 * GIB, "floor_bytes": 40 * GIB},
        {**FITTING, "out_of_memory": False},
        {**DEVICE, "out_of_memory": True, "resident_bytes": 20 * GIB},
    ],
)
def test_elsewhere_the_limit_is_what_auto_leaves(facts: dict[str, Scalar]) -> None:
    assert advice(facts).device_peak_bytes is None


@pytest.mark.parametrize(
    ("facts", "first", "missing"),
    [
        ({}, True, ("compiled",)),
        ({"compiled": False}, True, ()),
        ({"compiled": True}, False, ()),
        ({"framework": "deepspeed"}, False, ()),
        ({"framework": "deepspeed", "compiled": False}, True, ()),
    ],
    ids=str,
)
def test_an_eager_loop_that_ran_out_of_memory_is_compiled_first(
    facts: dict[str, Scalar], first: bool, missing: tuple[str, ...]
) -> None:
    found = advice({**FITTING, "out_of_memory": True, "floor_bytes": 30 * GIB, **facts})
    assert (found.compile_first, found.missing) == (first, missing)
    assert ("compile first" in found.summary) is first
    assert found.device_peak_bytes is not None


@pytest.mark.parametrize(("mode", "is_said"), [("graph", True), ("inductor", False)])
def test_a_peak_of_mode_graph_is_not_taken_for_that_of_torch_compile(mode: str, is_said: bool) -> None:
    facts: dict[str, Scalar] = {**DEVICE, "peak_bytes": 100 * GIB, "resident_bytes": 20 * GIB, "mode": mode}
    found = advice({**facts, "floor_bytes": 40 * GIB, "out_of_memory": True})
    assert ("mode inductor" in found.summary) is is_said
    assert not found.compile_first


BOTH_FORMS: dict[str, Scalar] = {
    **EIGHT_BILLION,
    "resident_bytes": 60 * GIB,
    "peak_bytes": 118 * GIB,
    "floor_bytes": 62 * GIB,
}


def test_of_two_forms_of_the_state_the_one_that_fits_is_said_to() -> None:
    found = advice(BOTH_FORMS, estimate_of(60, parameters=62))
    assert found.summary.startswith("With 8 B a parameter, all in bfloat16 as plan and apply train, yes: ")
    assert "can be brought down to 62 GiB" in found.summary
    assert "With 16 B (float32 master weights and moments) no: the state alone is 120 GiB." in found.summary
    assert (found.conclusion, found.missing) == ("activations", ("master_weights",))
    fitting = advice({**BOTH_FORMS, "peak_bytes": 70 * GIB}, estimate_of(60))
    assert (fitting.conclusion, fitting.missing) == ("nothing", ("master_weights",))
    unplanned = advice(BOTH_FORMS)
    assert unplanned.conclusion == "unknown"
    assert "With 8 B a parameter, all in bfloat16, 59.8 GiB of state fit." in unplanned.summary


def test_the_state_of_a_rank_that_was_given_is_not_asked_for() -> None:
    given: dict[str, Scalar] = {**DEVICE, "pipeline_parallel": 4, "out_of_memory": True}
    labels = [line.label for section in advice(given).sections for line in section.lines]
    assert "state of one rank" in labels
    known = advice({**given, "resident_bytes": 60 * GIB})
    assert "state of one rank" not in [line.label for section in known.sections for line in section.lines]


@pytest.mark.parametrize("code", ["ADV910", "PLN413"])
def test_the_parts_in_a_sample_message_add_up(code: str) -> None:
    sample = CODES[code].message_example
    assert sample is not None
    whole = re.search(r"(?:floor is|alone takes) ([\d.]+) GiB", sample)
    assert whole is not None
    parts = re.findall(r"(?:parameters|gradients|state|step|workspace) ([\d.]+) GiB", sample)
    assert sum(map(float, parts)) == pytest.approx(float(whole[1]))
