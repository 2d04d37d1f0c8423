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
    ``first_uses``, ``last_uses`` and ``moved_bytes`` are those of each item by itself, ``recomputations`` the index,
    duration in ms and needs of the items of ``users_first``, and ``lifetimes`` the index, creation, last forward use
    and bytes of the items that take memory: searches ask for these thousands of times. ``undecided`` are the items
    with more than one possible fate.
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
    first_uses: tuple[int, ...]
    last_uses: tuple[int, ...]
    moved_bytes: tuple[int, ...]
    recomputations: tuple[tuple[int, float, tuple[int, ...]], ...]
    lifetimes: tuple[tuple[int, int, int, int], ...]
    undecided: tuple[int, ...]

    @classmethod
    def of(cls, trace: StepTrace, link: LinkRates) -> Problem:
        """Derive the numbers; raise ValueError if items need each other in a circle, or one can have no fate."""
        steps = [0] * (len(trace.kernels) + 1)
        steps[0] = trace.resident_bytes
        for region in trace.regions:
            steps[region.first] += region.num_bytes
            steps[region.last + 1] -= region.num_bytes
        users_first = _users_first(trace.items)
        choices = tuple(map(_choices, trace.items))
        return cls(
            trace=trace,
            link=link,
            durations_ms=tuple(kernel.duration_ms for kernel in trace.kernels),
            until_ms=tuple(accumulate((kernel.duration_ms for kernel in trace.kernels), initial=0.0)),
            region_bytes=tuple(accumulate(steps[:-1])),
            region_steps=tuple(steps),
            d2h_ms=tuple(_copy_ms(item, link.d2h_bytes_per_ms, link) for item in trace.items),
            h2d_ms=tuple(_copy_ms(item, link.h2d_bytes_per_ms, link) for item in trace.items),
            users_first=users_first,
            choices=choices,
            first_uses=tuple(item.first_backward_use for item in trace.items),
            last_uses=tuple(item.last_backward_use for item in trace.items),
            moved_bytes=tuple(item.moved_bytes for item in trace.items),
            recomputations=tuple(
                (index, recompute.duration_ms, recompute.needs)
                for index in users_first
                if (recompute := trace.items[index].recompute) is not None
            ),
            lifetimes=tuple(
                (index, item.created, item.last_forward_use, item.num_bytes)
                for index, item in enumerate(trace.items)
                if item.num_bytes
            ),
            undecided=tuple(index for index, fates in enumerate(choices) if len(fates) > 1),
        )


@dataclass(frozen=True)
class Uses:
    """Per item: its effective first use in backward, and its last use, as positions of kernels."""

    first: list[int]
    last: list[int]


def effective_uses(problem: Problem, fates: Sequence[Fate]) -> Uses:
    """Return when each item has to be on the device for backward, given which items are recomputed."""
    first, last = list(problem.first_uses), list(problem.last_uses)
    for index, _, needs in problem.recomputations:
        if fates[index] == "recompute":
            at = first[index]
            for needed in needs:
                if at < first[needed]:
                    first[needed] = at
                if at > last[needed]:
                    last[needed] = at
    return Uses(first, last)


def least_curve(problem: Problem, fates: Sequence[Fate], uses: Uses) -> list[int]:
    """Return device bytes per kernel if every copy took no time: what no placement of the moves gets below."""
    changed = list(problem.region_steps)
    first, last = uses.first, uses.last
    for index, created, last_forward_use, num_bytes in problem.lifetimes:
        changed[created] += num_bytes
        changed[last[index] + 1] -= num_bytes
        fate = fates[index]
        if fate != "save" and fate != "skip":
            changed[last_forward_use + 1] -= num_bytes
            changed[first[index]] += num_bytes
    changed.pop()
    return list(accumulate(changed))


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
