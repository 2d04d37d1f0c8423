"""What can leave for free: the first number to look at before planning."""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.compiler import Fate
from offload_runtime.planning.lifetimes import Problem, effective_uses, least_curve
from offload_runtime.step import LinkRates, StepTrace

__all__ = ["Window", "window_bound"]


@dataclass(frozen=True)
class Window:
    """The time in which copies to the host lower the peak without any wait.

    It opens when the first byte that may be offloaded is ready (behind kernel ``opens_after``; None: there is no such
    byte) and closes before the kernel at which the unmodified step peaks, at the latest at the end of forward, where
    every copy has to have been waited for. ``num_bytes`` is what the link carries in ``duration_ms``.
    """

    num_bytes: int
    duration_ms: float
    opens_after: int | None
    peak_at: int
    peak_bytes: int


def window_bound(trace: StepTrace, link: LinkRates) -> Window:
    """Return link rate × time from the first saved byte to the peak of the unmodified step."""
    problem = Problem.of(trace, link)
    saved: list[Fate] = ["save"] * len(trace.items)
    curve = least_curve(problem, saved, effective_uses(problem, saved))
    peak_bytes = max(curve, default=0)
    peak_at = curve.index(peak_bytes) if curve else 0
    ready = [item.ready for item in trace.items if "offload" in item.fates]
    if not ready:
        return Window(0, 0.0, None, peak_at, peak_bytes)
    closes = min(peak_at, trace.num_forward)
    duration_ms = float(sum(problem.durations_ms[min(ready) + 1 : closes]))
    return Window(int(link.d2h_bytes_per_ms * duration_ms), duration_ms, min(ready), peak_at, peak_bytes)
