"""A finding says what was promised and what was measured; the verdict says it in one sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from offload_runtime.compiler import load_policy
from offload_runtime.models.findings import findings
from offload_runtime.models.result import (
    ApplyResult,
    Difference,
    Losses,
    PredictedRuns,
    Prediction,
    RunResult,
)
from tests.models.bench_results import ENVIRONMENT

MIB = 1 << 20
NAN = math.nan

GOOD = ApplyResult(
    model="builtin:llama-tiny",
    inputs=("int64[2, 64]",),
    environment=ENVIRONMENT,
    policy_name="p",
    policy_hash="0" * 64,
    mode="graph",
    device="cuda:0",
    engine="cuda",
    dtype="float32",
    optimizer="adamw",
    num_parameters=10,
    steps=3,
    seed=0,
    bitwise_identical=True,
    bitwise_scope="full",
    bitwise_layers=4,
    deterministic=True,
    first_difference=None,
    losses=Losses((3.0,), (3.0,), (3.0,), (3.0,)),
    baseline=RunResult(True, 100 * MIB, 10.0),
    policy=RunResult(True, 75 * MIB, 10.5),
    reference=RunResult(True, 90 * MIB, None),
    predicted=PredictedRuns(),
    planned_bytes=8 * MIB,
    moved_bytes=8 * MIB,
    host_bytes=8 * MIB,
    host_waste_bytes=0,
    hidden_fraction=None,
    stall_ms=None,
    stalls=(),
    num_pins=0,
    numa="",
    num_graphs=1,
    layer_runs=(),
    diagnostics=(),
)
CHANGED = replace(
    GOOD, bitwise_identical=False, first_difference=Difference("gradient", "layers.0.wq", 2, 0.125)
)
OUT_OF_MEMORY = RunResult(False, None, None)
UNTIMED = replace(GOOD, baseline=RunResult(True, 100 * MIB, None), policy=RunResult(True, 75 * MIB, None))
IDLE = replace(GOOD, planned_bytes=0, moved_bytes=0)


def policy(action: str = "offload", **changes: Any) -> Any:
    activations = {
        "default": "recompute",
        "rules": [{"name": "r", "match": {"op": "matmul"}, "action": action}],
    }
    content = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "p",
        "activations": activations,
        **changes,
    }
    return load_policy(content).policy


def planned(**limits: str) -> Any:
    return policy(limits=limits, schedule={"select": "planned"})


@pytest.mark.parametrize(
    ("result", "judged_by", "codes"),
    [
        (GOOD, policy(), []),
        (CHANGED, policy(), ["MOD751"]),
        (replace(GOOD, bitwise_identical=None), policy(), ["MOD742"]),
        (replace(GOOD, losses=Losses((3.0, NAN), (3.0, NAN), (3.0, NAN), (3.0, NAN))), policy(), ["MOD743"]),
        (
            replace(GOOD, losses=Losses((math.inf,), (math.inf,), (math.inf,), (math.inf,))),
            policy(),
            ["MOD743"],
        ),
        (replace(CHANGED, losses=Losses((3.0,), (NAN,), (NAN,), (3.0,))), policy(), ["MOD751"]),
        (replace(GOOD, moved_bytes=MIB), policy(), ["MOD752"]),
        (GOOD, policy(expect={"moved": {"min": "8MiB", "max": "8MiB"}}), []),
        (GOOD, policy(expect={"moved": {"min": "9MiB"}}), ["MOD753"]),
        (GOOD, policy(expect={"moved": {"max": "7MiB"}}), ["MOD753"]),
        (IDLE, policy(), ["MOD754"]),
        (IDLE, policy(limits={"budget": "0B"}), []),
        (IDLE, policy("save"), []),
        (replace(IDLE, planned_bytes=MIB), policy(), ["MOD752"]),
        (GOOD, planned(device_peak="75MiB", step_overhead="5%"), []),
        (GOOD, planned(device_peak="74MiB"), ["MOD755"]),
        (GOOD, planned(step_overhead="4.9%"), ["MOD756"]),
        (replace(GOOD, baseline=OUT_OF_MEMORY), planned(step_overhead="4.9%"), ["MOD744"]),
    ],
)
def test_what_was_promised_is_held_against_what_was_measured(
    result: ApplyResult, judged_by: Any, codes: list[str]
) -> None:
    found = findings(result, judged_by)
    assert [d.code for d in found] == codes
    assert all(d.hint for d in found)


def without_accelerator(peak_bytes: int | None, step_ms: float | None) -> ApplyResult:
    """Return a run of the simulated engine, whose own peaks are 100 and 75 MiB, beside what was predicted."""
    predicted = PredictedRuns(
        "h200-pcie5", Prediction(peak_bytes and 100 * MIB, step_ms and 10.0), Prediction(peak_bytes, step_ms)
    )
    return replace(UNTIMED, engine="simulated", predicted=predicted)


@pytest.mark.parametrize(
    ("result", "judged_by", "found"),
    [
        (without_accelerator(70 * MIB, 10.5), planned(device_peak="70MiB", step_overhead="5%"), []),
        (without_accelerator(70 * MIB, 10.5), planned(device_peak="69MiB"), [("PLN416", True)]),
        (without_accelerator(70 * MIB, 10.5), planned(step_overhead="4.9%"), [("PLN418", False)]),
        (without_accelerator(None, None), planned(device_peak="80MiB"), [("MOD744", False)]),
        (without_accelerator(None, None), planned(step_overhead="4.9%"), [("MOD744", False)]),
    ],
)
def test_without_an_accelerator_limits_are_held_against_what_is_predicted(
    result: ApplyResult, judged_by: Any, found: list[tuple[str, bool]]
) -> None:
    assert [(d.code, d.is_error) for d in findings(result, judged_by)] == found


def test_that_nothing_had_to_move_fails_only_where_the_policy_expects_some() -> None:
    (warned,) = findings(IDLE, policy())
    assert (warned.code, warned.is_error) == ("MOD754", False)
    codes = {d.code: d.is_error for d in findings(IDLE, policy(expect={"moved": {"min": "1B"}}))}
    assert codes == {"MOD753": True, "MOD754": False}


def test_a_missed_limit_names_both_figures_and_its_place() -> None:
    (peak, time) = findings(GOOD, planned(device_peak="74MiB", step_overhead="4%"))
    assert peak.message == "limits.device_peak is 74 MiB, and a peak of 75 MiB was measured"
    assert time.message == "limits.step_overhead is 4.0 %, and the step took 5.0 % longer than the baseline's"
    assert (peak.path, time.path) == ("limits.device_peak", "limits.step_overhead")


def test_a_result_with_an_error_fails_the_command_and_a_warning_does_not() -> None:
    assert GOOD.exit_code == 0
    assert replace(CHANGED, diagnostics=findings(CHANGED, policy())).exit_code == 1
    unproven = replace(GOOD, bitwise_identical=None)
    assert replace(unproven, diagnostics=findings(unproven, policy())).exit_code == 0


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (
            GOOD,
            "Bitwise identical over 3 steps; 8 MiB offloaded a step; peak device memory 25 MiB lower, 75 MiB "
            "against 100 MiB (25.0 %); step time 1.050x the baseline, 10.5 against 10.0 ms.",
        ),
        (
            replace(
                CHANGED,
                engine="simulated",
                baseline=RunResult(True, 75 * MIB, None),
                policy=RunResult(True, 75 * MIB, None),
            ),
            "The numbers differ, first in the gradient layers.0.wq at step 2, by up to 0.125; 8 MiB "
            "offloaded a step; peak device memory (simulated) unchanged at 75 MiB.",
        ),
        (
            replace(
                IDLE,
                steps=1,
                bitwise_scope="reduced",
                bitwise_layers=12,
                baseline=RunResult(False, None, None),
            ),
            "Bitwise identical at 12 layers, the most that fit without offloading; nothing was offloaded, so that no "
            "transfer was tried; trains where the baseline runs out of memory, at a peak of 75 MiB.",
        ),
        (
            replace(
                GOOD,
                bitwise_identical=None,
                moved_bytes=MIB,
                policy=RunResult(True, 110 * MIB, None),
            ),
            "The numbers could not be compared; 1 MiB offloaded a step where 8 MiB were planned; peak device "
            "memory 10 MiB higher, 110 MiB against 100 MiB (10.0 %).",
        ),
    ],
)
def test_the_verdict_is_one_sentence_about_numbers_memory_and_time(
    result: ApplyResult, sentence: str
) -> None:
    assert result.verdict == sentence
