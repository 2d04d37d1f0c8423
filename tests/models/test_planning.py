"""Predictions for a model that is not run: memory by kind, fates, limits, and what cannot be kept to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import offload_runtime as off
from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import PolicyError, RefusedError
from offload_runtime.hardware import HardwareProfile, hardware_document, load_hardware
from offload_runtime.models.comparison import compare_training
from offload_runtime.models.plan_result import PlanResult
from offload_runtime.models.planning import (
    Baseline,
    arithmetic_of,
    baseline_of,
    plan_model,
    plan_policy,
    predict_baseline,
)
from offload_runtime.models.resolve import ModelRequest
from tests.models.planned_models import LAYER_PARAMETERS, NUM_LAYERS, WIDE_BYTES, Stack, stack

MODELS = "tests.models.planned_models"
PARAMETER_BYTES = 4 * NUM_LAYERS * LAYER_PARAMETERS
WORKSPACE = load_hardware("h200-pcie5").workspace_bytes


def policy(
    *,
    select: str = "largest_first",
    action: str = "offload",
    limits: Mapping[str, Any] | None = None,
    **schedule: Any,
) -> CompiledPolicy:
    """Return a policy for the wide products of each block."""
    rule = {"name": "wide", "match": {"op": "matmul", "bytes": {"min": "1MiB"}}, "action": action}
    return load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "wide",
            "limits": dict(limits or {}),
            "schedule": {"select": select, **schedule},
            "activations": {"default": "auto", "rules": [rule]},
        }
    )


def hardware(**changes: tuple[float, str]) -> HardwareProfile:
    """Return the H200's profile with other figures, such as ``device_memory=(8, "MiB")``."""
    document = hardware_document(load_hardware("h200-pcie5"))
    for key, (value, unit) in changes.items():
        section, _, name = key.partition("_")
        given = {"value": value, "source": "the test"} | ({"unit": unit} if unit else {})
        document[section][name] = given
    return load_hardware(document)


@cache
def baseline(
    model: str = "stack", mode: str = "graph", optimizer: str = "none", profile: HardwareProfile | None = None
) -> Baseline:
    """Trace a model of `planned_models` once for all tests."""
    return baseline_of(
        ModelRequest(f"{MODELS}:{model}", optimizer=optimizer),
        policy(),
        mode=mode,
        hardware=profile or load_hardware("h200-pcie5"),
    )


def codes(result: PlanResult) -> list[str]:
    return [found.code for found in result.diagnostics]


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> tuple[str, str]:
    (found,) = error.value.diagnostics
    assert found.hint
    return found.code, found.message


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


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("none", 0), ("sgd", 0), ("adamw", 2), ("adamw-fused", 2)]
)
def test_what_stays_is_counted_by_kind(optimizer: str, moments: int) -> None:
    resident = baseline(optimizer=optimizer).resident
    assert resident.parameters == resident.gradients == PARAMETER_BYTES
    assert resident.optimizer_state == moments * PARAMETER_BYTES
    assert resident.batch == 4096 * 64 * 4
    assert (resident.buffers, resident.workspace) == (0, WORKSPACE)
    assert baseline(optimizer=optimizer).planned.step.trace.resident_bytes == resident.throughout


