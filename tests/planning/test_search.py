import sys
import time
from dataclasses import replace
from functools import cache

import pytest

from offload_runtime.planning import Infeasible, Limits, PlannedStep, plan_fates, simulate
from offload_runtime.planning.exact import MAX_ITEMS
from offload_runtime.step import LinkRates, Region
from tests.planning.reference import fits, key_of, least_peak, least_time, random_limits
from tests.planning.steps import LINK, item, step
from tests.planning.traces import GIB, PCIE5, llama, small


@pytest.mark.parametrize("seed", range(200))
def test_small_steps_are_planned_as_well_as_by_trying_everything(seed: int) -> None:
    trace, link = small(seed)
    limits = random_limits(seed, trace, link)
    best = least_time(trace, link, limits)
    try:
        plan = plan_fates(
            trace, link, device_limit=limits.device, host_limit=limits.host, budget=limits.budget
        )
    except Infeasible:
        assert best is None
        return
    assert fits(trace, plan.fates, plan.simulation, limits)
    assert key_of(trace, plan.fates, plan.simulation) == best


@pytest.mark.parametrize("seed", range(40))
def test_the_least_peak_within_a_time_is_found_exactly_on_small_steps(seed: int) -> None:
    trace, link = small(seed, max_items=4)
    kernels_ms = sum(kernel.duration_ms for kernel in trace.kernels)
    limits = Limits(step_ms=kernels_ms * (1 + seed % 4 * 0.15))
    best = least_peak(trace, link, limits)
    try:
        plan = plan_fates(trace, link, max_step_ms=limits.step_ms)
    except Infeasible:
        assert best is None
        return
    assert fits(trace, plan.fates, plan.simulation, limits)
    assert plan.simulation.peak_bytes == best


@pytest.mark.parametrize("with_act", [False, True])
@pytest.mark.parametrize("target_gib", [43.0, 40.0, 36.0, 32.5])
def test_a_decoder_is_planned_to_within_two_percent_of_the_bound_in_seconds(
    target_gib: float, with_act: bool
) -> None:
    trace = llama(with_act=with_act)
    start = time.process_time()
    plan = plan_fates(trace, PCIE5, device_limit=int(target_gib * GIB))
    assert time.process_time() - start < 15
    assert plan.simulation.peak_bytes <= target_gib * GIB
    assert plan.gap is not None
    assert plan.gap <= 0.02


def test_a_decoder_reaches_its_least_peak_within_two_percent_of_the_bound() -> None:
    trace = llama()
    kernels_ms = sum(kernel.duration_ms for kernel in trace.kernels)
    plan = plan_fates(trace, PCIE5, max_step_ms=kernels_ms * 1.01)
    assert plan.simulation.step_ms <= kernels_ms * 1.01
    assert plan.gap is not None
    assert plan.gap <= 0.02


def test_planning_is_deterministic() -> None:
    trace = llama(8)
    limit = 22 * GIB
    assert plan_fates(trace, PCIE5, device_limit=limit) == plan_fates(trace, PCIE5, device_limit=limit)


def test_a_target_that_is_met_already_changes_nothing() -> None:
    trace = llama()
    for limits in ({}, {"device_limit": 60 * GIB}, {"device_limit": 60 * GIB, "budget": 0, "host_limit": 0}):
        plan = plan_fates(trace, PCIE5, **limits)
        assert set(plan.fates) == {"save"}
        assert plan.moves == ()


def test_without_limits_what_may_not_be_saved_is_decided_best() -> None:
    items = [
        item("hidden", 10, (0, 0), (7, 7), fates=["offload", "recompute"], recompute_ms=1.0),
        item("long", 90, (1, 1), (6, 6), fates=["offload", "recompute"], recompute_ms=1.0),
    ]
    plan = plan_fates(step(items), LINK)
    assert plan.fates == ("offload", "recompute")
    assert plan.simulation.step_ms == 9.0


