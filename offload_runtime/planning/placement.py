"""Where the moves of the offloaded items stand, given everybody's fate and the device limit.

What is chosen, and why:

- A copy to the host leaves as soon as the item is ready: the link is idle otherwise.
- The wait and the release stand behind the first kernel (from the last forward use on) at which the copy would be
  done *if every copy took* ``margin`` *longer than predicted*. Then waiting costs nothing, also on a link that is
  a little slower than thought, and keeping the memory longer would gain nothing. Where the limit does not leave that
  much room the release moves forward, as far as needed: the copies that are done first are waited for first.
  No release stands behind the last forward kernel: a reload may follow at once.
- A reload starts as late as it can and still be in time if every copy took ``margin`` longer, and
  earlier where the lane is busy with others (scheduled backward from the deadlines, earliest deadline first).
  Where memory has no room for that, it starts as soon as there is room from then on until its use, and compute waits.

Memory is counted in issue order, so the limit holds whatever the copies do: only time depends on the margin.
Time on which the copies are hidden is taken without ``contention``, which is again on the careful side. A limit
that is below the curve of :func:`offload_runtime.planning.lifetimes.least_curve` cannot be held by any placement;
then everything is released and reloaded without any slack around the kernels where it is exceeded.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from offload_runtime.compiler import Fate
from offload_runtime.planning.lanes import recompute_ms_by_kernel
from offload_runtime.planning.lifetimes import Problem, Uses, effective_uses, least_curve
from offload_runtime.step import LinkRates, Move, StepTrace

__all__ = ["COPY_MARGIN", "place", "place_problem"]

COPY_MARGIN = 0.1
"""The share by which a copy may take longer than predicted before compute has to wait for it."""


def place(
    trace: StepTrace,
    fates: Sequence[Fate],
    link: LinkRates,
    device_limit: int | None,
    *,
    margin: float = COPY_MARGIN,
) -> tuple[Move, ...]:
    """Return one move per offloaded item, in item order; ``device_limit`` is in bytes, None for no limit."""
    problem = Problem.of(trace, link)
    uses = effective_uses(problem, fates)
    curve = least_curve(problem, fates, uses)
    return place_problem(problem, fates, uses, curve, device_limit, margin=margin)


def place_problem(
    problem: Problem,
    fates: Sequence[Fate],
    uses: Uses,
    curve: Sequence[int],
    device_limit: int | None,
    *,
    margin: float = COPY_MARGIN,
) -> tuple[Move, ...]:
    """Do what :func:`place` does, with the least curve known already."""
    offloaded = [index for index, fate in enumerate(fates) if fate == "offload"]
    if not offloaded:
        return ()
    room = None if device_limit is None else [device_limit - num_bytes for num_bytes in curve]
    release_after = _releases(problem, offloaded, room, 1 + margin)
    reload_before = _reloads(problem, fates, uses, offloaded, room, 1 + margin)
    items = problem.trace.items
    return tuple(
        Move(index, items[index].ready, release_after[index], reload_before[index], uses.first[index])
        for index in offloaded
    )


def _releases(
    problem: Problem, offloaded: Sequence[int], room: Sequence[int] | None, slower: float
) -> dict[int, int]:
    """Walk through forward with copies that are ``slower``, and release what is done or has to go."""
    items, durations_ms = problem.trace.items, problem.durations_ms
    num_forward = problem.trace.num_forward
    ready: defaultdict[int, list[int]] = defaultdict(list)
    unused: defaultdict[int, list[int]] = defaultdict(list)
    for index in offloaded:
        ready[items[index].ready].append(index)
        unused[max(items[index].last_forward_use, items[index].ready)].append(index)
    release_after: dict[int, int] = {}
    done_ms: dict[int, float] = {}
    waiting: list[tuple[float, int]] = []  # unused and on the device: when its copy is done, and the item
    waiting_bytes, now_ms, lane_free_ms = 0, 0.0, 0.0
    for kernel in range(num_forward):
        if room is not None:
            while waiting and waiting_bytes > room[kernel]:
                copied_ms, index = waiting.pop(0)
                now_ms = max(now_ms, copied_ms)
                waiting_bytes -= items[index].num_bytes
                release_after[index] = kernel - 1
        now_ms += durations_ms[kernel]
        if kernel in ready:
            for index in ready[kernel]:
                lane_free_ms = max(now_ms, lane_free_ms) + problem.d2h_ms[index] * slower
                done_ms[index] = lane_free_ms
        if kernel in unused:
            for index in unused[kernel]:
                insort(waiting, (done_ms[index], index))
                waiting_bytes += items[index].num_bytes
        while waiting and waiting[0][0] <= now_ms:
            index = waiting.pop(0)[1]
            waiting_bytes -= items[index].num_bytes
            release_after[index] = kernel
    for _, index in waiting:
        release_after[index] = num_forward - 1
    return release_after


def _reloads(
    problem: Problem,
    fates: Sequence[Fate],
    uses: Uses,
    offloaded: Sequence[int],
    room: Sequence[int] | None,
    slower: float,
) -> dict[int, int]:
    """Schedule backward from the deadlines, then move later what memory has no room for."""
    items, num_forward = problem.trace.items, problem.trace.num_forward
    starts_ms = _backward_starts_ms(problem, fates, uses)
    by_deadline = sorted(offloaded, key=lambda index: (uses.first[index], index))
    wanted: dict[int, int] = {}
    lane_ms = float("inf")
    for index in reversed(by_deadline):
        lane_ms = min(lane_ms, starts_ms[uses.first[index] - num_forward])
        lane_ms -= problem.h2d_ms[index] * slower
        wanted[index] = num_forward + max(bisect_right(starts_ms, lane_ms) - 1, 0)
    if room is None:
        return wanted
    left = list(room)
    reload_before: dict[int, int] = {}
    previous = num_forward
    for index in by_deadline:
        num_bytes, use_before = items[index].num_bytes, uses.first[index]
        # Not before an item that is needed earlier: the lane is a queue.
        at = min(max(wanted[index], previous), use_before)
        between = left[at:use_before]
        if between and min(between) < num_bytes:
            at = 1 + max(k for k in range(at, use_before) if left[k] < num_bytes)
        for kernel in range(at, use_before):
            left[kernel] -= num_bytes
        reload_before[index] = previous = at
    return reload_before


def _backward_starts_ms(problem: Problem, fates: Sequence[Fate], uses: Uses) -> list[float]:
    """Return when each backward kernel may start at the earliest: nothing waits and nothing slows it down."""
    num_forward = problem.trace.num_forward
    durations_ms = list(problem.durations_ms[num_forward:])
    for kernel, added_ms in recompute_ms_by_kernel(problem, fates, uses).items():
        durations_ms[kernel - num_forward] += added_ms
    return list(accumulate(durations_ms[:-1], initial=0.0))
