"""Predictions for a model that is not run: memory by kind, fates, limits, and what cannot be kept to."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import offload_runtime as off
from offload_runtime.compiler import load_policy
from offload_runtime.errors import PolicyError, RefusedError
from offload_runtime.hardware import load_hardware
from offload_runtime.models.catalog import algorithm_of
from offload_runtime.models.comparison import compare_training
from offload_runtime.models.plan_result import TEMPORARIES, PlanResult
from offload_runtime.models.planning import (
    baseline_of,
    plan_model,
    plan_policy,
    predict_baseline,
)
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.traced_model import TracedModel
from offload_runtime.training_state import TrainingShape, rank_state
from tests.models.planned_models import NUM_LAYERS, WIDE_BYTES
from tests.models.planned_runs import MODELS, PARAMETER_BYTES, WORKSPACE, baseline, hardware, policy, refusal


def codes(result: PlanResult) -> list[str]:
    return [found.code for found in result.diagnostics]


def test_a_target_that_is_met_already_gives_an_empty_plan_and_says_so() -> None:
    result = plan_policy(baseline(mode="inductor"), load_policy("fit"))
    assert (result.num_offloaded, result.offloaded_bytes, result.exit_code) == (0, 0, 0)
    assert result.verdict.startswith("Nothing to do: ")
    assert result.policy.peak_device_bytes <= (result.target_bytes or 0)


def test_auto_is_the_memory_of_the_profile_less_six_percent() -> None:
    result = plan_policy(baseline(), load_policy("fit"))
    assert result.target_bytes == int(result.capacity_bytes * 0.94)
    assert result.capacity_bytes == load_hardware("h200-pcie5").device_memory_bytes


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_offloading_lowers_the_peak_by_what_is_away(mode: str) -> None:
    result = plan_policy(baseline(mode=mode), policy(keep_last=1, defer=0))
    assert result.num_offloaded == NUM_LAYERS - 1
    assert result.offloaded_bytes == (NUM_LAYERS - 1) * WIDE_BYTES
    assert result.num_candidates == NUM_LAYERS - 1
    assert result.policy.peak_device_bytes < result.baseline.peak_device_bytes - WIDE_BYTES
    assert result.host.pinned_bytes >= result.offloaded_bytes
    assert codes(result) == []


def test_candidates_are_counted_whatever_the_budget() -> None:
    result = plan_policy(baseline(), policy(keep_last=0, limits={"budget": "9MiB"}))
    assert WIDE_BYTES == 4 * 2**20
    assert (result.num_candidates, result.num_offloaded) == (NUM_LAYERS, 2)


def test_the_peak_is_said_in_words_of_the_model_and_adds_up() -> None:
    forecast = baseline().forecast
    assert forecast.peak_at.side in ("forward", "backward")
    assert forecast.peak_at.module.startswith("layers.")
    assert forecast.peak_at.op.startswith("aten.")
    assert f"layer {forecast.peak_at.layer}" in str(forecast.peak_at)
    alive = sum(holding.num_bytes for holding in forecast.holdings)
    assert alive + baseline().resident.throughout == forecast.peak_device_bytes


@pytest.mark.parametrize("defer", [0, 1, 4])
def test_what_is_alive_at_the_peak_adds_up_under_a_plan_too(defer: int) -> None:
    result = plan_policy(baseline(), policy(keep_last=0, defer=defer))
    alive = sum(holding.num_bytes for holding in result.policy.holdings)
    assert alive + result.resident_bytes.throughout == result.policy.peak_device_bytes


def test_the_window_is_what_the_link_carries_until_the_peak() -> None:
    found = baseline()
    step = found.planned.step
    assert 0 < found.window.duration_ms < step.simulation.starts_ms[step.simulation.peak_at]
    rate = load_hardware("h200-pcie5").link().d2h_bytes_per_ms
    assert found.window.num_bytes == pytest.approx(rate * found.window.duration_ms, abs=1)


def test_planned_keeps_to_the_target_and_says_how_far_it_is_from_the_bound() -> None:
    found = baseline(mode="inductor")
    floor = found.resident.throughout
    target = (found.forecast.peak_device_bytes + floor) // 2
    result = plan_policy(
        found, policy(select="planned", action="auto", keep_last=0, limits={"device_peak": f"{target}B"})
    )
    assert result.policy.peak_device_bytes <= target == result.target_bytes
    assert result.num_offloaded + result.num_recomputed > 0
    assert result.optimality_gap is not None
    assert 0 <= result.optimality_gap < 0.5
    assert result.bound_ms is not None
    assert result.policy.step_ms >= result.bound_ms * (1 - 1e-9)


def test_a_target_below_the_floor_is_refused_with_the_floor_and_its_holders() -> None:
    with pytest.raises(RefusedError, match="the floor is") as caught:
        plan_policy(baseline(), policy(select="planned", action="auto", limits={"device_peak": "1MiB"}))
    code, message = refusal(caught)
    assert code == "PLN412"
    assert "held by what stays throughout" in message
    # In words of the model: no node of a graph is named.
    assert re.search(r" at aten\.\w+\.\w+ in layers\.\d", message), message
    assert not re.search(r"\b(mm|addmm|gelu|t|add)_\d+\b", message), message


@pytest.mark.parametrize("mode", ["graph", "inductor"])
@pytest.mark.parametrize("optimizer", ["adamw", "none"])
@pytest.mark.parametrize("model", ["stack", "broken", "nested", "without_loss"])
def test_what_is_alive_at_the_peak_adds_up_whatever_the_graphs(model: str, optimizer: str, mode: str) -> None:
    found = baseline(model, mode, optimizer)
    sides = [found.forecast, plan_policy(found, policy(keep_last=0)).policy]
    for side in sides:
        alive = sum(holding.num_bytes for holding in side.holdings)
        assert alive + found.resident.throughout == side.peak_device_bytes


def many_parameters(optimizer: str, dtype: torch.dtype = torch.float32) -> TracedModel:
    """Capture a model of many parameters and few activations."""
    wide = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to(dtype)
    captured: TracedModel = off.capture(
        wide, (torch.randn(1, 512, dtype=dtype),), lambda output: output.sum()
    )
    return replace(captured, model=replace(captured.model, optimizer=optimizer))


@pytest.mark.parametrize("master_weights", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "sgd", "none"])
def test_what_is_alive_in_the_optimizers_step_adds_up(optimizer: str, master_weights: bool) -> None:
    captured = many_parameters(optimizer, torch.bfloat16)
    found = predict_baseline(captured, load_hardware("h200-pcie5"), master_weights=master_weights)
    alive = {held.what: held.num_bytes for held in found.forecast.holdings}
    assert found.resident.throughout + sum(alive.values()) == found.forecast.peak_device_bytes
    if optimizer == "adamw":
        assert found.forecast.peak_at.side == "optimizer"
        square_roots = found.resident.gradients * (2 if master_weights else 1)
        assert alive == {"gradients": found.resident.gradients, TEMPORARIES: square_roots}
        assert {held.num_tensors for held in found.forecast.holdings} == {4}


@pytest.mark.parametrize(("optimizer", "floats"), [("adamw", 3), ("adamw-fused", 3), ("sgd", 1), ("none", 0)])
def test_master_weights_and_moments_of_16_bit_parameters_are_float32(optimizer: str, floats: int) -> None:
    profile = load_hardware("h200-pcie5")
    captured = many_parameters(optimizer, torch.bfloat16)
    plain, mixed = (predict_baseline(captured, profile, master_weights=given) for given in (False, True))
    number = 2 * (512 * 512 + 512)
    assert mixed.resident.optimizer_state == floats * 4 * number
    assert mixed.resident.master_weights == (4 * number if floats else 0)
    assert mixed.resident.gradients == plain.resident.gradients == 2 * number
    assert (mixed.optimizer_ms > plain.optimizer_ms) is (optimizer != "none")
    shape = TrainingShape(number, optimizer=algorithm_of(optimizer), master_weights=True)
    assert rank_state(shape).optimizer_state == mixed.resident.optimizer_state


def test_master_weights_of_float32_parameters_are_these() -> None:
    captured, profile = many_parameters("adamw"), load_hardware("h200-pcie5")
    plain, mixed = (predict_baseline(captured, profile, master_weights=given) for given in (False, True))
    assert (plain.resident, plain.forecast) == (mixed.resident, mixed.forecast)


def test_the_optimizers_step_is_part_of_the_peak() -> None:
    """A model of many parameters and few activations peaks when AdamW takes its square roots."""
    found = predict_baseline(many_parameters("adamw"), load_hardware("h200-pcie5"))
    weights = 2 * (512 * 512 + 512) * 4
    assert str(found.forecast.peak_at) == "the optimizer's step"
    assert found.forecast.peak_device_bytes == 5 * weights + 512 * 4 + WORKSPACE


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_a_plan_refuses_to_offload_parameters_as_a_run_does(mode: str) -> None:
    asked = load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "parameters",
            "activations": {"default": "auto"},
            "parameters": {"offload": True},
        }
    )
    request = ModelRequest(f"{MODELS}:stack")
    with pytest.raises(RefusedError, match="parameters") as caught:
        baseline_of(request, asked, mode=mode, hardware=load_hardware("h200-pcie5"))
    assert refusal(caught)[0] == "POL190"
    with pytest.raises(RefusedError) as run:
        compare_training(request, asked, steps=1, mode=mode)
    assert refusal(run) == refusal(caught)


def test_a_target_below_the_optimizers_step_is_refused_with_its_parts() -> None:
    target = WORKSPACE + 4 * PARAMETER_BYTES
    with pytest.raises(RefusedError) as caught:
        plan_policy(
            baseline(optimizer="adamw"),
            policy(select="planned", action="auto", limits={"device_peak": f"{target}B"}),
        )
    code, message = refusal(caught)
    assert code == "PLN413"
    for part in ("parameters", "gradients", "optimizer state", "temporaries of the step"):
        assert part in message


@pytest.mark.parametrize(("memory_mib", "cures"), [(4096, True), (70, False)])
def test_a_cure_for_the_optimizers_step_is_one_that_the_device_has_room_for(
    memory_mib: int, cures: bool
) -> None:
    target = WORKSPACE + 4 * PARAMETER_BYTES
    small = hardware(device_memory=(memory_mib, "MiB"))
    with pytest.raises(RefusedError) as caught:
        plan_policy(
            baseline(optimizer="adamw", profile=small),
            policy(select="planned", action="auto", limits={"device_peak": f"{target}B"}),
        )
    hint = caught.value.diagnostics[0].hint or ""
    assert ("set device_peak to" in hint) is cures
    assert ("more than the device's" in hint) is not cures


def test_a_step_that_exceeds_the_device_does_not_fit() -> None:
    small = hardware(device_memory=(100, "MiB"))
    result = plan_policy(baseline(profile=small), policy(keep_last=0, defer=0))
    peaks = (result.baseline.peak_device_bytes, result.policy.peak_device_bytes)
    assert (result.baseline.fits, result.policy.fits) == tuple(peak <= 100 * 2**20 for peak in peaks)
    assert result.baseline.fits is False


def test_a_plan_that_pins_more_than_limits_host_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        plan_policy(baseline(), policy(limits={"host": "5MiB"}))
    code, message = refusal(caught)
    assert code == "PLN415"
    assert "pins 12 MiB" in message
    assert "limits.host is 5 MiB" in message


def test_ranks_of_one_host_share_what_may_be_pinned() -> None:
    crowded = hardware(host_memory=(80, "MiB"))
    assert crowded.host_limit_bytes == 8 * 2**20  # 80 % of 80 MiB, shared by 8 ranks
    with pytest.raises(RefusedError) as caught:
        plan_policy(baseline(profile=crowded), policy())
    code, message = refusal(caught)
    assert code == "PLN415"
    assert "8 ranks may pin 8 MiB each: 80 % of the host's 80 MiB" in message


def test_host_memory_is_rounded_as_the_arena_rounds_it() -> None:
    module = nn.Sequential(nn.Linear(8, 33), nn.GELU(), nn.Linear(33, 8))
    planned = off.load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "all",
            "schedule": {"keep_last": 0},
            "activations": {
                "default": "auto",
                "rules": [{"name": "m", "match": {"op": "matmul"}, "action": "offload"}],
            },
        }
    )
    captured = off.capture(module, (torch.randn(3, 8),), lambda output: output.sum())
    result = plan_policy(predict_baseline(captured, load_hardware("h200-pcie5")), planned)
    assert result.offloaded_bytes == 3 * 33 * 4
    assert result.host.pinned_bytes == 4096
    assert result.host.rounding_bytes == 4096 - 3 * 33 * 4


def test_offloading_that_cannot_lower_the_peak_is_said_with_where_it_sits() -> None:
    """The head is far larger than what is offloaded: the peak sits there before and after."""
    head = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8), nn.Linear(8, 4096))
    captured = off.capture(head, (torch.randn(1024, 64),), lambda output: output.square().sum())
    found = predict_baseline(captured, load_hardware("h200-pcie5"))
    result = plan_policy(
        found,
        off.load_policy(
            {
                "apiVersion": "offload/v1",
                "kind": "Policy",
                "name": "small",
                "schedule": {"keep_last": 0, "defer": 100, "prefetch": 100},
                "activations": {
                    "default": "save",
                    "rules": [
                        {
                            "name": "m",
                            "match": {"op": "matmul", "bytes": {"max": "64KiB"}},
                            "action": "offload",
                        }
                    ],
                },
            }
        ),
    )
    assert result.num_offloaded == 1
    (said,) = [found for found in result.diagnostics if found.code == "PLN402"]
    assert str(result.policy.peak_at) in said.message
    assert result.exit_code == 0


def test_graphs_after_a_break_are_planned_one_by_one_and_make_one_step() -> None:
    whole, broken = baseline(), baseline("broken")
    assert [len(found.traced.graphs) for found in (whole, broken)] == [1, 2]
    assert broken.forecast.step_ms == pytest.approx(whole.forecast.step_ms, rel=0.1)
    assert broken.forecast.peak_device_bytes == pytest.approx(whole.forecast.peak_device_bytes, rel=0.1)
    result = plan_policy(broken, policy(keep_last=0, defer=0))
    assert (result.num_graphs, result.num_offloaded) == (2, NUM_LAYERS)
    assert result.policy.peak_device_bytes < result.baseline.peak_device_bytes
    assert result.offloaded_bytes == NUM_LAYERS * WIDE_BYTES


def test_a_limit_on_device_memory_is_refused_over_several_graphs() -> None:
    with pytest.raises(RefusedError) as caught:
        plan_policy(baseline("broken"), load_policy("fit"))
    code, message = refusal(caught)
    assert code == "PLN414"
    assert "2 graphs" in message


def test_a_loss_outside_of_the_module_is_part_of_the_step() -> None:
    inside, outside = baseline(), baseline("without_loss")
    assert [len(found.traced.loss_graphs) for found in (inside, outside)] == [0, 1]
    assert outside.forecast.step_ms == pytest.approx(inside.forecast.step_ms, rel=0.1)
    assert len(outside.planned.step.trace.kernels) > len(outside.planned.links[0].trace.kernels)
    result = plan_policy(outside, policy(keep_last=0, defer=0))
    assert (result.num_graphs, result.num_offloaded) == (1, NUM_LAYERS)


def test_a_loss_that_is_left_out_is_said() -> None:
    result = plan_policy(baseline("two_outputs"), policy())
    assert codes(result) == ["PLN417"]


def test_a_model_that_no_tracer_sees_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        plan_model(ModelRequest(f"{MODELS}:untraceable"), policy(), hardware="h200-pcie5")
    assert refusal(caught)[0] in ("MOD731", "MOD732")


def test_a_rule_that_matches_nothing_fails() -> None:
    nothing = load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "nothing",
            "activations": {
                "default": "auto",
                "rules": [{"name": "a", "match": {"op": "attention"}, "action": "save"}],
            },
        }
    )
    with pytest.raises(PolicyError, match="POL180"):
        plan_policy(baseline(), nothing)


def test_a_policy_that_the_runtime_cannot_honour_is_refused_before_anything_is_traced() -> None:
    with pytest.raises(RefusedError, match="POL190"):
        plan_model(
            ModelRequest("builtin:llama3-70b"),
            {"apiVersion": "offload/v1", "kind": "Policy", "name": "g", "gradients": {"offload": True}},
            hardware="h200-pcie5",
        )


def test_plans_are_the_same_each_time() -> None:
    chosen = policy(select="planned", action="auto", limits={"device_peak": "200MiB"})
    first, second = (plan_policy(baseline(), chosen) for _ in range(2))
    assert first.to_data() == second.to_data()


def test_an_expectation_that_will_be_missed_is_found() -> None:
    expecting = load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "expecting",
            "activations": {"default": "auto"},
            "expect": {"moved": {"min": "1MiB"}},
        }
    )
    result = plan_policy(baseline(), expecting)
    assert (codes(result), result.exit_code) == (["MOD753"], 1)


def test_a_budget_counts_over_all_graphs() -> None:
    result = plan_policy(baseline("broken"), policy(keep_last=0, limits={"budget": "13MiB"}))
    assert WIDE_BYTES == 4 * 2**20
    assert (result.num_graphs, result.num_candidates, result.num_offloaded) == (2, NUM_LAYERS, 3)