def test_of_equal_plans_the_one_that_moves_less_is_taken() -> None:
    items = [item("big", 30, (0, 0), (15, 15)), item("small", 20, (0, 0), (15, 15))]
    trace = step(items, num_forward=8, num_backward=8, regions=[Region("r", 50, 7, 8)])
    assert plan_fates(trace, LINK, device_limit=80).fates == ("save", "offload")
    assert plan_fates(trace, LINK, device_limit=70).fates == ("offload", "save")


def test_budget_and_host_limit_bound_what_is_offloaded() -> None:
    items = [item("a", 20, (0, 0), (15, 15)), item("b", 20, (1, 1), (14, 14))]
    trace = step(items, num_forward=8, num_backward=8, regions=[Region("r", 50, 7, 8)])
    assert plan_fates(trace, LINK, device_limit=50).fates == ("offload", "offload")
    for limits in ({"budget": 20}, {"host_limit": 39}):
        plan = plan_fates(trace, LINK, device_limit=50, **limits)
        assert sorted(plan.fates) == ["offload", "recompute"]
    assert plan_fates(trace, LINK, device_limit=50, budget=0).fates == ("recompute", "recompute")


def test_a_limit_below_the_floor_is_refused_naming_the_floor_and_what_holds_it() -> None:
    items = [item("a", 20, (0, 0), (15, 15)), item("kept", 7, (1, 1), (14, 14), fates=["save"])]
    trace = step(
        items, num_forward=8, num_backward=8, regions=[Region("logits", 50, 7, 8)], resident_bytes=30
    )
    with pytest.raises(Infeasible) as refused:
        plan_fates(trace, LINK, device_limit=86)
    assert refused.value.floor_bytes == 87
    assert refused.value.kernel == 7
    assert [(holder.name, holder.num_bytes) for holder in refused.value.holders] == [
        ("logits", 50),
        ("resident", 30),
        ("kept", 7),
    ]
    assert refused.value.floor_ms is None
    assert plan_fates(trace, LINK, device_limit=87).simulation.peak_bytes == 87


def test_limits_that_cannot_hold_together_are_refused_with_both_floors() -> None:
    items = [item("a", 40, (0, 0), (7, 7), recompute_ms=3.0)]
    trace = step(items, regions=[Region("r", 50, 3, 3)])
    fastest = plan_fates(trace, LINK, device_limit=60)
    with pytest.raises(Infeasible) as refused:
        plan_fates(trace, LINK, device_limit=60, max_step_ms=8.0)
    assert refused.value.floor_ms == fastest.simulation.step_ms > 8.0
    assert refused.value.floor_bytes == 90
    both = plan_fates(trace, LINK, device_limit=60, max_step_ms=fastest.simulation.step_ms)
    assert both.fates == fastest.fates


def test_a_step_time_below_the_kernels_is_refused() -> None:
    trace = step([item("a", 40, (0, 0), (7, 7))])
    with pytest.raises(Infeasible) as refused:
        plan_fates(trace, LINK, max_step_ms=7.5)
    assert refused.value.floor_ms == 8.0


def test_what_has_to_be_offloaded_and_does_not_fit_the_host_is_refused() -> None:
    trace = step([item("a", 40, (0, 0), (7, 7), fates=["offload"])])
    with pytest.raises(Infeasible):
        plan_fates(trace, LINK, host_limit=39)


def test_a_large_step_below_its_floor_is_refused_with_the_floor() -> None:
    trace = llama(16)
    with pytest.raises(Infeasible) as refused:
        plan_fates(trace, PCIE5, device_limit=20 * GIB)
    floor = refused.value.floor_bytes
    assert refused.value.holders[0].name == "resident"
    assert plan_fates(trace, PCIE5, device_limit=floor).simulation.peak_bytes <= floor
    with pytest.raises(Infeasible):
        plan_fates(trace, PCIE5, device_limit=floor - 1)


def test_limits_of_the_host_hold_on_a_large_step() -> None:
    trace, device_limit, host_limit = llama(16), 24 * GIB, 5 * GIB // 2
    plan = plan_fates(trace, PCIE5, device_limit=device_limit, host_limit=host_limit, budget=3 * GIB)
    assert plan.simulation.peak_bytes <= device_limit
    assert max(plan.simulation.host_bytes) <= host_limit
    assert plan.gap is not None
    assert plan.gap <= 0.02


