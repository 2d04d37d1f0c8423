"""Lower bounds that no plan can beat, from the fluid relaxation."""

from __future__ import annotations

from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Limits
from offload_runtime.planning.relaxation import Relaxed, relax
from offload_runtime.step import LinkRates, StepTrace

__all__ = ["peak_bound", "relaxed_or_none", "step_bound"]


def step_bound(trace: StepTrace, link: LinkRates, limits: Limits) -> float | None:
    """Return ms below which no plan within ``limits`` takes a step; infinity if there is none, None without scipy."""
    try:
        relaxed = relax(Problem.of(trace, link), limits)
    except ImportError:
        return None
    return float("inf") if relaxed is None else relaxed.step_ms


def peak_bound(trace: StepTrace, link: LinkRates, limits: Limits) -> float | None:
    """Return bytes below which no plan within ``limits`` peaks; infinity if there is none, None without scipy.

    The device limit among ``limits`` is not looked at.
    """
    try:
        relaxed = relax(Problem.of(trace, link), limits, least_peak=True)
    except ImportError:
        return None
    return float("inf") if relaxed is None else relaxed.peak_bytes


def relaxed_or_none(problem: Problem, limits: Limits, *, least_peak: bool = False) -> Relaxed | None:
    """Return the relaxation's optimum; None without scipy, or where not even the relaxation fits."""
    try:
        return relax(problem, limits, least_peak=least_peak)
    except ImportError:
        return None
