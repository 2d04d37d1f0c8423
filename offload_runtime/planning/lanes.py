"""The step on three lanes: compute, copies to the host, copies to the device.

How the lanes act on each other:

- A copy to the host starts when kernel ``copy_after`` has ended and the lane is free. After kernel
  ``release_after`` compute waits for it.
- A copy to the device is issued when compute reaches kernel ``reload_before``; compute waits for it before kernel
  ``use_before``. Waits come first, then recomputation, then the kernel.
- While both directions are busy each runs at ``duplex_share`` of its speed. While any copy runs, a kernel (or a
  recomputation) takes ``1 + contention`` times as long. Start-up time counts as copying. Rates change only where a
  copy or a kernel begins or ends, so the simulation steps from one such moment to the next and is exact.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from offload_runtime.compiler import Fate
from offload_runtime.planning.lifetimes import Problem, Uses, curve_of, effective_uses
from offload_runtime.step import Copy, LinkRates, Move, Simulation, StepTrace

__all__ = ["recompute_ms_by_kernel", "simulate", "simulate_problem", "step_ms"]


def simulate(trace: StepTrace, fates: Sequence[Fate], moves: Sequence[Move], link: LinkRates) -> Simulation:
    """Run one step: ``fates`` stands in parallel to ``trace.items``, ``moves`` has one entry per offloaded item.

    Device memory is counted in issue order, as an allocator sees it: an item lives from the kernel that allocates
    it through the kernel after which it is released, whatever the time. Host memory likewise, from ``copy_after``
    until the reload has been waited for. Raises ValueError for moves that cannot be carried out.
    """
    problem = Problem.of(trace, link)
    return simulate_problem(problem, fates, moves, effective_uses(problem, fates))


def simulate_problem(
    problem: Problem, fates: Sequence[Fate], moves: Sequence[Move], uses: Uses
) -> Simulation:
    """Do what :func:`simulate` does, with what is known already."""
    _check(problem, fates, moves, uses)
    times = _Run(problem, moves, recompute_ms_by_kernel(problem, fates, uses)).run()
    return Simulation(
        starts_ms=tuple(times.starts_ms),
        ends_ms=tuple(times.ends_ms),
        copies=tuple(_copies(problem, times)),
        device_bytes=tuple(_device_bytes(problem, fates, moves, uses)),
        host_bytes=tuple(_host_bytes(problem, moves)),
    )


def step_ms(problem: Problem, fates: Sequence[Fate], moves: Sequence[Move], uses: Uses) -> float:
    """Return the step time alone: faster, for a search that asks often. ``moves`` are taken to be in order."""
    return _Run(problem, moves, recompute_ms_by_kernel(problem, fates, uses)).step_ms()


def recompute_ms_by_kernel(problem: Problem, fates: Sequence[Fate], uses: Uses) -> dict[int, float]:
    """Return how long recomputation runs right before each kernel."""
    added: defaultdict[int, float] = defaultdict(float)
    for index, duration_ms, _ in problem.recomputations:
        if fates[index] == "recompute":
            added[uses.first[index]] += duration_ms
    return dict(added)


def _check(problem: Problem, fates: Sequence[Fate], moves: Sequence[Move], uses: Uses) -> None:
    items = problem.trace.items
    offloaded = [index for index, fate in enumerate(fates) if fate == "offload"]
    if len(fates) != len(items) or sorted(move.item for move in moves) != offloaded:
        raise ValueError("there has to be a fate for each item, and a move for each that is offloaded")
    for index, fate in enumerate(fates):
        if fate == "recompute" and items[index].recompute is None:
            raise ValueError(f"{items[index].name} cannot be recomputed")
    for move in moves:
        item = items[move.item]
        forward = item.ready <= move.copy_after <= move.release_after
        backward = move.release_after < move.reload_before <= move.use_before <= uses.first[move.item]
        if not forward or not backward or move.release_after < item.last_forward_use:
            raise ValueError(f"{item.name}: a copy or a reload is out of order: {move}")


def _device_bytes(problem: Problem, fates: Sequence[Fate], moves: Sequence[Move], uses: Uses) -> list[int]:
    intervals: list[tuple[int, int, int]] = []
    for index, (item, fate) in enumerate(zip(problem.trace.items, fates, strict=True)):
        if fate in ("save", "skip"):
            intervals.append((item.created, uses.last[index], item.num_bytes))
        elif fate == "recompute":
            intervals.append((item.created, item.last_forward_use, item.num_bytes))
            intervals.append((uses.first[index], uses.last[index], item.num_bytes))
    for move in moves:
        item = problem.trace.items[move.item]
        intervals.append((item.created, move.release_after, item.num_bytes))
        intervals.append((move.reload_before, uses.last[move.item], item.num_bytes))
    return curve_of(problem.region_steps, intervals)


def _host_bytes(problem: Problem, moves: Sequence[Move]) -> list[int]:
    items = problem.trace.items
    intervals = [(move.copy_after, move.use_before - 1, items[move.item].moved_bytes) for move in moves]
    return curve_of([0] * len(problem.region_steps), intervals)


@dataclass
class _Transfer:
    """A copy on its lane; ``left_ms`` is what is left of it at full speed."""

    item: int
    left_ms: float
    start_ms: float = -1.0
    end_ms: float = -1.0
    stall_ms: float = 0.0


@dataclass
class _Times:
    starts_ms: list[float]
    ends_ms: list[float]
    d2h: list[_Transfer]
    h2d: list[_Transfer]


class _Run:
    """The clock, and the two queues of copies; a copy at the head of a queue is running."""

    def __init__(self, problem: Problem, moves: Sequence[Move], recompute_ms: dict[int, float]) -> None:
        self._durations_ms = problem.durations_ms
        self._until_ms = problem.until_ms
        self._recompute_ms = recompute_ms
        self._slow = 1 + problem.link.contention
        self._share = problem.link.duplex_share
        self._now = 0.0
        self._d2h: deque[_Transfer] = deque()
        self._h2d: deque[_Transfer] = deque()
        self._copy_after: defaultdict[int, list[_Transfer]] = defaultdict(list)
        self._release_after: defaultdict[int, list[_Transfer]] = defaultdict(list)
        self._reload_before: defaultdict[int, list[_Transfer]] = defaultdict(list)
        self._use_before: defaultdict[int, list[_Transfer]] = defaultdict(list)
        for move in sorted(moves, key=lambda m: (m.copy_after, m.item)):
            transfer = _Transfer(move.item, problem.d2h_ms[move.item])
            self._copy_after[move.copy_after].append(transfer)
            self._release_after[move.release_after].append(transfer)
        for move in sorted(moves, key=lambda m: (m.reload_before, m.use_before, m.item)):
            transfer = _Transfer(move.item, problem.h2d_ms[move.item])
            self._reload_before[move.reload_before].append(transfer)
            self._use_before[move.use_before].append(transfer)

    def run(self) -> _Times:
        """Go from kernel to kernel."""
        starts_ms: list[float] = []
        ends_ms: list[float] = []
        for kernel, duration_ms in enumerate(self._durations_ms):
            self._before(kernel)
            starts_ms.append(self._now)
            self._compute(duration_ms + self._recompute_ms.get(kernel, 0.0))
            ends_ms.append(self._now)
            self._after(kernel)
        d2h = [transfer for at in sorted(self._copy_after) for transfer in self._copy_after[at]]
        h2d = [transfer for at in sorted(self._reload_before) for transfer in self._reload_before[at]]
        return _Times(starts_ms, ends_ms, d2h, h2d)

    def step_ms(self) -> float:
        """Go from kernel to kernel where something happens besides kernels, and return the end."""
        stops = {*self._reload_before, *self._use_before, *self._recompute_ms}
        stops.update(kernel + 1 for kernel in self._copy_after)
        stops.update(kernel + 1 for kernel in self._release_after)
        until_ms = self._until_ms
        at = 0
        for kernel in sorted(stops):
            self._compute(until_ms[kernel] - until_ms[at])
            at = kernel
            self._after(kernel - 1)
            self._before(kernel)
            if kernel in self._recompute_ms:
                self._compute(self._recompute_ms[kernel])
        self._compute(until_ms[-1] - until_ms[at])
        return self._now

    def _before(self, kernel: int) -> None:
        if kernel in self._reload_before:
            self._issue(self._h2d, self._reload_before[kernel])
        if kernel in self._use_before:
            self._wait(self._use_before[kernel])

    def _after(self, kernel: int) -> None:
        if kernel in self._copy_after:
            self._issue(self._d2h, self._copy_after[kernel])
        if kernel in self._release_after:
            self._wait(self._release_after[kernel])

    def _issue(self, lane: deque[_Transfer], transfers: list[_Transfer]) -> None:
        if not lane:
            transfers[0].start_ms = self._now
        lane.extend(transfers)
        self._retire(lane)

    def _retire(self, lane: deque[_Transfer]) -> None:
        """Take what is done off the head of a lane, and start what follows."""
        while lane and lane[0].left_ms <= 0:
            lane.popleft().end_ms = self._now
            if lane:
                lane[0].start_ms = self._now

    def _wait(self, transfers: list[_Transfer]) -> None:
        for transfer in transfers:
            before = self._now
            while transfer.end_ms < 0:
                self._advance()
            transfer.stall_ms = self._now - before

    def _compute(self, work_ms: float) -> None:
        while self._d2h or self._h2d:
            if self._d2h and self._h2d:
                until_ms = min(self._d2h[0].left_ms, self._h2d[0].left_ms) / self._share
                if work_ms * self._slow < until_ms:
                    self._advance(work_ms * self._slow)
                    return
                work_ms -= until_ms / self._slow
                self._advance()
                continue
            lane = self._d2h or self._h2d
            head = lane[0]
            if work_ms * self._slow < head.left_ms:
                head.left_ms -= work_ms * self._slow
                self._now += work_ms * self._slow
                return
            work_ms -= head.left_ms / self._slow
            self._now += head.left_ms
            head.left_ms = 0.0
            self._retire(lane)
        self._now += max(work_ms, 0.0)

    def _advance(self, wall_ms: float | None = None) -> None:
        """Let the running copies run for ``wall_ms``, at most (None: exactly) until the first of them ends."""
        lanes = [lane for lane in (self._d2h, self._h2d) if lane]
        share = self._share if len(lanes) == 2 else 1.0
        first_ms = min(lane[0].left_ms for lane in lanes)
        if wall_ms is None or wall_ms * share >= first_ms:
            wall_ms = first_ms / share
            copied_ms = first_ms
        else:
            copied_ms = wall_ms * share
        self._now += wall_ms
        for lane in lanes:
            lane[0].left_ms -= copied_ms
            self._retire(lane)


def _copies(problem: Problem, times: _Times) -> list[Copy]:
    items = problem.trace.items
    copies = [
        Copy(items[t.item].name, "d2h", items[t.item].moved_bytes, t.start_ms, t.end_ms, t.stall_ms)
        for t in times.d2h
    ]
    copies += [
        Copy(items[t.item].name, "h2d", items[t.item].moved_bytes, t.start_ms, t.end_ms, t.stall_ms)
        for t in times.h2d
    ]
    return copies
