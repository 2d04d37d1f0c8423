"""Sweep the targets of device memory of one captured model: ``offload plan --frontier``.

The model is traced once, and each target plans a copy of its graphs. Beside the planner stands the published rule,
largest first, under budgets that rise to all that it would offload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import RefusedError
from offload_runtime.models.frontier_result import FrontierFloor, FrontierPlan, FrontierResult
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.plan_limits import refuse_several_graphs
from offload_runtime.models.plan_result import Holding, PlanResult, largest_holdings
from offload_runtime.models.planning import Progress, plan_policy
from offload_runtime.models.step_places import STAYS, name_holders
from offload_runtime.planning.limits import Infeasible
from offload_runtime.policy import Limits

__all__ = ["NUM_STEPS", "sweep_frontier"]

NUM_STEPS = 8
"""Targets between the baseline's peak and the floor, and budgets up to everything, where none are given."""

_PLANNED = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "planned",
    "schedule": {"select": "planned"},
    "activations": {"default": "auto"},
}
_LARGEST_FIRST = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "largest-first",
    "schedule": {"select": "largest_first", "defer": 8, "prefetch": 2},
    "activations": {
        "default": "auto",
        "rules": [
            {
                "name": "heavy",
                "match": {"op": ["matmul", "attention"], "bytes": {"min": "4KiB"}},
                "action": "offload",
                "optional": True,
            }
        ],
    },
}


def sweep_frontier(
    baseline: Baseline,
    policy: CompiledPolicy,
    targets: Sequence[int] = (),
    *,
    progress: Progress | None = None,
    keep: Callable[[FrontierResult], None] | None = None,
) -> FrontierResult:
    """Plan under each of ``targets`` (bytes; by default eight even steps down to the floor), and under budgets.

    A policy with ``select: planned`` is swept itself, its ``device_peak`` replaced; another one is swept by its
    budget, beside a policy that leaves everything to the planner. ``keep`` gets what there is after each plan.
    Raises RefusedError for a model of several graphs.
    """
    is_planned = policy.policy.schedule.select == "planned"
    ours = policy if is_planned else load_policy(_PLANNED)
    peer = load_policy(_LARGEST_FIRST) if is_planned else policy
    refuse_several_graphs(ours, Limits(device_peak=0), len(baseline.traced.graphs))
    floor = find_floor(baseline, ours)
    wanted = tuple(targets) or _even_targets(baseline, floor)
    notify = progress or (lambda phase, done, total: None)
    tell = keep or (lambda swept: None)
    swept = FrontierResult(
        model=baseline.traced.model.name,
        mode=baseline.traced.mode,
        hardware=baseline.hardware.name,
        capacity_bytes=baseline.hardware.device_memory_bytes,
        baseline=baseline.forecast,
        planned_policy=ours.name,
        planned=(),
        largest_first_policy=peer.name,
        largest_first=(),
        floor=floor,
        current=_current(baseline, policy),
        complete=False,
    )
    for planned in _sweep(
        baseline, wanted, lambda target: _with_target(ours, target), lambda d, n: notify("planned", d, n)
    ):
        swept = replace(swept, planned=planned, floor=_seen_floor(baseline, floor, planned))
        tell(swept)
    for largest_first in _sweep(
        baseline,
        _even_budgets(baseline, peer),
        lambda budget: _with_budget(peer, budget),
        lambda done, total: notify("largest_first", done, total),
    ):
        swept = replace(swept, largest_first=largest_first)
        tell(swept)
    return replace(swept, complete=True)


def find_floor(baseline: Baseline, policy: CompiledPolicy) -> FrontierFloor | None:
    """Return the least peak that the planner finds under ``policy``; None where nothing could be lower."""
    try:
        plan_policy(replace(baseline, optimizer="none"), _with_target(policy, 1))
    except RefusedError as error:
        cause = error.__cause__
        if not isinstance(cause, Infeasible):
            raise
        step_bytes = baseline.optimizer_step_bytes
        if step_bytes > cause.floor_bytes:
            return FrontierFloor(step_bytes, ())
        holdings = name_holders(baseline.planned.pairs[0], cause.holders, total_bytes=cause.floor_bytes)
        return FrontierFloor(cause.floor_bytes, holdings)
    return None


def _seen_floor(
    baseline: Baseline, floor: FrontierFloor | None, planned: Sequence[FrontierPlan]
) -> FrontierFloor | None:
    """Return the floor with all that is alive there, where a plan reaches it: the planner names the largest alone."""
    for plan in planned:
        if (
            floor is not None
            and plan.forecast is not None
            and plan.forecast.peak_device_bytes <= floor.num_bytes
        ):
            stays = Holding(STAYS, 1, baseline.resident.throughout)
            return FrontierFloor(floor.num_bytes, (stays, *largest_holdings(plan.forecast.holdings)))
    return floor


def _sweep(
    baseline: Baseline,
    asked: Sequence[int],
    policy_for: Callable[[int], CompiledPolicy],
    advance: Callable[[int, int], None],
) -> Iterator[tuple[FrontierPlan, ...]]:
    """Yield the plans that there are after each one."""
    plans: tuple[FrontierPlan, ...] = ()
    for number, num_bytes in enumerate(asked):
        advance(number, len(asked))
        plans = (*plans, _one(baseline, num_bytes, policy_for(num_bytes)))
        yield plans
    advance(len(asked), len(asked))


def _one(baseline: Baseline, asked_bytes: int, policy: CompiledPolicy) -> FrontierPlan:
    try:
        result = plan_policy(baseline, policy)
    except RefusedError as error:
        return FrontierPlan(asked_bytes, None, reason=error.diagnostics[0].message)
    missed = [found.message for found in result.diagnostics if found.is_error]
    return FrontierPlan(
        asked_bytes,
        result.policy,
        offloaded_bytes=result.offloaded_bytes,
        num_recomputed=result.num_recomputed,
        stall_ms=result.stall_ms,
        optimality_gap=result.optimality_gap,
        reason=missed[0] if missed else "",
    )


def _current(baseline: Baseline, policy: CompiledPolicy) -> PlanResult | None:
    """Plan the policy as it stands; a limit that cannot hold is no reason to show no frontier."""
    try:
        return plan_policy(baseline, policy)
    except RefusedError:
        return None


def _even_targets(baseline: Baseline, floor: FrontierFloor | None) -> tuple[int, ...]:
    high = baseline.forecast.peak_device_bytes
    if floor is None or floor.num_bytes >= high:
        return ()
    return tuple(high - (high - floor.num_bytes) * step // NUM_STEPS for step in range(1, NUM_STEPS + 1))


def _even_budgets(baseline: Baseline, policy: CompiledPolicy) -> tuple[int, ...]:
    most = _one(baseline, 0, _with_budget(policy, None)).offloaded_bytes
    return tuple(most * step // NUM_STEPS for step in range(1, NUM_STEPS + 1)) if most else ()


def _with_target(policy: CompiledPolicy, target: int) -> CompiledPolicy:
    limits = replace(policy.policy.limits, device_peak=target, step_overhead=None)
    return replace(policy, policy=replace(policy.policy, limits=limits))


def _with_budget(policy: CompiledPolicy, budget: int | None) -> CompiledPolicy:
    limits = replace(policy.policy.limits, budget=budget)
    return replace(policy, policy=replace(policy.policy, limits=limits))
