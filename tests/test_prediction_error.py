"""How far predictions were off on a profile: what the result files say, and nothing where nothing was compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.hardware import (
    list_hardware,
    load_hardware,
)

EVIDENCE = Path(__file__).parents[1] / "docs/evidence"


def compared_runs() -> list[tuple[float, float]]:
    """Return the error of each predicted ratio, and of each predicted step, of all frontiers of the H200.

    No step was predicted of the runs without a policy. On a link that slows no kernel down it is that of the plan of
    the same model that neither waits nor computes again: the least.
    """
    results = [json.loads(path.read_text("utf-8")) for path in sorted(EVIDENCE.glob("frontier-*-h200.json"))]
    sides = [
        ((result["model"]["spec"], tuple(result["model"]["inputs"]), result["model"]["num_layers"]), side)
        for result in results
        for side in result["sides"]
        if side["predicted"] is not None and side["summary"]["median_ms"] is not None
    ]
    baseline_ms: dict[Any, float] = {}
    for model, side in sides:
        step_ms = side["predicted"]["step_ms"]
        baseline_ms[model] = min(baseline_ms.get(model, step_ms), step_ms)
    return [
        (
            side["predicted"]["step_ms"] / baseline_ms[model] - side["summary"]["ratio"],
            side["predicted"]["step_ms"] / side["summary"]["median_ms"] - 1,
        )
        for model, side in sides
    ]


def test_how_far_predictions_were_off_is_what_the_result_files_say() -> None:
    found = load_hardware("h200-pcie5").prediction_error
    runs = compared_runs()
    assert found is not None
    assert found.num_runs == len(runs)
    for stated, errors in zip((found.ratio, found.step), zip(*runs, strict=True), strict=True):
        # The worst, rounded up.
        assert stated == math.ceil(max(map(abs, errors)) * 1e4) / 1e4


def test_the_least_predicted_step_is_that_of_the_baseline() -> None:
    plans = json.loads((EVIDENCE / "quoted-plans.json").read_text("utf-8"))["plans"]
    result = json.loads((EVIDENCE / "frontier-qwen3-30b-a3b-h200.json").read_text("utf-8"))
    least = min(side["predicted"]["step_ms"] for side in result["sides"] if side["predicted"])
    assert plans["experts-23gib"]["baseline"]["step_ms"] == pytest.approx(least, abs=0.01)


def test_only_profiles_that_were_compared_say_how_far_predictions_were_off() -> None:
    compared = {profile.name for profile in list_hardware() if profile.prediction_error is not None}
    used = {
        side["predicted"]["hardware"]
        for path in EVIDENCE.glob("frontier-*.json")
        for side in json.loads(path.read_text("utf-8"))["sides"]
        if side["predicted"]
    }
    assert compared == used
