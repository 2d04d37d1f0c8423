"""When each item has to be on the device, given everybody's fate: the memory that no placement can avoid.

A saved item lives from ``created`` to its last use. An item that is offloaded or recomputed has a hole in the
middle: it lives from ``created`` to its last forward use, and again from its effective first use to its last use.

The *effective first use* is the earliest of the item's own first backward use and the effective first uses of the
recomputed items that read it: recomputing starts right before that kernel, so its inputs are there by then. The
*last use* is likewise the latest of the item's own and the moments at which others are recomputed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from offload_runtime.compiler import Fate
from offload_runtime.step import Item, LinkRates, StepTrace

__all__ = ["Problem", "Uses", "curve_of", "effective_uses", "host_curve", "least_curve"]


@dataclass(frozen=True)
class Problem:
    """A trace and a link with what every evaluation needs of them, computed once.

    ``durations_ms`` are those of the kernels, ``until_ms`` their sum before each kernel (one more at the end).
    ``region_bytes`` is the curve of resident bytes and regions, and ``region_steps`` by how much it changes at each
    kernel (one more at the end). ``d2h_ms`` and ``h2d_ms`` are the copy times of each item, alone on the link.
    ``users_first`` lists the items that can be recomputed, an item after those that are recomputed from it.
    ``choices`` are the fates that each item can have, in a fixed order: staying, offload, recompute.
    """

    trace: StepTrace
    link: LinkRates
    durations_ms: tuple[float, ...]
    until_ms: tuple[float, ...]
    region_bytes: tuple[int, ...]
    region_steps: tuple[int, ...]
    d2h_ms: tuple[float, ...]
    h2d_ms: tuple[float, ...]
    users_first: tuple[int, ...]
    choices: tuple[tuple[Fate, ...], ...]

    @classmethod
    def of(cls, trace: StepTrace, link: LinkRates) -> Problem:
        """Derive the numbers; raise ValueError if items need each other in a circle, or one can have no fate."""
        steps = [0] * (len(trace.kernels) + 1)
        steps[0] = trace.resident_bytes
        for region in trace.regions:
            steps[region.first] += region.num_bytes
            steps[region.last + 1] -= region.num_bytes
        return cls(
            trace=trace,
            link=link,
            durations_ms=tuple(kernel.duration_ms for kernel in trace.kernels),
            until_ms=tuple(accumulate((kernel.duration_ms for kernel in trace.kernels), initial=0.0)),
            region_bytes=tuple(accumulate(steps[:-1])),
            region_steps=tuple(steps),
            d2h_ms=tuple(_copy_ms(item, link.d2h_bytes_per_ms, link) for item in trace.items),
            h2d_ms=tuple(_copy_ms(item, link.h2d_bytes_per_ms, link) for item in trace.items),
            users_first=_users_first(trace.items),
            choices=tuple(map(_choices, trace.items)),
        )


@dataclass(frozen=True)
class Uses:
    """Per item: its effective first use in backward, and its last use, as positions of kernels."""

    first: list[int]
    last: list[int]


def effective_uses(problem: Problem, fates: Sequence[Fate]) -> Uses:
    """Return when each item has to be on the device for backward, given which items are recomputed."""
    items = problem.trace.items
    first = [item.first_backward_use for item in items]
    last = [item.last_backward_use for item in items]
    for index in problem.users_first:
        recompute = items[index].recompute
        if fates[index] != "recompute" or recompute is None:
            continue
        for needed in recompute.needs:
            first[needed] = min(first[needed], first[index])
            last[needed] = max(last[needed], first[index])
    return Uses(first, last)


def least_curve(problem: Problem, fates: Sequence[Fate], uses: Uses) -> list[int]:
    """Return device bytes per kernel if every copy took no time: what no placement of the moves gets below."""
    intervals: list[tuple[int, int, int]] = []
    for item, fate, first, last in zip(problem.trace.items, fates, uses.first, uses.last, strict=True):
        if fate in ("save", "skip"):
            intervals.append((item.created, last, item.num_bytes))
        else:
            intervals.append((item.created, item.last_forward_use, item.num_bytes))
            intervals.append((first, last, item.num_bytes))
    return curve_of(problem.region_steps, intervals)


def host_curve(problem: Problem, fates: Sequence[Fate], uses: Uses) -> list[int]:
    """Return host bytes per kernel: from the kernel behind which the copy leaves until the reload is waited for."""
    intervals = [
        (item.ready, first - 1, item.moved_bytes)
        for item, fate, first in zip(problem.trace.items, fates, uses.first, strict=True)
        if fate == "offload"
    ]
    return curve_of([0] * len(problem.region_steps), intervals)


def curve_of(steps: Sequence[int], intervals: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return the curve with these steps plus ``(first, last, num_bytes)`` intervals, both ends included."""
    changed = list(steps)
    for first, last, num_bytes in intervals:
        changed[first] += num_bytes
        changed[last + 1] -= num_bytes
    changed.pop()
    return list(accumulate(changed))


def _choices(item: Item) -> tuple[Fate, ...]:
    """Return the possible fates of an item; ``save`` stands for ``skip`` where both are permitted."""
    order: tuple[Fate, ...] = ("save", "skip", "offload", "recompute")
    fates = tuple(fate for fate in order if fate in item.fates)
    if "save" in fates:
        fates = tuple(fate for fate in fates if fate != "skip")
    if item.recompute is None:
        fates = tuple(fate for fate in fates if fate != "recompute")
    if not fates:
        raise ValueError(f"{item.name}: no fate is possible")
    return fates


def _copy_ms(item: Item, bytes_per_ms: float, link: LinkRates) -> float:
    return item.num_copies * link.latency_ms + item.moved_bytes / bytes_per_ms


def _users_first(items: Sequence[Item]) -> tuple[int, ...]:
    """Order the items that can be recomputed so that each follows its users (Kahn's algorithm)."""
    recomputable = [index for index, item in enumerate(items) if item.recompute is not None]
    num_users = [0] * len(items)
    for index in recomputable:
        for needed in _needs(items[index]):
            num_users[needed] += 1
    free = [index for index in recomputable if num_users[index] == 0]
    order: list[int] = []
    while free:
        index = free.pop()
        order.append(index)
        for needed in _needs(items[index]):
            num_users[needed] -= 1
            if num_users[needed] == 0 and items[needed].recompute is not None:
                free.append(needed)
    if len(order) != len(recomputable):
        circle = sorted(items[index].name for index in set(recomputable) - set(order))
        raise ValueError(f"these items need each other to be recomputed: {', '.join(circle)}")
    return tuple(order)


def _needs(item: Item) -> tuple[int, ...]:
    return item.recompute.needs if item.recompute is not None else ()