def test_optimizer_state_is_as_torch_allocates_it() -> None:
    module, args = stack()
    optimizer = torch.optim.AdamW(module.parameters())
    module(*args).backward()
    optimizer.step()
    held = [
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    assert sum(held) == baseline(optimizer="adamw").resident.optimizer_state


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


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_arithmetic_is_judged_by_the_limit_of_the_plan(share: float) -> None:
    found = baseline(mode="inductor")
    peak, floor = found.forecast.peak_device_bytes, found.resident.throughout
    limits = {"device_peak": f"{int(floor + share * (peak - floor))}B"}
    asked = policy(select="planned", action="auto", keep_last=0, limits=limits)
    try:
        plan_policy(found, asked)
        refused = None
    except RefusedError as error:
        refused = error
    arithmetic = arithmetic_of(found, asked, refusal=refused)
    assert arithmetic is not None
    assert arithmetic.limit_bytes == int(limits["device_peak"][:-1])
    kinds = {measure.kind for measure in (arithmetic.choice.measures if arithmetic.choice else ())}
    assert (refused is not None, not arithmetic.needed_bytes) == (share == 0, share == 1)
    # What no plan keeps to, activations do not cure, and here there is no state to speak of.
    assert bool(kinds) == (share == 0.5)
    assert kinds <= {"activations", "recompute"}


def test_the_optimizers_step_is_part_of_the_peak() -> None:
    """A model of many parameters and few activations peaks when AdamW takes its square roots."""
    wide = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    captured = off.capture(wide, (torch.randn(1, 512),), lambda output: output.sum())
    captured = replace(captured, model=replace(captured.model, optimizer="adamw"))
    found = predict_baseline(captured, load_hardware("h200-pcie5"))
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


@pytest.mark.parametrize(
    ("asked", "default", "assumed"),
    [(None, "sgd", True), (None, "none", True), (None, "adamw", False), ("sgd", "sgd", False)],
)
def test_an_optimizer_that_nobody_named_is_assumed(asked: str | None, default: str, assumed: bool) -> None:
    found = replace(baseline(optimizer=default), optimizer_is_given=asked is not None)
    assert plan_policy(found, policy()).assumes_no_state is assumed


def test_the_fused_step_takes_no_temporaries_and_passes_once_over_all() -> None:
    default, fused = baseline(optimizer="adamw"), baseline(optimizer="adamw-fused")
    assert default.optimizer_step_bytes == fused.optimizer_step_bytes + PARAMETER_BYTES
    assert fused.optimizer_step_bytes == fused.resident.throughout + PARAMETER_BYTES
    # p, g, m and v are read, p, m and v are written.
    rate = load_hardware("h200-pcie5").hbm_bytes_per_ms
    assert rate is not None
    assert fused.optimizer_ms == pytest.approx(7 * PARAMETER_BYTES / rate)
    assert fused.optimizer_ms < default.optimizer_ms


def accumulating(number: int, optimizer: str = "none") -> Baseline:
    once = baseline(optimizer=optimizer)
    model = replace(once.traced.model, gradient_accumulation_steps=number)
    return predict_baseline(replace(once.traced, model=model), once.hardware)


def test_gradients_that_accumulate_are_there_throughout_and_those_of_a_batch_on_top() -> None:
    once, twice = baseline(), accumulating(2)
    assert twice.resident.throughout == once.resident.throughout + PARAMETER_BYTES
    assert twice.forecast.peak_device_bytes == once.forecast.peak_device_bytes + PARAMETER_BYTES
    # However many batches there are, they add to the same gradients.
    assert accumulating(8).forecast == twice.forecast


def test_the_optimizers_step_holds_gradients_once_however_many_batches_made_them() -> None:
    assert accumulating(4, "adamw").optimizer_step_bytes == baseline(optimizer="adamw").optimizer_step_bytes


def test_a_step_of_several_batches_takes_each_of_them_and_adding_them_up() -> None:
    once, four = baseline(optimizer="adamw"), accumulating(4, "adamw")
    rate = load_hardware("h200-pcie5").hbm_bytes_per_ms
    assert rate is not None
    adding_ms = 3 * 3 * PARAMETER_BYTES / rate
    step_ms = once.forecast.step_ms
    assert four.whole_step_ms(step_ms) == pytest.approx(4 * step_ms + adding_ms + once.optimizer_ms)


def test_a_limit_counts_gradients_that_accumulate() -> None:
    twice = accumulating(2)
    target = (twice.forecast.peak_device_bytes + baseline().forecast.peak_device_bytes) // 2
    asked = policy(select="planned", action="auto", keep_last=0, limits={"device_peak": f"{target}B"})
    result = plan_policy(twice, asked)
    assert result.num_offloaded + result.num_recomputed > 0
    assert result.policy.peak_device_bytes <= target
    assert plan_policy(baseline(), asked).changes_nothing


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


def test_a_captured_module_is_planned_as_it_is_by_request() -> None:
    module, args = stack()
    plan = off.plan(off.capture(module, args), policy(), "h200-pcie5")
    result = plan_policy(baseline(), policy())
    assert plan.planned_bytes == result.offloaded_bytes
    assert [verdict.fate for verdict in plan.verdicts].count("offload") == result.num_offloaded
    assert [(v.activation, v.fate) for v in plan.verdicts if v.fate != "recompute"] == [
        (v.activation, v.fate) for v in result.verdicts if v.fate != "recompute"
    ]


def test_a_capture_takes_no_memory_and_leaves_the_module_as_it_is() -> None:
    with torch.device("meta"):
        module = Stack(lambda x: x.float().square().mean())
        args = (torch.empty(4096, 64),)
    captured = off.capture(module, args, mode="inductor")
    assert captured.state.parameters == PARAMETER_BYTES
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert off.plan(captured, policy(), "h200-pcie5").planned_bytes == (NUM_LAYERS - 1) * WIDE_BYTES


class _Chooses(nn.Module):
    """Takes one way or another by the values that it is given, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(x), 0.5)
        scale = 2.0 if x.sum().item() < 1e9 else -2.0
        return (self.last(x) * scale).square().mean()


def test_a_model_that_computes_with_values_is_captured_with_its_own_tensors() -> None:
    module, args = _Chooses(), (torch.randn(512, 64),)
    with pytest.raises(RefusedError, match=r"DataDependent.*fake=False") as caught:
        off.capture(module, args)
    assert refusal(caught)[0] == "MOD732"
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()
    captured = off.capture(module, args, fake=False)
    assert len(captured.graphs) == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in module.parameters())
    result = plan_policy(predict_baseline(captured, load_hardware("h200-pcie5")), load_policy("sac-default"))
    assert result.num_graphs == 2
    assert result.policy.step_ms > 0


def test_a_capture_with_values_gives_the_plan_of_one_without() -> None:
    module, args = stack()
    plans = [off.plan(off.capture(module, args, fake=fake), policy(), "h200-pcie5") for fake in (True, False)]
    assert plans[0].hash == plans[1].hash


def test_what_capture_and_plan_cannot_do_is_said() -> None:
    module, args = stack()
    with torch.device("meta"):
        empty = Stack(lambda x: x)
    with pytest.raises(ValueError, match=r"fake=False calls the module, and a tensor of shape \[256, 64\]"):
        off.capture(empty, args, fake=False)
    with pytest.raises(ValueError, match="must be one of graph, inductor"):
        off.capture(module, args, mode="eager")
    with pytest.raises(ValueError, match="2 graphs"):
        off.plan(baseline("broken").traced, policy(), "h200-pcie5")


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
