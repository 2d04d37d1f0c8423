"""Figures that a skill quotes from plans are those of the result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.fact_sheet import FactSheet
from offload_runtime.hardware import load_hardware
from offload_runtime.offload_options import ladder
from offload_runtime.state_facts import MIB, derived, planned_limit
from offload_runtime.training_state import TrainingShape
from offload_runtime.units import format_size_short

ROOT = Path(__file__).parents[2]
PLANS: dict[str, Any] = json.loads((ROOT / "docs/evidence/quoted-plans.json").read_text())["plans"]
SKILL = " ".join((ROOT / "skills/choose-offload/SKILL.md").read_text().split())
EVALS = (ROOT / "skills/choose-offload/evals/evals.json").read_text()


def test_the_refusal_that_is_shown_is_what_the_plan_said() -> None:
    refused = PLANS["adamw"]["refused"]
    assert f"{refused['code']} {refused['message']}" in SKILL
    assert "`--set limits.device_peak=77GiB` plans activations under it" in SKILL
    assert PLANS["adamw-77gib"]["refused"] is None
    least_mib = int(refused["hint"].partition("MiB")[0].rpartition(" ")[2])
    assert least_mib <= 77 * 1024
    fused = PLANS["adamw-fused"]
    peak = format_size_short(fused["policy"]["peak_device_bytes"])
    assert f"the same plan succeeds, at a peak of {peak} and {fused['ratio']:.3f} of the time" in SKILL
    assert f"a peak of {peak} at {fused['ratio']:.3f} of the time is predicted" in EVALS
    two = PLANS["adamw-fused-two"]
    peak = format_size_short(two["policy"]["peak_device_bytes"])
    assert f"With 2 × 8192 tokens (`--batch 2`) it succeeds too, at {peak} and {two['ratio']:.3f}." in SKILL


@pytest.mark.parametrize("name", ["lora", "adamw"])
def test_the_commands_that_are_shown_are_those_that_were_predicted(name: str) -> None:
    words = PLANS[name]["command"].split()
    shown = [
        set(line.removeprefix("$ ").split())
        for line in (ROOT / "skills/choose-offload/SKILL.md").read_text().splitlines()
        if line.startswith("$ offload plan fit")
    ]
    assert set(words) in shown


def test_the_figures_of_the_lora_example_are_predicted() -> None:
    lora, tight = PLANS["lora"], PLANS["lora-60gib"]
    peak = format_size_short(lora["baseline"]["peak_device_bytes"])
    assert lora["policy"] == lora["baseline"]
    assert lora["verdict"].startswith("Nothing to do")
    assert f"a peak of {peak} under `torch.compile` alone" in SKILL
    assert f"a peak of {peak} is predicted" in EVALS
    assert f"{format_size_short(lora['window_bytes'])} could leave without anything waiting for it" in SKILL
    assert (
        f"`--set limits.device_peak=60GiB` beside it the prediction is 60 GiB at {tight['ratio']:.3f}"
        in SKILL
    )
    assert format_size_short(tight["policy"]["peak_device_bytes"]) == "60 GiB"
    assert f"the adapters' state is {format_size_short(lora['optimizer_state_bytes'])}" in SKILL
    assert f"{format_size_short(lora['parameter_bytes'])} of weights stay" in SKILL


def test_the_limits_of_the_lora_example_are_ranked_as_advice_ranks_them() -> None:
    plan = PLANS["lora"]
    known = {
        "gpu_total_bytes": plan["capacity_bytes"],
        "peak_bytes": plan["baseline"]["peak_device_bytes"],
        "out_of_memory": True,
    }
    limit = planned_limit(derived(FactSheet().with_facts(known, "given")))
    assert limit is not None
    assert f"{limit // MIB}MiB ({format_size_short(limit)}) is what `advise` names" in SKILL
    missed = plan["capacity_bytes"] - plan["baseline"]["peak_device_bytes"]
    assert f"that takes {format_size_short(missed)} (79.1 - 69.2) more than predicted at least" in SKILL
    assert 60 * 2**30 < limit < plan["target_bytes"]


def test_what_the_lora_example_costs_is_most_of_all_the_contention_that_its_profile_assumes() -> None:
    tight, link = PLANS["lora-60gib"], load_hardware("h100-sxm").link()
    share = f"{100 * link.contention:.3g} %"
    assert f"`h100-sxm` takes kernels to run {share} slower while a copy runs (`contention_share`" in SKILL
    assert tight["stall_ms"] == 0
    moved = tight["offloaded_bytes"]
    copies_ms = moved / link.d2h_bytes_per_ms + moved / link.h2d_bytes_per_ms
    cost_ms = tight["policy"]["step_ms"] - tight["baseline"]["step_ms"]
    assert 0.8 * cost_ms <= copies_ms * link.contention <= cost_ms  # most of it, as the text has it


def test_what_the_step_of_the_8b_on_the_cpu_costs_follows_from_the_plan_and_its_profile() -> None:
    """The times of the ladder that `plan --why` prints, beside the forward and backward of the quoted plan."""
    baseline_ms, two_ms = (PLANS[name]["baseline"]["step_ms"] for name in ("adamw-77gib", "adamw-fused-two"))
    shape = TrainingShape(8_030_261_248, master_weights=False)
    (state, *_) = ladder(shape, load_hardware("h100-sxm"))
    assert state.cpu_ms is not None
    hidden = (baseline_ms + state.cpu_ms) / baseline_ms
    exposed = (baseline_ms + state.cpu_ms + state.link_ms) / baseline_ms
    text = " ".join((ROOT / "skills/offload-optimizer-state/SKILL.md").read_text().split())
    assert f"takes 8.03 / 4.6 = {state.cpu_ms / 1000:.1f} s" in text
    assert f"{state.d2h_ms / 1000:.1f} s each at 55 GB/s" in text
    assert (
        f"on `h100-sxm` ({baseline_ms / 1000:.2f} s) {hidden:.1f} times as long where the copies are hidden, "
        f"{exposed:.1f} where they are exposed" in text
    )
    hidden = (two_ms + state.cpu_ms) / two_ms
    exposed = (two_ms + state.cpu_ms + state.link_ms) / two_ms
    assert f"with 2 × 8192 tokens ({two_ms / 1000:.2f} s) {hidden:.1f} and {exposed:.1f}" in text
    left = (
        PLANS["adamw-fused-two"]["baseline"]["peak_device_bytes"]
        - PLANS["adamw-fused-two"]["optimizer_state_bytes"]
    )
    assert f"the peak is then {format_size_short(left)}" in text
