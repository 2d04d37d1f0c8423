"""The fluid relaxation: a linear program whose optimum no plan can beat.

Every item is split into fractions that are saved, offloaded and recomputed; copies flow. What is kept of the lanes:

- in a segment of the time line the link copies no longer than the segment takes. A segment takes its kernels, what
  is recomputed there, and an *extra* time: stalls, and what contention adds. With ``c`` the contention, a segment
  whose copies take ``b`` ms lasts at least ``b × c / (1 + c)`` ms longer (the rest of ``b`` is stall or hidden);
- nothing is copied to the host before it is ready; everything is there at the end of forward;
- what has been copied by a kernel bounds how much is gone at that kernel;
- everything is back by its own first backward use; what is back earlier takes memory.

What is left out makes it a bound: items leave and return in parts, in any order; being needed to recompute others
costs nothing; recomputation may help the link as early as some combination of fates would put it; memory is looked at
in some kernels only. Items with about the same ratio of bytes to copy time share their flow, at the better
ratio of the group. Needs scipy, which is imported here only when a program is solved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, log

from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Limits
from offload_runtime.planning.segments import Segments, cut, saved_curve, tightest_curve

__all__ = ["Relaxed", "earliest_first_uses", "relax"]

_NUM_SEGMENTS = 150
_MAX_GROUPS = 4
_MOVING = 1e-6
_TOLERANCE = 1e-6  # what the solver may be off, in ms and in units of memory
_Terms = Iterable[tuple[int, float]]


@dataclass(frozen=True)
class Relaxed:
    """The optimum, and how much of each item is offloaded and recomputed (0 to 1).

    ``step_ms`` is the bound on the step time, or with ``least_peak`` ``peak_bytes`` the one on the peak (else 0).
    """

    step_ms: float
    peak_bytes: float
    offloaded: tuple[float, ...]
    recomputed: tuple[float, ...]


def relax(problem: Problem, limits: Limits, *, least_peak: bool = False) -> Relaxed | None:
    """Minimise the step time within ``limits``, or with ``least_peak`` the peak; None where nothing fits.

    With ``least_peak`` the device limit is not looked at. Raises ImportError without scipy.
    """
    return _Program(problem, limits, least_peak).solve()


def earliest_first_uses(problem: Problem) -> list[int]:
    """Return the earliest effective first use of each item over all permitted fates."""
    items = problem.trace.items
    first = [item.first_backward_use for item in items]
    for index in problem.users_first:
        recompute = items[index].recompute
        if "recompute" in items[index].fates and recompute is not None:
            for needed in recompute.needs:
                first[needed] = min(first[needed], first[index])
    return first


@dataclass
class _Rows:
    """Constraints ``sum(value × column) <= upper`` in coordinate form."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def at_most(self, upper: float, *terms: _Terms) -> None:
        for part in terms:
            for column, value in part:
                self.rows.append(len(self.upper))
                self.columns.append(column)
                self.values.append(value)
        self.upper.append(upper)


