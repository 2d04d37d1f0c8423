"""Fates and places of one small model under every limit; nothing runs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from offload_runtime.errors import RefusedError
from offload_runtime.passes.pipeline import PlannedPair, plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.policy import Limits
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs
from offload_runtime.step import Simulation
from tests.models.planned_models import viewed
from tests.passes.planned import HARDWARE, baseline_of, captured, plan, planned_policy

MODES = ["graph", "inductor"]
MIXED = planned_policy(
    "auto",
    rules=[{"name": "products", "match": {"op": "matmul", "bytes": {"min": "64KiB"}}, "action": "offload"}],
)
OFFLOAD = planned_policy("offload")


def simulation_of(pair: PlannedPair) -> Simulation:
    assert pair.selected.simulation is not None
    return pair.selected.simulation


def peak_of(pair: PlannedPair) -> int:
    return simulation_of(pair).peak_bytes


def resident_bytes(pair: PlannedPair) -> int:
    assert pair.selected.traced is not None
    return pair.selected.traced.trace.resident_bytes


def limit_at(share: float, mode: str) -> int:
    """Return the limit that leaves ``share`` of what the model without a policy allocates."""
    baseline = baseline_of(mode)
    resident = resident_bytes(baseline)
    return int(resident + share * (peak_of(baseline) - resident))


def fates(pair: PlannedPair) -> Counter[str]:
    return Counter(verdict.fate for verdict in pair.plan.verdicts)


def code_of(error: RefusedError) -> tuple[str, str | None]:
    (diagnostic,) = error.diagnostics
    assert diagnostic.hint
    return diagnostic.code, diagnostic.path


@pytest.mark.parametrize("mode", MODES)
def test_case_33_a_limit_that_is_met_already_leaves_the_step_as_it_is(mode: str) -> None:
    baseline = baseline_of(mode)
    for limits in ({}, {"device_peak": peak_of(baseline)}):
        pair = plan(MIXED, mode, **limits)
        assert pair.plan.transfers == ()
        assert peak_of(pair) == peak_of(baseline)
        assert simulation_of(pair).step_ms <= simulation_of(baseline).step_ms
        assert pair.selected.planned is not None
        assert set(pair.selected.planned.fates) == {"save"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.55])
def test_case_20_the_peak_keeps_to_its_limit_and_costs_no_less_the_lower_it_is(
    mode: str, share: float
) -> None:
    limit = limit_at(share, mode)
    pair = plan(MIXED, mode, device_peak=limit)
    assert peak_of(pair) <= limit < peak_of(baseline_of(mode))
    assert simulation_of(pair).step_ms >= simulation_of(plan(MIXED, mode)).step_ms
    assert fates(pair)["offload"] > 0
    offloaded = [verdict.moved_bytes for verdict in pair.plan.verdicts if verdict.fate == "offload"]
    assert sum(offloaded) == pair.plan.planned_bytes > 0


@pytest.mark.parametrize("mode", MODES)
def test_low_limits_are_met_by_recomputing_and_offloading_together(mode: str) -> None:
    slow = HARDWARE.__class__(
        "slow link",
        "",
        tuple(
            figure
            if not figure.key.startswith("link.") or figure.unit != "GB/s"
            else type(figure)(figure.key, figure.value / 10, figure.unit, "a tenth")
            for figure in HARDWARE.figures
        ),
    )
    pair = plan(MIXED, mode, device_peak=limit_at(0.55, mode), hardware=slow)
    reasons = Counter(verdict.reason for verdict in pair.plan.verdicts)
    assert reasons["planned: recomputed"] > 0
    assert fates(pair)["offload"] > 0
    assert peak_of(pair) <= limit_at(0.55, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_below_the_floor_is_refused_by_its_name(mode: str) -> None:
    with pytest.raises(RefusedError, match="the floor is") as raised:
        plan(MIXED, mode, device_peak=resident_bytes(baseline_of(mode)) + 1000)
    assert code_of(raised.value) == ("PLN412", "limits.device_peak")


def test_what_is_resident_besides_the_graph_counts() -> None:
    limit = limit_at(0.7, "graph")
    without = plan(MIXED, device_peak=limit)
    beside = plan(MIXED, device_peak=limit, resident_bytes=400_000)
    assert resident_bytes(beside) == resident_bytes(without) + 400_000
    assert peak_of(beside) <= limit
    assert fates(beside)["save"] < fates(without)["save"]


@pytest.mark.parametrize("mode", MODES)
def test_case_20_a_step_may_take_so_much_longer_and_no_more(mode: str) -> None:
    free = plan(MIXED, mode)
    peaks = []
    for overhead in (0.0, 0.05, 0.5):
        pair = plan(MIXED, mode, step_overhead=overhead)
        assert simulation_of(pair).step_ms <= simulation_of(free).step_ms * (1 + overhead) + 1e-6
        peaks.append(peak_of(pair))
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0] <= peak_of(free)


def test_case_20_peak_and_time_together_are_met_or_refused_with_both_floors() -> None:
    limit = limit_at(0.55, "graph")
    alone = plan(MIXED, device_peak=limit)
    both = plan(MIXED, device_peak=limit, step_overhead=1.0)
    assert simulation_of(both).step_ms == simulation_of(alone).step_ms
    with pytest.raises(RefusedError) as raised:
        plan(planned_policy("recompute"), device_peak=limit, step_overhead=0.0)
    assert code_of(raised.value) == ("PLN412", "limits.device_peak")
    message = raised.value.diagnostics[0].message
    assert "step_overhead 0.0%" in message
    assert "the floor is" in message
    assert "take at least" in message


def test_case_20_a_budget_bounds_what_moves() -> None:
    free = plan(MIXED, step_overhead=0.5)
    half = plan(MIXED, step_overhead=0.5, budget=free.plan.planned_bytes // 2)
    nothing = plan(MIXED, step_overhead=0.5, budget=0)
    assert 0 < half.plan.planned_bytes <= free.plan.planned_bytes // 2
    assert nothing.plan.planned_bytes == 0
    assert peak_of(free) < peak_of(half) < peak_of(nothing)
    with pytest.raises(RefusedError, match="the floor is") as raised:
        plan(OFFLOAD, device_peak=limit_at(0.55, "graph"), budget=0)
    assert code_of(raised.value) == ("PLN412", "limits.device_peak")
    assert "budget 0 B" in raised.value.diagnostics[0].message


def test_case_20_a_host_limit_bounds_what_lies_there() -> None:
    free = max(simulation_of(plan(MIXED, step_overhead=0.5)).host_bytes)
    half = plan(MIXED, step_overhead=0.5, host=free // 2)
    nothing = plan(MIXED, step_overhead=0.5, host=0)
    assert 0 < max(simulation_of(half).host_bytes) <= free // 2
    assert max(simulation_of(nothing).host_bytes) == 0


def test_what_must_be_offloaded_beyond_the_budget_is_refused() -> None:
    rule = {"name": "all", "match": {"op": "matmul"}, "action": "offload", "must": True}
    with pytest.raises(RefusedError) as raised:
        plan(planned_policy("auto", rules=[rule]), budget=1000)
    assert code_of(raised.value) == ("PLN412", "limits.budget")
    assert "1000 B" in raised.value.diagnostics[0].message


@pytest.mark.parametrize("mode", MODES)
def test_a_must_rule_is_carried_out_though_nothing_asks_for_it(mode: str) -> None:
    for action in ("offload", "recompute"):
        rule = {"name": "fixed", "match": {"op": "matmul", "layers": [1]}, "action": action, "must": True}
        pair = plan(planned_policy("auto", rules=[rule]), mode)
        decided = [verdict for verdict in pair.plan.verdicts if verdict.rule == "fixed"]
        assert {verdict.fate for verdict in decided} == {action}


def dropout(mode: str) -> CapturedGraph:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.3), nn.Linear(64, 64))
    (graph,) = capture_joint_graphs(model, [torch.randn(16, 64)], mode=mode, accelerator=False)
    return graph


def test_a_must_rule_that_cannot_hold_is_refused_with_the_reason() -> None:
    rule = {"name": "noise", "match": {"op": "random"}, "action": "recompute", "must": True}
    with pytest.raises(RefusedError, match="random seed") as raised:
        plan(planned_policy("auto", rules=[rule]), "inductor", graph=dropout("inductor"))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "PLN401"
    assert "rule 'noise' must recompute" in diagnostic.message


def test_what_is_drawn_at_random_is_recomputed_only_by_a_must_rule() -> None:
    graph = dropout("graph")
    for must, fate in ((False, "save"), (True, "recompute")):
        rule = {"name": "noise", "match": {"op": "random"}, "action": "recompute", "must": must}
        pair = plan(planned_policy("auto", rules=[rule]), graph=graph)
        assert {v.fate for v in pair.plan.verdicts if v.rule == "noise"} == {fate}


@pytest.mark.parametrize("mode", MODES)
def test_planning_twice_gives_the_same_plan(mode: str) -> None:
    first, second = (plan(MIXED, mode, device_peak=limit_at(0.6, mode)) for _ in range(2))
    assert first.plan == second.plan
    assert first.plan.hash == second.plan.hash


@pytest.mark.parametrize("mode", MODES)
def test_transfers_are_in_order_and_within_their_graphs(mode: str) -> None:
    pair = plan(OFFLOAD, mode, device_peak=limit_at(0.5, mode))
    partition = pair.selected.partition
    num_forward, num_backward = (len(side.graph.nodes) for side in (partition.forward, partition.backward))
    assert pair.plan.transfers
    for transfer in pair.plan.transfers:
        assert 0 <= transfer.copy_after <= transfer.release_after < num_forward
        assert 0 <= transfer.reload_before <= transfer.use_before < num_backward


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("auto", ["defer", "prefetch"])
def test_auto_places_by_time_under_largest_first(mode: str, auto: str) -> None:
    def transfers(**schedule: object) -> list[tuple[int, int]]:
        policy = planned_policy("offload", select="largest_first", **schedule)
        pair = plan(policy, mode)
        return [(transfer.release_after, transfer.reload_before) for transfer in pair.plan.transfers]

    by_layers = transfers(defer=0, prefetch=0)
    by_time = transfers(**{"defer": 0, "prefetch": 0, auto: "auto"})
    moved, kept = (0, 1) if auto == "defer" else (1, 0)
    assert [pair[kept] for pair in by_time] == [pair[kept] for pair in by_layers]
    assert [pair[moved] for pair in by_time] != [pair[moved] for pair in by_layers]


def test_largest_first_is_simulated_where_the_hardware_is_known_and_planned_the_same_where_not() -> None:
    policy = planned_policy("offload", select="largest_first", defer=1, prefetch=1)
    known, unknown = plan(policy), plan(policy, hardware=None)
    assert known.plan == unknown.plan
    assert unknown.selected.simulation is None
    assert unknown.forecast is None
    assert peak_of(known) < peak_of(baseline_of("graph"))


def test_defer_0_and_prefetch_0_stall_more_and_hold_less_than_auto() -> None:
    def simulated(**schedule: object) -> Simulation:
        return simulation_of(plan(planned_policy("offload", select="largest_first", **schedule)))

    tight, timed = simulated(defer=0, prefetch=0), simulated(defer="auto", prefetch="auto")
    assert tight.stall_ms > timed.stall_ms
    assert tight.peak_bytes <= timed.peak_bytes


def test_the_graph_that_is_planned_stays_as_it_was() -> None:
    graph = captured("graph")
    before = str(graph.module.graph)
    plan(MIXED, device_peak=limit_at(0.6, "graph"))
    assert str(graph.module.graph) == before


def test_planned_without_view_replay_keeps_what_backward_reads_through_a_view() -> None:
    module, args = viewed()
    (graph,) = capture_joint_graphs(module, args, mode="graph", accelerator=False)
    rule = {
        "name": "second",
        "match": {"module": "second", "op": "matmul"},
        "action": "offload",
        "must": True,
    }
    policy = planned_policy("save", rules=[rule])

    def planned(*, view_replay: bool) -> PlannedPair:
        setting = Setting(Limits(), HARDWARE, view_replay=view_replay)
        return plan_joint(
            graph.copy(), graph.inputs, policy=policy, mode="graph", variant="policy", setting=setting
        )

    assert planned(view_replay=True).selected.fates.count("offload") == 1
    with pytest.raises(RefusedError, match="view replay is off"):
        planned(view_replay=False)
