"""Local search on the simulated step: small changes, the first that improves is kept, until none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offload_runtime.compiler import Fate
from offload_runtime.planning.evaluation import Evaluator, permitted, rests
from offload_runtime.planning.rounding import repair

__all__ = ["improve"]

_Change = tuple[tuple[int, Fate], ...]


def improve(
    evaluator: Evaluator, fates: Sequence[Fate], *, num_evaluations: int, good_ms: float = 0.0
) -> tuple[Fate, ...]:
    """Return fates that score no worse, after at most ``num_evaluations`` judgements.

    ``fates`` have to fit. One round tries, for the items that cost time (recomputed, or waited for) first, to let the
    item stay; to let it stay and repair what then does not fit; to offload what is recomputed and the other
    way round; and to trade the fates of two items. A step time of ``good_ms`` is not improved by trades.
    """
    best = tuple(fates)
    best_score = evaluator.score(best)
    stop = evaluator.num_judged + num_evaluations
    improved = True
    while improved:
        improved = False
        for change, mend in _changes(evaluator, best, trade=best_score[1] > good_ms):
            if evaluator.num_judged >= stop:
                return best
            # What was kept before may have been this.
            if all(best[index] == fate for index, fate in change):
                continue
            candidate: tuple[Fate, ...] | None = _changed(best, change)
            if mend and candidate is not None:
                candidate = repair(evaluator, candidate, fixed=[index for index, _ in change])
            if candidate is None:
                continue
            score = evaluator.score(candidate)
            if score < best_score:
                best, best_score, improved = candidate, score, True
    return best


def _changes(evaluator: Evaluator, fates: tuple[Fate, ...], *, trade: bool) -> Iterator[tuple[_Change, bool]]:
    """Yield changes, and whether what then does not fit is to be repaired."""
    problem = evaluator.problem
    costly = _by_cost(evaluator, fates)
    stays: list[_Change] = [
        ((index, choices[0]),) for index in costly if rests((choices := permitted(problem, index))[0])
    ]
    for change in stays:
        yield change, False
    for change in stays if trade else ():
        yield change, True
    for index in costly:
        for fate in permitted(problem, index):
            if not rests(fate) and fate != fates[index]:
                yield ((index, fate),), False
    for change in _trades(evaluator, fates, costly) if trade else ():
        yield change, False


def _changed(fates: tuple[Fate, ...], change: _Change) -> tuple[Fate, ...]:
    changed = list(fates)
    for index, fate in change:
        changed[index] = fate
    return tuple(changed)


def _by_cost(evaluator: Evaluator, fates: Sequence[Fate]) -> list[int]:
    """Return what does not rest: what costs most time first, then what moves most bytes."""
    problem = evaluator.problem
    plan = evaluator.plan(fates)
    stall_ms: dict[str, float] = {}
    for copy in plan.simulation.copies:
        stall_ms[copy.item] = stall_ms.get(copy.item, 0.0) + copy.stall_ms
    costs: list[tuple[float, int, int]] = []
    for index, item in enumerate(problem.trace.items):
        if fates[index] == "recompute" and item.recompute is not None:
            costs.append((-item.recompute.duration_ms, 0, index))
        elif fates[index] == "offload":
            costs.append((-stall_ms.get(item.name, 0.0), -item.moved_bytes, index))
    return [index for _, _, index in sorted(costs)]


def _trades(evaluator: Evaluator, fates: Sequence[Fate], costly: Sequence[int]) -> Iterator[_Change]:
    """Pair each costly item with the items nearest to it in time: one is let off, the other takes its place."""
    items = evaluator.problem.trace.items
    order = sorted(range(len(items)), key=lambda i: (items[i].ready, i))
    place = {index: position for position, index in enumerate(order)}
    for reach in range(1, len(order)):
        for index in costly:
            for position in (place[index] - reach, place[index] + reach):
                if not 0 <= position < len(order):
                    continue
                other = order[position]
                for mine in permitted(evaluator.problem, index):
                    for theirs in permitted(evaluator.problem, other):
                        if mine != fates[index] and theirs != fates[other]:
                            yield ((index, mine), (other, theirs))
