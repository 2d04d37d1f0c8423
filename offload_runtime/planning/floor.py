"""How low the peak can get when time does not matter, and what holds it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offload_runtime.compiler import Fate
from offload_runtime.planning.bound import relaxed_or_none
from offload_runtime.planning.evaluation import Evaluator, permitted, untouched
from offload_runtime.planning.exact import MAX_ITEMS, exact_floor
from offload_runtime.planning.lifetimes import Problem, effective_uses, least_curve
from offload_runtime.planning.limits import Holder, Infeasible, Limits
from offload_runtime.planning.rounding import repair, rounded

__all__ = ["floor_fates", "holders_at", "infeasible"]

_NUM_LIMITS = 14
_PEAK_SHIFT = 10


def floor_fates(problem: Problem, limits: Limits) -> tuple[Fate, ...] | None:
    """Return the fates with the lowest peak that was found within host limit and budget; None where these cannot hold.

    Exact for small problems, and where everything that can leave the device may be offloaded.
    """
    evaluator = Evaluator(problem, replace(limits, device=None, step_ms=None))
    if len(problem.undecided) <= MAX_ITEMS:
        return exact_floor(evaluator)
    all_leave, stays = _all_leave(problem), untouched(problem)
    relaxed = relaxed_or_none(problem, evaluator.limits, least_peak=True)
    starts = [stays, all_leave] if relaxed is None else [rounded(problem, relaxed), stays, all_leave]
    fitting = [fates for fates in (all_leave, stays) if not evaluator.excess(fates)]
    lowest = min(fitting, key=lambda fates: _peak(problem, fates), default=None)
    # From the bound upward, bisect for the lowest limit to which one of the starts can be repaired.
    low = (max(problem.region_bytes, default=0) if relaxed is None else int(relaxed.peak_bytes)) - 1
    high = _peak(problem, stays if lowest is None else lowest) + 1
    for _ in range(_NUM_LIMITS):
        if high - low <= max(1, high >> _PEAK_SHIFT):
            break
        limit = (low + high) // 2
        within = Evaluator(problem, replace(evaluator.limits, device=limit))
        fixed = next((fates for start in starts if (fates := repair(within, start)) is not None), None)
        if fixed is None:
            low = limit
        else:
            lowest, high = fixed, _peak(problem, fixed)
    return lowest


def infeasible(problem: Problem, limits: Limits, floor_ms: float | None) -> Infeasible:
    """Describe the floor that host limit and budget leave, as the exception to raise."""
    fates = floor_fates(problem, limits)
    if fates is None:  # what has to be offloaded does not fit the host: the floor is that of the device alone
        fates = floor_fates(problem, Limits()) or untouched(problem)
    curve = least_curve(problem, fates, effective_uses(problem, fates))
    floor_bytes = max(curve, default=0)
    kernel = curve.index(floor_bytes) if curve else 0
    return Infeasible(floor_bytes, kernel, holders_at(problem, fates, kernel), floor_ms)


def holders_at(problem: Problem, fates: Sequence[Fate], kernel: int) -> tuple[Holder, ...]:
    """Return all that is alive at a kernel when copies take no time, in descending order."""
    uses = effective_uses(problem, fates)
    held = [Holder("resident", problem.trace.resident_bytes)]
    held += [Holder(r.name, r.num_bytes) for r in problem.trace.regions if r.first <= kernel <= r.last]
    for index, item in enumerate(problem.trace.items):
        until = uses.last[index]
        stays = fates[index] in ("save", "skip")
        forward = item.created <= kernel <= (until if stays else item.last_forward_use)
        if forward or uses.first[index] <= kernel <= until:
            held.append(Holder(item.name, item.num_bytes))
    held = [holder for holder in held if holder.num_bytes]
    return tuple(sorted(held, key=lambda holder: (-holder.num_bytes, holder.name)))


def _all_leave(problem: Problem) -> tuple[Fate, ...]:
    """Offload what may be offloaded; recompute what may only be recomputed, where that does not raise the peak."""
    fates = list(untouched(problem))
    only_recomputed: list[int] = []
    for index in range(len(fates)):
        choices = permitted(problem, index)
        if "offload" in choices:
            fates[index] = "offload"
        elif len(choices) > 1:
            fates[index] = "recompute"
            only_recomputed.append(index)
    peak = _peak(problem, fates)
    for index in only_recomputed:
        fates[index] = permitted(problem, index)[0]
        without = _peak(problem, fates)
        if without < peak:
            peak = without
        else:
            fates[index] = "recompute"
    return tuple(fates)


def _peak(problem: Problem, fates: Sequence[Fate]) -> int:
    return max(least_curve(problem, fates, effective_uses(problem, fates)), default=0)