class _Program:
    """The columns and rows. Times are in ms, memory in units of a hundredth of the unmodified step's peak."""

    def __init__(self, problem: Problem, limits: Limits, least_peak: bool) -> None:
        self._problem, self._limits, self._least_peak = problem, limits, least_peak
        self._device_limit = None if least_peak else limits.device
        most_bytes = max(saved_curve(problem), default=0)
        self._unit = max(most_bytes / 100, 1.0)
        # No peak is lower than the tightest curve's, and without a limit memory does not matter.
        above_bytes = most_bytes if self._device_limit is None else self._device_limit
        if least_peak:
            above_bytes = max(tightest_curve(problem), default=0)
        self._cut: Segments = cut(problem, above_bytes, num_segments=_NUM_SEGMENTS)
        self._items = problem.trace.items
        self._kernel_ms = float(sum(problem.durations_ms))
        self._bounds: list[tuple[float, float | None]] = []
        self._cost_ms: list[float] = []
        self._rows = _Rows()
        self._groups = _groups(problem)
        self._fate_columns()
        self._time_columns()
        self._lane_rows()
        self._deadline_rows()
        self._memory_rows()
        self._limit_rows()

    def _column(self, cost_ms: float = 0.0, lower: float = 0.0, upper: float | None = None) -> int:
        self._bounds.append((lower, upper))
        self._cost_ms.append(cost_ms)
        return len(self._bounds) - 1

    def _fate_columns(self) -> None:
        """One column per item and permitted fate other than save: the share that meets it."""
        self._offload: dict[int, int] = {}
        self._recompute: dict[int, int] = {}
        for index, item in enumerate(self._items):
            if "offload" in item.fates:
                self._offload[index] = self._column(upper=1.0)
            if "recompute" in item.fates and item.recompute is not None:
                self._recompute[index] = self._column(item.recompute.duration_ms, upper=1.0)
            chosen = [columns[index] for columns in (self._offload, self._recompute) if index in columns]
            if len(chosen) > 1:
                self._rows.at_most(1.0, ((column, 1.0) for column in chosen))
            if chosen and not item.fates & {"save", "skip"}:
                self._rows.at_most(-1.0, ((column, -1.0) for column in chosen))

    def _time_columns(self) -> None:
        """Per segment its extra time, and per group the time its copies take there.

        Between forward and backward stands a segment without kernels: the wait before the first backward kernel.
        """
        forward, backward = self._cut.forward, self._cut.backward
        self._forward_extra = [self._column(1.0) for _ in forward[:-1]]
        self._backward_extra = [self._column(1.0) for _ in backward]
        self._d2h = [[self._column() for _ in forward[:-1]] for _ in self._groups]
        self._h2d = [[self._column() for _ in backward] for _ in self._groups]

    def _lane_rows(self) -> None:
        durations_ms = self._problem.durations_ms
        forward, backward = self._cut.forward, self._cut.backward
        recompute: defaultdict[int, list[int]] = defaultdict(list)
        first = earliest_first_uses(self._problem)
        for index in self._recompute:
            recompute[bisect_right(backward, first[index])].append(index)
        for s, extra in enumerate(self._forward_extra):
            work_ms = sum(durations_ms[forward[s] : forward[s + 1]])
            self._lane(extra, [lane[s] for lane in self._d2h], work_ms, ())
        for s, extra in enumerate(self._backward_extra):
            work_ms = sum(durations_ms[backward[s - 1] : backward[s]]) if s else 0.0
            self._lane(extra, [lane[s] for lane in self._h2d], work_ms, recompute[s])

    def _lane(self, extra: int, copies: Sequence[int], work_ms: float, recomputed: Iterable[int]) -> None:
        added = [(self._recompute[i], -self._cost_ms[self._recompute[i]]) for i in recomputed]
        self._rows.at_most(work_ms, ((column, 1.0) for column in copies), [(extra, -1.0)], added)
        contention = self._problem.link.contention
        if contention:
            share = contention / (1 + contention)
            self._rows.at_most(0.0, ((column, share) for column in copies), [(extra, -1.0)])

    def _deadline_rows(self) -> None:
        """Nothing leaves before it is ready, all has left by the end of forward, all is back when it is used."""
        forward, backward = self._cut.forward, self._cut.backward
        for group, d2h, h2d in zip(self._groups, self._d2h, self._h2d, strict=True):
            ready = sorted((self._items[i].ready, i) for i in group.items)
            for s in range(len(d2h)):
                copied = [(column, 1.0) for column in d2h[: s + 1]]
                by_start = [
                    (self._offload[i], -self._problem.d2h_ms[i]) for at, i in ready if at < forward[s]
                ]
                new = [(at, i) for at, i in ready if forward[s] <= at < forward[s + 1]]
                by_end = [(self._offload[i], -self._problem.d2h_ms[i]) for _, i in new]
                self._rows.at_most(0.0, copied, by_start, by_end)
                if new:  # what becomes ready within the segment is copied in the rest of it
                    rest_ms = self._problem.until_ms[forward[s + 1]] - self._problem.until_ms[new[0][0] + 1]
                    self._rows.at_most(rest_ms, copied, by_start, [(self._forward_extra[s], -1.0)])
            all_of_them = [(self._offload[i], self._problem.d2h_ms[i]) for i in group.items]
            self._rows.at_most(0.0, ((column, -1.0) for column in d2h), all_of_them)
            for s in range(len(h2d)):
                self._rows.at_most(
                    0.0, ((column, -1.0) for column in h2d[: s + 1]), self._due(group, backward[s])
                )

    def _due(self, group: _Group, kernel: int) -> list[tuple[int, float]]:
        """Return the copy time of what has to be back before ``kernel`` runs (the end of the step: all of it)."""
        return [
            (self._offload[i], self._problem.h2d_ms[i])
            for i in group.items
            if self._items[i].first_backward_use <= kernel
        ]

    def _memory_rows(self) -> None:
        self._peak = None
        if self._least_peak:
            lower = max(tightest_curve(self._problem), default=0) / self._unit
            self._peak = self._column(lower=lower)
        for kernel in self._cut.forward_samples:
            self._forward_memory(kernel)
        for kernel in self._cut.backward_samples:
            self._backward_memory(kernel)

    def _forward_memory(self, kernel: int) -> None:
        segment = bisect_left(self._cut.forward, kernel)
        held, left = self._problem.region_bytes[kernel], []
        for index, item in enumerate(self._items):
            if item.created <= kernel:
                held += item.num_bytes
                if item.last_forward_use < kernel and index in self._recompute:
                    left.append((self._recompute[index], -item.num_bytes / self._unit))
        for group, d2h in zip(self._groups, self._d2h, strict=True):
            able = [i for i in group.items if self._items[i].last_forward_use < kernel]
            if not able:
                continue
            gone = self._column()
            left.append((gone, -1.0))
            per_ms = group.most_bytes_per_ms / self._unit
            self._rows.at_most(0.0, [(gone, 1.0)], ((column, -per_ms) for column in d2h[:segment]))
            shares = ((self._offload[i], -self._items[i].num_bytes / self._unit) for i in able)
            self._rows.at_most(0.0, [(gone, 1.0)], shares)
        self._at_most_memory(held, left)

    def _backward_memory(self, kernel: int) -> None:
        segment = bisect_left(self._cut.backward, kernel)
        held, left = self._problem.region_bytes[kernel], []
        for index, item in enumerate(self._items):
            if item.last_backward_use < kernel:
                continue
            held += item.num_bytes
            if item.first_backward_use > kernel:
                for columns in (self._offload, self._recompute):
                    if index in columns:
                        left.append((columns[index], -item.num_bytes / self._unit))
        for group, h2d in zip(self._groups, self._h2d, strict=True):
            per_ms = group.least_bytes_per_ms / self._unit
            left += [(column, per_ms) for column in h2d[: segment + 1]]
            left += [(column, -per_ms * copy_ms) for column, copy_ms in self._due(group, kernel)]
        self._at_most_memory(held, left)

    def _at_most_memory(self, held: int, terms: list[tuple[int, float]]) -> None:
        if self._peak is not None:
            self._rows.at_most(-held / self._unit, terms, [(self._peak, -1.0)])
        elif self._device_limit is not None:
            self._rows.at_most((self._device_limit - held) / self._unit, terms)

    def _limit_rows(self) -> None:
        limits = self._limits
        moved = {i: self._items[i].moved_bytes / self._unit for i in self._offload}
        if limits.budget is not None:
            self._rows.at_most(limits.budget / self._unit, ((self._offload[i], moved[i]) for i in moved))
        if limits.host is not None:
            first = earliest_first_uses(self._problem)
            for kernel in {*self._cut.forward, *self._cut.backward}:
                there = [i for i in moved if self._items[i].ready <= kernel < first[i]]
                self._rows.at_most(limits.host / self._unit, ((self._offload[i], moved[i]) for i in there))
        if limits.step_ms is not None:
            every = ((column, cost) for column, cost in enumerate(self._cost_ms) if cost)
            self._rows.at_most(limits.step_ms - self._kernel_ms, every)

    def solve(self) -> Relaxed | None:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        rows = self._rows
        shape = (len(rows.upper), len(self._bounds))
        matrix = coo_array((rows.values, (rows.rows, rows.columns)), shape=shape).tocsr()
        # Of equal optima the one that moves less: a cost so small that taking all of it off keeps a bound.
        cost = list(self._cost_ms) if self._peak is None else [0.0] * len(self._cost_ms)
        most_moved = 0.0
        for index, column in self._offload.items():
            cost[column] = _MOVING * self._problem.d2h_ms[index]
            most_moved += cost[column]
        if self._peak is not None:
            cost[self._peak] = 1.0
        found = linprog(cost, A_ub=matrix, b_ub=rows.upper, bounds=self._bounds, method="highs")
        if found.status == 2:
            return None
        assert found.status == 0, f"linear program: {found.message}"
        least = float(found.fun) - most_moved - _TOLERANCE
        return Relaxed(
            step_ms=max(self._kernel_ms + least, 0.0) if self._peak is None else 0.0,
            peak_bytes=least * self._unit if self._peak is not None else 0.0,
            offloaded=self._shares(self._offload, found.x),
            recomputed=self._shares(self._recompute, found.x),
        )

    def _shares(self, columns: dict[int, int], values: Sequence[float]) -> tuple[float, ...]:
        return tuple(float(values[columns[i]]) if i in columns else 0.0 for i in range(len(self._items)))


@dataclass(frozen=True)
class _Group:
    """Items that share a flow, and the bytes of device memory that a millisecond of their copies stands for."""

    items: tuple[int, ...]
    most_bytes_per_ms: float
    least_bytes_per_ms: float


def _groups(problem: Problem) -> list[_Group]:
    """Group the items that may be offloaded by their bytes per millisecond of copying, into few groups."""
    items = problem.trace.items
    able = [i for i, item in enumerate(items) if "offload" in item.fates]
    out = {i: items[i].num_bytes / max(problem.d2h_ms[i], 1e-9) for i in able}
    back = {i: items[i].num_bytes / max(problem.h2d_ms[i], 1e-9) for i in able}
    step = 1.02
    while True:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for i in able:
            found[floor(log(max(out[i], 1e-9)) / log(step))].append(i)
        if len(found) <= _MAX_GROUPS:
            break
        step *= step
    return [
        _Group(tuple(members), max(out[i] for i in members), min(back[i] for i in members))
        for _, members in sorted(found.items())
    ]
