"""Whole fates from the fractions of the relaxation, and from nothing where there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress

from offload_runtime.compiler import Fate
from offload_runtime.planning.evaluation import Evaluator, permitted, rests, untouched
from offload_runtime.planning.lifetimes import Problem, effective_uses, host_curve, least_curve
from offload_runtime.planning.relaxation import Relaxed

__all__ = ["repair", "rounded"]


def rounded(problem: Problem, relaxed: Relaxed) -> tuple[Fate, ...]:
    """Round by error diffusion in the order in which the items become ready.

    What rounding takes from one item is passed on to the next, in copy time for offloads and in bytes for
    what leaves the device, so that the flow over time stays that of the relaxation.
    """
    items = problem.trace.items
    fates = list(untouched(problem))
    copy_ms, left_bytes = 0.0, 0.0
    for index in sorted(range(len(items)), key=lambda i: (items[i].ready, i)):
        choices = permitted(problem, index)
        offloaded, recomputed = relaxed.offloaded[index], relaxed.recomputed[index]
        copy_ms += offloaded * problem.d2h_ms[index]
        left_bytes += (offloaded + recomputed) * items[index].num_bytes
        if offloaded > 0.001 and copy_ms >= problem.d2h_ms[index] / 2 and "offload" in choices:
            fates[index] = "offload"
        elif recomputed > 0.001 and left_bytes >= items[index].num_bytes / 2 and "recompute" in choices:
            fates[index] = "recompute"
        if fates[index] == "offload":
            copy_ms -= problem.d2h_ms[index]
        if not rests(fates[index]):
            left_bytes -= items[index].num_bytes
    return tuple(fates)


def repair(
    evaluator: Evaluator, fates: Sequence[Fate], *, fixed: Collection[int] = ()
) -> tuple[Fate, ...] | None:
    """Change fates until everything fits: the least time per byte first; None if that leads nowhere.

    First fewer items are offloaded until host limit and budget hold, then more leave where the device limit is
    exceeded; the ``fixed`` items stay as they are.
    """
    current = _fit_host(evaluator, list(fates))
    tried = {(index, fate) for index in fixed for fate in permitted(evaluator.problem, index)}
    excess = evaluator.excess(current)
    while excess:
        change = _cheapest(evaluator, current, tried)
        if change is None:
            return None
        index, fate = change
        tried.add(change)
        before, current[index] = current[index], fate
        after = evaluator.excess(current)
        # The peak may be reached in several kernels: no worse is a step forward, and each change is tried once.
        if after > excess:
            current[index] = before
        else:
            excess = after
    return tuple(current)


def _fit_host(evaluator: Evaluator, fates: list[Fate]) -> list[Fate]:
    """Take back offloads, the least bytes per recomputation first, until host limit and budget hold."""
    problem, limits = evaluator.problem, evaluator.limits
    offloaded = [i for i, fate in enumerate(fates) if fate == "offload" and len(permitted(problem, i)) > 1]
    offloaded.sort(key=lambda i: (_recompute_ms(problem, i), problem.trace.items[i].moved_bytes, i))
    for index in offloaded:
        curve = host_curve(problem, fates, effective_uses(problem, fates))
        over_host = limits.host is not None and max(curve, default=0) > limits.host
        over_budget = limits.budget is not None and evaluator.moved_bytes(fates) > limits.budget
        if not over_host and not over_budget:
            break
        others = [fate for fate in permitted(problem, index) if fate != "offload"]
        fates[index] = others[-1]
    return fates


def _recompute_ms(problem: Problem, index: int) -> float:
    recompute = problem.trace.items[index].recompute
    return recompute.duration_ms if recompute is not None else float("inf")


def _cheapest(
    evaluator: Evaluator, fates: Sequence[Fate], tried: set[tuple[int, Fate]]
) -> tuple[int, Fate] | None:
    """Return the change that frees memory at the peak for the least time per byte.

    An offload is taken as free while the copies so far fit between the item and the end of forward.
    """
    problem, limits = evaluator.problem, evaluator.limits
    items = problem.trace.items
    curve = least_curve(problem, fates, effective_uses(problem, fates))
    peak_at = curve.index(max(curve))
    until_ms = problem.until_ms[min(peak_at, problem.trace.num_forward)]
    copied_ms = sum(compress(problem.d2h_ms, [fate == "offload" for fate in fates]))
    moved_bytes = evaluator.moved_bytes(fates)
    best: tuple[float, int, Fate] | None = None
    for index in problem.undecided:
        item = items[index]
        if not rests(fates[index]) or not item.last_forward_use < peak_at < item.first_backward_use:
            continue
        for fate in permitted(problem, index)[1:]:
            if (index, fate) in tried:
                continue
            if fate == "recompute":
                cost_ms = _recompute_ms(problem, index)
            elif limits.budget is not None and moved_bytes + item.moved_bytes > limits.budget:
                continue
            else:
                window_ms = until_ms - problem.until_ms[item.ready + 1]
                cost_ms = max(0.0, copied_ms + problem.d2h_ms[index] - window_ms)
            per_byte = cost_ms / max(item.num_bytes, 1)
            if best is None or per_byte < best[0]:
                best = (per_byte, index, fate)
    return None if best is None else best[1:]
