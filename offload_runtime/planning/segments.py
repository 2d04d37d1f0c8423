"""The time line cut into segments: where the linear relaxation looks at memory, and how finely it sees time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from offload_runtime.compiler import Fate
from offload_runtime.planning.lifetimes import Problem, effective_uses, least_curve

__all__ = ["Segments", "cut", "saved_curve", "tightest_curve"]


@dataclass(frozen=True)
class Segments:
    """Runs of kernels. ``forward`` and ``backward`` hold the first kernel of each run, and one more: the end.

    ``forward_samples`` and ``backward_samples`` are the kernels at which memory is looked at, each the first of a run.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_samples: tuple[int, ...]
    backward_samples: tuple[int, ...]


def saved_curve(problem: Problem) -> list[int]:
    """Return device bytes per kernel of the step with everything saved, permitted or not: the unmodified step."""
    fates: list[Fate] = ["save"] * len(problem.trace.items)
    return least_curve(problem, fates, effective_uses(problem, fates))


def tightest_curve(problem: Problem) -> list[int]:
    """Return device bytes per kernel when every item that may leave the device does, at once and by itself."""
    leaves: list[Fate] = [
        "save" if item.fates <= {"save", "skip"} else "offload" for item in problem.trace.items
    ]
    return least_curve(problem, leaves, effective_uses(problem, leaves))


def cut(problem: Problem, above_bytes: int, *, num_segments: int) -> Segments:
    """Cut the time line into about ``num_segments`` runs of kernels.

    Memory is looked at where the unmodified step exceeds ``above_bytes``, at the highest points of about a quarter
    of ``num_segments`` stretches of forward and of backward. Leaving kernels out only takes constraints away, which
    keeps the relaxation a bound.
    """
    num_kernels, num_forward = len(problem.durations_ms), problem.trace.num_forward
    curves = saved_curve(problem), tightest_curve(problem)
    over = [kernel for kernel in range(num_kernels) if curves[0][kernel] > above_bytes]
    turn = bisect_left(over, num_forward)
    count = num_segments // 4
    forward_samples = _highest(over[:turn], curves, count)
    backward_samples = _highest(over[turn:], curves, count)
    return Segments(
        (*sorted({0, *forward_samples, *_even(problem, 0, num_forward, count)}), num_forward),
        (
            *sorted({num_forward, *backward_samples, *_even(problem, num_forward, num_kernels, count)}),
            num_kernels,
        ),
        forward_samples,
        backward_samples,
    )


def _highest(kernels: Sequence[int], curves: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """Return the highest points of each curve in ``count / 2`` stretches of ``kernels``."""
    size = max(1, -(-len(kernels) * len(curves) // max(count, 1)))
    if len(kernels) <= count:
        size = 1
    stretches = [kernels[start : start + size] for start in range(0, len(kernels), size)]
    return tuple(sorted({max(stretch, key=curve.__getitem__) for stretch in stretches for curve in curves}))


def _even(problem: Problem, start: int, stop: int, count: int) -> list[int]:
    """Return the kernels in ``start .. stop`` that cut the stretch into ``count`` parts of equal time."""
    ends_ms = list(accumulate(problem.durations_ms[start:stop]))
    total_ms = ends_ms[-1] if ends_ms else 0.0
    found = {start + bisect_left(ends_ms, total_ms * part / count) for part in range(1, count)}
    return sorted(kernel for kernel in found if start < kernel < stop)
