"""Decide save, recompute and offload together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offload_runtime.compiler import Fate
from offload_runtime.planning.bound import relaxed_or_none
from offload_runtime.planning.evaluation import Evaluator, Plan, untouched
from offload_runtime.planning.exact import MAX_ITEMS, exact_least_time
from offload_runtime.planning.floor import floor_fates, holders_at, infeasible
from offload_runtime.planning.improvement import improve
from offload_runtime.planning.lanes import simulate_problem
from offload_runtime.planning.lifetimes import Problem, effective_uses
from offload_runtime.planning.limits import Infeasible, Limits
from offload_runtime.planning.rounding import repair, rounded
from offload_runtime.step import LinkRates, Move, Simulation, StepTrace

__all__ = ["PlannedStep", "plan_fates"]

_NUM_EVALUATIONS = 4000
_NUM_EVALUATIONS_PER_LIMIT = 1000
_GOOD_GAP = 1e-3  # an order below what predictions are good for
_PEAK_SHIFT = 12
_TIME_TOLERANCE_MS = 1e-6


@dataclass(frozen=True)
class PlannedStep:
    """The decision, one fate per item and one move per offloaded item, as simulated.

    ``bound_ms`` is a step time that no plan can beat under the same limits, and ``bound_bytes`` a peak, each where it
    was minimised; None otherwise, or without scipy. A step that needs no change is its own bound. ``gap`` is how far
    the plan is above its bound, as a share of it.
    """

    fates: tuple[Fate, ...]
    moves: tuple[Move, ...]
    simulation: Simulation
    bound_ms: float | None = None
    bound_bytes: float | None = None
    gap: float | None = None


def plan_fates(
    trace: StepTrace,
    link: LinkRates,
    *,
    device_limit: int | None = None,
    max_step_ms: float | None = None,
    host_limit: int | None = None,
    budget: int | None = None,
    link_reserve: float = 0.0,
) -> PlannedStep:
    """Choose the fate of every item, and place its copies.

    With ``device_limit`` (bytes) the step time is minimised under it; with ``max_step_ms`` alone the peak is minimised
    within it; with both, the step time; with neither, the step time, which leaves everything where it is. Ties go to
    fewer moved bytes, then to fewer recomputed items. ``host_limit`` bounds the bytes on the host at any kernel,
    ``budget`` the sum of ``moved_bytes``. ``link_reserve`` decides as if copies took that share longer, so that a link
    that is slower than predicted does not stall a plan that fills it; the result is simulated, and its gap taken, with
    the link as it is. Up to ten items with a choice the result is exact (for the placement in
    :mod:`offload_runtime.planning.placement`), above it is within ``gap``. Deterministic. Raises
    :class:`offload_runtime.planning.limits.Infeasible`.
    """
    limits = Limits(device_limit, max_step_ms, host_limit, budget)
    problem = Problem.of(trace, link)
    if link_reserve:
        planned = _plan(Problem.of(trace, _slower(link, 1 + link_reserve)), limits, as_is=problem)
        return _as_it_is(problem, limits, planned)
    return _plan(problem, limits, as_is=problem)


def _plan(problem: Problem, limits: Limits, *, as_is: Problem) -> PlannedStep:
    """Plan ``problem``, whose link may be slower than that of ``as_is``; a limit on time is kept by the latter."""
    device_limit, max_step_ms = limits.device, limits.step_ms
    if device_limit is None and max_step_ms is not None:
        return _least_peak(problem, limits, as_is=as_is)
    found = _least_time(problem, limits, _NUM_EVALUATIONS)
    if found is None:
        raise infeasible(problem, limits, None)
    plan, bound_ms = found
    if max_step_ms is not None and not _in_time(plan, limits, as_is):
        raise _out_of_time(problem, limits, plan, as_is=as_is)
    gap = _gap(plan.simulation.step_ms, bound_ms)
    return PlannedStep(plan.fates, plan.moves, plan.simulation, bound_ms=bound_ms, gap=gap)


def _step_ms(plan: Plan, as_is: Problem) -> float:
    uses = effective_uses(as_is, plan.fates)
    return simulate_problem(as_is, plan.fates, plan.moves, uses).step_ms


def _in_time(plan: Plan, limits: Limits, as_is: Problem) -> bool:
    assert limits.step_ms is not None
    longest_ms = limits.step_ms + _TIME_TOLERANCE_MS
    # A slower link makes no step shorter.
    return plan.simulation.step_ms <= longest_ms or _step_ms(plan, as_is) <= longest_ms


def _slower(link: LinkRates, factor: float) -> LinkRates:
    return replace(
        link,
        d2h_bytes_per_ms=link.d2h_bytes_per_ms / factor,
        h2d_bytes_per_ms=link.h2d_bytes_per_ms / factor,
        latency_ms=link.latency_ms * factor,
    )


def _as_it_is(problem: Problem, limits: Limits, planned: PlannedStep) -> PlannedStep:
    """Simulate a plan that was made for a slower link, and compare it with the bound of this one."""
    uses = effective_uses(problem, planned.fates)
    simulation = simulate_problem(problem, planned.fates, planned.moves, uses)
    least_peak = planned.bound_bytes is not None
    relaxed = relaxed_or_none(problem, limits, least_peak=least_peak)
    if relaxed is None:
        return replace(planned, simulation=simulation, bound_ms=None, bound_bytes=None, gap=None)
    if least_peak:
        gap = _gap(simulation.peak_bytes, relaxed.peak_bytes)
        return replace(planned, simulation=simulation, bound_bytes=relaxed.peak_bytes, gap=gap)
    gap = _gap(simulation.step_ms, relaxed.step_ms)
    return replace(planned, simulation=simulation, bound_ms=relaxed.step_ms, gap=gap)


def _gap(reached: float, bound: float | None) -> float | None:
    return max(0.0, (reached - bound) / bound) if bound else None


def _least_time(
    problem: Problem,
    limits: Limits,
    num_evaluations: int,
    *,
    start: Sequence[Fate] | None = None,
    within_ms: float = 0.0,
) -> tuple[Plan, float | None] | None:
    """Return the fastest plan found under the device limit, with its bound in ms; None where nothing fits.

    ``start`` are fates to begin with, if they are better than those of the relaxation. A plan of ``within_ms`` is
    fast enough: it is not worked on much longer.
    """
    limits = replace(limits, step_ms=None)
    evaluator = Evaluator(problem, limits)
    plan = evaluator.plan(untouched(problem))
    if plan.score[0] == 0 and not plan.moves and not plan.score[3]:
        return plan, plan.simulation.step_ms
    relaxed = relaxed_or_none(problem, limits)
    bound_ms = None if relaxed is None else relaxed.step_ms
    if len(problem.undecided) <= MAX_ITEMS:
        fates = exact_least_time(evaluator)
        return None if fates is None else (evaluator.plan(fates), bound_ms)
    starts = [untouched(problem)]
    if relaxed is not None:
        starts.insert(0, rounded(problem, relaxed))
    if start is not None:
        starts.append(tuple(start))
    fitting = [fixed for fates in starts if (fixed := repair(evaluator, fates)) is not None]
    if not fitting:
        lowest = floor_fates(problem, limits)
        if lowest is None or evaluator.excess(lowest):
            return None
        fitting = [lowest]
    good_ms = max(within_ms, (bound_ms or 0.0) * (1 + _GOOD_GAP))
    start_at = min(fitting, key=evaluator.score)
    best = improve(evaluator, start_at, num_evaluations=num_evaluations, good_ms=good_ms)
    return evaluator.plan(best), bound_ms


def _least_peak(problem: Problem, limits: Limits, *, as_is: Problem) -> PlannedStep:
    """Return the plan with the lowest device limit whose fastest plan keeps to the step time.

    The limit is found by bisection between the bound (or the floor) and the peak of the best plan so far.
    """
    assert limits.step_ms is not None
    exact = len(problem.undecided) <= MAX_ITEMS
    fastest = _least_time(problem, limits, _NUM_EVALUATIONS)
    if fastest is None:
        raise infeasible(problem, limits, None)
    best = fastest[0]
    if not _in_time(best, limits, as_is):
        raise _out_of_time(problem, limits, best, as_is=as_is)
    relaxed = relaxed_or_none(problem, limits, least_peak=True)
    low = (0 if relaxed is None else int(relaxed.peak_bytes)) - 1
    resolution = 1 if exact else max(1, best.simulation.peak_bytes >> _PEAK_SHIFT)
    high = best.simulation.peak_bytes
    reach = resolution
    # The bound is close to what can be had: feel the way up from it in growing steps, then bisect.
    while high - low > resolution:
        limit = (low + high) // 2 if reach == 0 else min(low + reach, (low + high) // 2)
        found = _least_time(
            problem,
            replace(limits, device=limit),
            _NUM_EVALUATIONS_PER_LIMIT,
            start=best.fates,
            within_ms=limits.step_ms,
        )
        if found is not None and _in_time(found[0], limits, as_is):
            best, high, reach = found[0], min(limit, found[0].simulation.peak_bytes), 0
        else:
            low, reach = limit, reach * 4
    bound_bytes = None if relaxed is None else relaxed.peak_bytes
    gap = _gap(best.simulation.peak_bytes, bound_bytes)
    return PlannedStep(best.fates, best.moves, best.simulation, bound_bytes=bound_bytes, gap=gap)


def _out_of_time(problem: Problem, limits: Limits, fastest: Plan, *, as_is: Problem) -> Infeasible:
    """Return both floors: the least step time under the device limit, the least peak within the step time."""
    floor_ms = _step_ms(fastest, as_is)
    fates = fastest.fates
    simulation = fastest.simulation
    if limits.device is not None:
        try:
            lowest = _least_peak(problem, replace(limits, device=None), as_is=as_is)
        except Infeasible as stricter:  # the step time cannot hold, whatever the memory
            return stricter
        fates, simulation = lowest.fates, lowest.simulation
    kernel = simulation.peak_at
    return Infeasible(simulation.peak_bytes, kernel, holders_at(problem, fates, kernel), floor_ms)
