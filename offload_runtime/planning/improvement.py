"""Local search on the simulated step: small changes, the first that improves is kept, until none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offload_runtime.compiler import Fate
from offload_runtime.planning.evaluation import Evaluator, permitted, rests

__all__ = ["improve"]

_Change = tuple[tuple[int, Fate], ...]


def improve(evaluator: Evaluator, fates: Sequence[Fate], *, num_evaluations: int) -> tuple[Fate, ...]:
    """Return fates that score no worse, after at most ``num_evaluations`` simulations.

    ``fates`` have to fit. One round tries to let each item stay, then to offload what is recomputed and the
    other way round, then to trade the fates of two items: first the items that cost time (recomputed, or waited for).
    """
    best = tuple(fates)
    best_score = evaluator.score(best)
    stop = evaluator.num_simulated + num_evaluations
    improved = True
    while improved and evaluator.num_simulated < stop:
        improved = False
        for change in _changes(evaluator, best):
            if evaluator.num_simulated >= stop:
                break
            # A kept change may have been one of these already.
            if all(best[index] == fate for index, fate in change):
                continue
            candidate = list(best)
            for index, fate in change:
                candidate[index] = fate
            score = evaluator.score(candidate)
            if score < best_score:
                best, best_score, improved = tuple(candidate), score, True
    return best


def _changes(evaluator: Evaluator, fates: Sequence[Fate]) -> Iterator[_Change]:
    costly = _by_cost(evaluator, fates)
    for index in costly:
        stay = permitted(evaluator.problem, index)[0]
        if rests(stay):
            yield ((index, stay),)
    for index in costly:
        for fate in permitted(evaluator.problem, index):
            if not rests(fate) and fate != fates[index]:
                yield ((index, fate),)
    yield from _trades(evaluator, fates, costly)


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
