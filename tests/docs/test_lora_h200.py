"""LoRA on a GPU kept to 80 GB: what the policy of the skill's example did there, and what runs without one did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.compiler import load_policy
from offload_runtime.models.bench_file import read_result
from offload_runtime.models.bench_statistics import summarise

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
POLICY = EVIDENCE / "llama3-8b-lora-80gb.yaml"
SKILL = ROOT / "skills" / "choose-offload" / "SKILL.md"
EIGHTY_GB = 80 * 10**9
GIB = 2**30


@pytest.fixture(scope="module")
def applied() -> dict[str, Any]:
    printed: dict[str, Any] = json.loads((EVIDENCE / "apply-llama3-8b-lora-80gb-h200.json").read_text())[
        "printed"
    ]
    assert (printed["ok"], printed["exit_code"], printed["diagnostics"]) == (True, 0, [])
    return printed["data"]  # type: ignore[no-any-return]


def test_the_policy_that_ran_is_the_file_beside_the_result(applied: dict[str, Any]) -> None:
    assert applied["policy_hash"] == load_policy(POLICY).hash
    environment = applied["environment"]
    assert (environment["gpu"], environment["device_memory_bytes"]) == ("NVIDIA H200", EIGHTY_GB)
    assert applied["inputs"] == ["int64[2, 8192]"] * 2
    assert applied["model"] == "builtin:llama3-8b-lora"


def test_the_whole_model_trained_with_the_same_bits_and_moved_what_was_planned(
    applied: dict[str, Any],
) -> None:
    assert applied["bitwise_identical"] is True
    assert (applied["bitwise_scope"], applied["bitwise_layers"]) == ("full", 32)
    assert applied["losses"]["compared"] == applied["losses"]["reference"]
    assert applied["moved_bytes"] == applied["planned_bytes"] != 0


def test_both_limits_held_where_they_were_measured(applied: dict[str, Any]) -> None:
    limits = load_policy(POLICY).policy.limits
    assert (limits.device_peak, limits.step_overhead) == (60 * GIB, 0.05)
    baseline, policy = applied["baseline"], applied["policy"]
    assert policy["peak_device_bytes"] <= 60 * GIB < baseline["peak_device_bytes"]
    assert policy["step_ms"] <= 1.05 * baseline["step_ms"]
    for run in ("baseline", "policy"):
        assert abs(applied["predicted"][run]["peak_relative_error"]) <= 0.03
        assert abs(applied["predicted"][run]["step_relative_error"]) <= 0.10


def test_the_skill_quotes_what_was_measured_with_and_without(applied: dict[str, Any]) -> None:
    text = " ".join(SKILL.read_text().split())
    baseline, policy = applied["baseline"], applied["policy"]
    ratio = policy["step_ms"] / baseline["step_ms"]
    assert f"{baseline['peak_device_bytes'] / GIB:.1f} GiB and {baseline['step_ms']:.0f} ms" in text
    assert f"{policy['peak_device_bytes'] / GIB:.1f} GiB and {ratio:.3f} of that time" in text
    eager = read_result(EVIDENCE / "eager-llama3-8b-lora-80gb-h200.json")
    assert eager.environment.device_memory_bytes == EIGHTY_GB
    assert not eager.side("eager").fits
    checkpoint = summarise(eager, "eager-checkpoint")
    assert checkpoint.peak_device_bytes is not None
    assert f"{checkpoint.peak_device_bytes / GIB:.1f} GiB and {checkpoint.median_ms:.0f} ms" in text
