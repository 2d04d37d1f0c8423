"""The best fates of a small problem: branch and bound over all combinations.

A node decides the first items of a fixed order, largest first. Its bound takes what is decided at face value and
lets what is not leave the device at no cost; see :class:`_Bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offload_runtime.compiler import Fate
from offload_runtime.planning.evaluation import Evaluator, Score, permitted, untouched
from offload_runtime.planning.lifetimes import (
    Problem,
    Uses,
    effective_uses,
    host_curve,
    least_curve,
)
from offload_runtime.planning.relaxation import earliest_first_uses

__all__ = ["MAX_ITEMS", "exact_floor", "exact_least_time"]

MAX_ITEMS = 10
"""The number of items with a choice up to which a problem is solved exactly."""

_MISFIT: Score = (1, 0.0, 0, 0)
"""No combination that fits scores as badly as this."""


def exact_least_time(evaluator: Evaluator) -> tuple[Fate, ...] | None:
    """Return the fates with the least score; None where no combination fits."""
    bound = _Bound(evaluator)
    return _branch(evaluator.problem, bound.least_score, evaluator.score)


def exact_floor(evaluator: Evaluator) -> tuple[Fate, ...] | None:
    """Return the fates with the least peak within the host limit and the budget; None where nothing fits these.

    The evaluator's device limit is not looked at: its copies may take any time.
    """
    problem = evaluator.problem
    bound = _Bound(evaluator)

    def score(fates: Sequence[Fate]) -> Score:
        uses = effective_uses(problem, fates)
        peak = max(least_curve(problem, fates, uses), default=0)
        return (bound.host_excess(fates, uses), float(peak), evaluator.moved_bytes(fates), 0)

    def least(fates: Sequence[Fate], open_items: set[int]) -> Score:
        fewest = bound.leaving(fates, open_items)
        peak = max(least_curve(problem, fewest, bound.least_uses(fewest)), default=0)
        decided = bound.resting(fates, open_items)
        return (bound.least_host_excess(decided), float(peak), evaluator.moved_bytes(decided), 0)

    return _branch(problem, least, score)


def _branch(
    problem: Problem,
    least: Callable[[Sequence[Fate], set[int]], Score],
    score: Callable[[Sequence[Fate]], Score],
) -> tuple[Fate, ...] | None:
    """Search depth first. ``least`` bounds the score of every completion of a node from below.

    Returns None where nothing fits.
    """
    items = problem.trace.items
    order = sorted(problem.undecided, key=lambda i: (-items[i].num_bytes, i))
    fates = list(untouched(problem))
    best_fates: tuple[Fate, ...] | None = None
    best_score = _MISFIT

    def visit(depth: int) -> None:
        nonlocal best_fates, best_score
        if least(fates, set(order[depth:])) >= best_score:
            return
        if depth == len(order):
            found = score(fates)
            if found < best_score:
                best_fates, best_score = tuple(fates), found
            return
        index = order[depth]
        before = fates[index]
        for fate in permitted(problem, index):
            fates[index] = fate
            visit(depth + 1)
        fates[index] = before

    visit(0)
    return best_fates


class _Bound:
    """Lower bounds for partly decided fates.

    Recomputing another item only makes first uses earlier, so the decided items give each first use at the latest,
    for memory and for what the link has to bring back. What becomes cheaper with an earlier use (host memory, memory
    that is held until another item is recomputed, time for the link) is bounded with the earliest use there can be.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._problem = evaluator.problem
        self._earliest = earliest_first_uses(evaluator.problem)

    def leaving(self, fates: Sequence[Fate], open_items: set[int]) -> list[Fate]:
        """Let every open item that may leave do so by itself."""
        return [
            ("offload" if len(permitted(self._problem, i)) > 1 else fate) if i in open_items else fate
            for i, fate in enumerate(fates)
        ]

    def resting(self, fates: Sequence[Fate], open_items: set[int]) -> list[Fate]:
        """Let every open item stay: it then costs no time and no host memory."""
        return ["save" if i in open_items else fate for i, fate in enumerate(fates)]

    def least_uses(self, fates: Sequence[Fate]) -> Uses:
        """Return the first uses at the latest and the last uses at the earliest, whatever else is recomputed."""
        items = self._problem.trace.items
        last = [item.last_backward_use for item in items]
        for index in self._problem.users_first:
            recompute = items[index].recompute
            if fates[index] == "recompute" and recompute is not None:
                for needed in recompute.needs:
                    last[needed] = max(last[needed], self._earliest[index])
        return Uses(effective_uses(self._problem, fates).first, last)

    def host_excess(self, fates: Sequence[Fate], uses: Uses) -> int:
        limits = self._evaluator.limits
        excess = 0
        if limits.budget is not None:
            excess += max(0, self._evaluator.moved_bytes(fates) - limits.budget)
        if limits.host is not None:
            excess += max(0, max(host_curve(self._problem, fates, uses), default=0) - limits.host)
        return excess

    def least_host_excess(self, decided: Sequence[Fate]) -> int:
        return self.host_excess(decided, Uses(self._earliest, []))

    def least_score(self, fates: Sequence[Fate], open_items: set[int]) -> Score:
        decided = self.resting(fates, open_items)
        excess = self.least_host_excess(decided)
        limit = self._evaluator.limits.device
        if limit is not None:
            fewest = self.leaving(fates, open_items)
            curve = least_curve(self._problem, fewest, self.least_uses(fewest))
            excess += max(0, max(curve, default=0) - limit)
        if excess:
            return (excess, 0.0, 0, 0)
        moved = self._evaluator.moved_bytes(decided)
        num_recomputed = sum(fate == "recompute" for fate in decided)
        # A nanosecond's thousandth off: sums in another order may differ in the last bits.
        return (0, round(self._least_step_ms(decided) - 1e-9, 6), moved, num_recomputed)

    def _least_step_ms(self, decided: Sequence[Fate]) -> float:
        """Bound the step time of the decided items: what they compute, and what the link needs for them."""
        problem, items = self._problem, self._problem.trace.items
        offloaded = [i for i, fate in enumerate(decided) if fate == "offload"]
        turn_ms = problem.until_ms[problem.trace.num_forward]
        total_ms = problem.until_ms[-1]
        recompute = [
            (self._earliest[i], recompute.duration_ms)
            for i, fate in enumerate(decided)
            if fate == "recompute" and (recompute := items[i].recompute) is not None
        ]
        recompute_ms = sum(duration_ms for _, duration_ms in recompute)
        lane_ms = 0.0
        for i in sorted(offloaded, key=lambda i: (items[i].ready, i)):
            lane_ms = max(lane_ms, problem.until_ms[items[i].ready + 1]) + problem.d2h_ms[i]
        forward_ms = max(turn_ms, lane_ms)
        backward_ms = total_ms - turn_ms + recompute_ms
        uses = effective_uses(problem, decided)
        copied_ms = 0.0
        for i in sorted(offloaded, key=lambda i: uses.first[i]):
            copied_ms += problem.h2d_ms[i]
            at = uses.first[i]
            behind_ms = sum(duration_ms for kernel, duration_ms in recompute if kernel >= at)
            backward_ms = max(backward_ms, copied_ms + total_ms - problem.until_ms[at] + behind_ms)
        contention = problem.link.contention
        busy_ms = sum(problem.d2h_ms[i] + problem.h2d_ms[i] for i in offloaded)
        slowed_ms = total_ms + recompute_ms + busy_ms * contention / (1 + contention)
        return max(forward_ms + backward_ms, slowed_ms)
