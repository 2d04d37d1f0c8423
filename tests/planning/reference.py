"""The optimum of small steps, by trying everything."""

from __future__ import annotations

import random
from collections.abc import Sequence

from offload_runtime.compiler import Fate
from offload_runtime.planning import Limits, place, simulate
from offload_runtime.step import LinkRates, Simulation, StepTrace
from tests.planning.traces import all_fates

Key = tuple[float, int, int]


def key_of(trace: StepTrace, fates: Sequence[Fate], simulation: Simulation) -> Key:
    """What is minimised: step time, then moved bytes, then the number of recomputed items."""
    moved = sum(item.moved_bytes for item, fate in zip(trace.items, fates, strict=True) if fate == "offload")
    return (round(simulation.step_ms, 6), moved, sum(fate == "recompute" for fate in fates))


def fits(trace: StepTrace, fates: Sequence[Fate], simulation: Simulation, limits: Limits) -> bool:
    moved = key_of(trace, fates, simulation)[1]
    return (
        (limits.device is None or simulation.peak_bytes <= limits.device)
        and (limits.host is None or max(simulation.host_bytes) <= limits.host)
        and (limits.budget is None or moved <= limits.budget)
        and (limits.step_ms is None or simulation.step_ms <= limits.step_ms + 1e-6)
    )


def least_time(trace: StepTrace, link: LinkRates, limits: Limits) -> Key | None:
    """The least key over all combinations of fates, each with its placement; None if nothing fits."""
    keys = []
    for fates in all_fates(trace):
        simulation = simulate(trace, fates, place(trace, fates, link, limits.device), link)
        if fits(trace, fates, simulation, limits):
            keys.append(key_of(trace, fates, simulation))
    return min(keys, default=None)


def least_peak(trace: StepTrace, link: LinkRates, limits: Limits) -> int | None:
    """The least device limit at which some combination keeps to the other limits; None if there is none."""
    unlimited = [simulate(trace, fates, place(trace, fates, link, None), link) for fates in all_fates(trace)]
    for device in range(max(simulation.peak_bytes for simulation in unlimited) + 1):
        within = Limits(device, limits.step_ms, limits.host, limits.budget)
        if least_time(trace, link, within) is not None:
            return device
    return None


def random_limits(seed: int, trace: StepTrace, link: LinkRates) -> Limits:
    """A device limit between what can hardly be held and what holds anyway; sometimes host limit and budget."""
    rng = random.Random(seed)
    peaks = [simulate(trace, f, place(trace, f, link, 0), link).peak_bytes for f in all_fates(trace)]
    return Limits(
        device=rng.randint(min(peaks) - 2, max(peaks)),
        host=rng.choice((None, None, rng.randint(20, 150))),
        budget=rng.choice((None, None, rng.randint(20, 150))),
    )
