"""Sweeps of one captured model: falling targets, rising budgets, the floor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from offload_runtime.compiler import load_policy
from offload_runtime.errors import RefusedError
from offload_runtime.models.frontier import NUM_STEPS, find_floor, sweep_frontier
from offload_runtime.models.frontier_result import FrontierResult
from tests.models.planned_runs import baseline, policy


@cache
def swept() -> FrontierResult:
    return sweep_frontier(baseline(), policy(select="planned", action="auto", keep_last=0))


def test_targets_go_in_even_steps_from_the_baseline_to_the_floor() -> None:
    found = swept()
    asked = [plan.asked_bytes for plan in found.planned]
    assert found.floor is not None
    assert len(asked) == NUM_STEPS
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] == found.floor.num_bytes
    steps = [
        before - after
        for before, after in zip([found.baseline.peak_device_bytes, *asked], asked, strict=False)
    ]
    assert max(steps) - min(steps) <= 1


def test_every_plan_of_a_target_keeps_to_it_or_says_why_not() -> None:
    for plan in swept().planned:
        if plan.reason:
            continue
        assert plan.forecast is not None
        assert plan.forecast.peak_device_bytes <= plan.asked_bytes


def test_no_plan_is_below_the_floor_and_what_holds_the_floor_adds_up() -> None:
    found = swept()
    assert found.floor is not None
    for plan in (*found.planned, *found.largest_first):
        assert plan.forecast is None or plan.forecast.peak_device_bytes >= found.floor.num_bytes
    assert "what stays throughout" in [held.what for held in found.floor.holdings]
    assert sum(held.num_bytes for held in found.floor.holdings) == found.floor.num_bytes


def test_a_target_below_the_floor_has_no_plan_and_a_reason() -> None:
    found = baseline()
    floor = swept().floor
    assert floor is not None
    targets = (found.forecast.peak_device_bytes, floor.num_bytes - 2**20)
    reached, missed = sweep_frontier(found, load_policy("fit"), targets).planned
    assert reached.forecast is not None
    assert (missed.forecast, missed.asked_bytes) == (None, targets[1])
    assert "the floor is" in missed.reason


def test_budgets_rise_to_everything_that_largest_first_would_offload() -> None:
    budgets = [plan.asked_bytes for plan in swept().largest_first]
    moved = [plan.offloaded_bytes for plan in swept().largest_first]
    assert len(budgets) == NUM_STEPS
    assert budgets == sorted(budgets)
    assert all(taken <= budget for taken, budget in zip(moved, budgets, strict=True))
    assert moved[-1] == budgets[-1] > 0


def test_a_largest_first_policy_is_swept_by_its_budget_beside_the_planner() -> None:
    found = sweep_frontier(baseline(), policy(keep_last=0), (baseline().forecast.peak_device_bytes,))
    assert (found.largest_first_policy, found.planned_policy) == ("wide", "planned")
    assert found.current is not None
    assert found.current.num_offloaded == 4


def test_a_policy_that_cannot_hold_is_no_reason_to_show_no_frontier() -> None:
    impossible = policy(select="planned", action="auto", limits={"device_peak": "1MiB"})
    found = sweep_frontier(baseline(), impossible, (baseline().forecast.peak_device_bytes,))
    assert found.current is None
    assert found.planned[0].forecast is not None


def test_the_floor_is_the_optimizers_step_where_that_takes_more() -> None:
    heavy = baseline(optimizer="adamw")
    resident = replace(heavy.resident, gradients=2**40)
    floor = find_floor(replace(heavy, resident=resident), load_policy("fit"))
    assert floor is not None
    assert floor.num_bytes == resident.throughout + 2 * 2**40
    assert floor.holdings == ()


def test_several_graphs_have_no_frontier() -> None:
    with pytest.raises(RefusedError, match="PLN414"):
        sweep_frontier(baseline("broken"), load_policy("fit"))


def test_the_data_of_a_sweep_names_every_point() -> None:
    data = swept().to_data()
    assert [point["target_bytes"] for point in data["planned"]["points"]] == [
        plan.asked_bytes for plan in swept().planned
    ]
    reached = [point for point in data["planned"]["points"] if "step_ms" in point]
    assert all(
        point["relative_step_time"] == pytest.approx(point["step_ms"] / data["baseline"]["step_ms"])
        for point in reached
    )
    assert data["floor_bytes"] == data["planned"]["points"][-1]["target_bytes"]
    assert {"budget_bytes", "feasible"} <= set(data["largest_first"]["points"][0])


def test_what_there_is_after_each_plan_is_kept() -> None:
    kept: list[FrontierResult] = []
    peak = baseline().forecast.peak_device_bytes
    found = sweep_frontier(baseline(), load_policy("fit"), (peak, peak - 2**20), keep=kept.append)
    assert [len(swept.planned) for swept in kept][:2] == [1, 2]
    assert not any(swept.complete for swept in kept)
    assert found.complete
    assert (kept[-1].planned, kept[-1].largest_first) == (found.planned, found.largest_first)