def test_contention_makes_recomputing_what_is_cheap_the_better_choice() -> None:
    link = replace(PCIE5, contention=0.06, duplex_share=0.92, latency_ms=0.01)
    plan = plan_fates(llama(), link, device_limit=40 * GIB)
    assert set(plan.fates) == {"save", "recompute"}
    assert "recompute" not in plan_fates(llama(), PCIE5, device_limit=40 * GIB).fates


TIGHT = int(22.6 * GIB)
"""A limit that 16 layers reach by filling the link."""


@cache
def reserved_plan() -> PlannedStep:
    return plan_fates(llama(16), PCIE5, device_limit=TIGHT, link_reserve=0.05)


def test_a_reserve_on_the_link_costs_little_and_saves_more_when_the_link_is_slower() -> None:
    trace = llama(16)
    slower = replace(PCIE5, d2h_bytes_per_ms=55e6 / 1.05, h2d_bytes_per_ms=55e6 / 1.05)
    full = plan_fates(trace, PCIE5, device_limit=TIGHT)
    reserved = reserved_plan()
    assert reserved.bound_ms == full.bound_ms
    on_slower = [simulate(trace, plan.fates, plan.moves, slower).step_ms for plan in (full, reserved)]
    lost_ms = reserved.simulation.step_ms - full.simulation.step_ms
    assert 0 <= lost_ms < on_slower[0] - on_slower[1]
    assert on_slower[1] <= reserved.simulation.step_ms * 1.001


def test_without_scipy_the_plan_has_no_bound_and_is_still_good(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, limit = llama(8), 22 * GIB
    with_bound = plan_fates(trace, PCIE5, device_limit=limit)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    plan = plan_fates(trace, PCIE5, device_limit=limit)
    assert (plan.bound_ms, plan.gap) == (None, None)
    assert plan.simulation.peak_bytes <= limit
    assert plan.simulation.step_ms <= with_bound.simulation.step_ms * 1.02


def test_ten_items_with_a_choice_are_still_planned_exactly() -> None:
    link = LinkRates(6.0, 6.0)
    items = [
        item(
            f"i{n}",
            10 + 3 * n,
            (n, n),
            (30 - n, 31 - n),
            recompute_ms=0.4 + 0.1 * n,
            fates=["save", "offload" if n % 2 else "recompute"],
        )
        for n in range(MAX_ITEMS)
    ]
    trace = step(items, num_forward=12, num_backward=20, regions=[Region("r", 60, 11, 12)])
    plan = plan_fates(trace, link, device_limit=150)
    assert key_of(trace, plan.fates, plan.simulation) == least_time(trace, link, Limits(device=150))


def test_a_time_beside_a_limit_is_kept_by_the_link_as_it_is_whatever_is_reserved() -> None:
    trace, reached_ms = llama(16), reserved_plan().simulation.step_ms
    both = plan_fates(trace, PCIE5, device_limit=TIGHT, max_step_ms=reached_ms, link_reserve=0.05)
    assert both.simulation == reserved_plan().simulation
    with pytest.raises(Infeasible) as raised:
        plan_fates(trace, PCIE5, device_limit=TIGHT, max_step_ms=reached_ms * 0.99, link_reserve=0.05)
    assert raised.value.floor_ms == pytest.approx(reached_ms, abs=1e-6)


@pytest.mark.parametrize("overhead", [0.01, 0.02])
def test_a_time_is_kept_by_the_link_as_it_is_whatever_is_reserved(overhead: float) -> None:
    trace = llama(8)
    unchanged_ms = sum(kernel.duration_ms for kernel in trace.kernels)
    by_time = plan_fates(trace, PCIE5, max_step_ms=unchanged_ms * (1 + overhead), link_reserve=0.05)
    assert by_time.simulation.step_ms <= unchanged_ms * (1 + overhead) + 1e-6
    lower = plan_fates(
        trace, PCIE5, device_limit=by_time.simulation.peak_bytes * 99 // 100, link_reserve=0.05
    )
    assert lower.simulation.step_ms > unchanged_ms * (1 + overhead)
