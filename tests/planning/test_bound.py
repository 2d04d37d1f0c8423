import random

import pytest

from offload_runtime.compiler import Fate
from offload_runtime.planning import Limits, peak_bound, simulate, step_bound
from offload_runtime.planning.lifetimes import Problem, effective_uses
from offload_runtime.step import LinkRates, Move, Region, StepTrace
from tests.planning.reference import least_time, random_limits
from tests.planning.steps import LINK, item, step
from tests.planning.traces import all_fates, small


@pytest.mark.parametrize("seed", range(200))
def test_the_bound_never_exceeds_the_optimum(seed: int) -> None:
    trace, link = small(seed, max_items=5)
    limits = random_limits(seed, trace, link)
    best = least_time(trace, link, limits)
    bound = step_bound(trace, link, limits)
    assert bound is not None
    if best is not None:
        assert bound <= best[0] + 1e-6


@pytest.mark.parametrize("seed", range(200))
def test_no_placement_whatever_beats_the_bounds(seed: int) -> None:
    trace, link = small(seed)
    rng = random.Random(seed)
    for _ in range(5):
        fates = rng.choice(all_fates(trace))
        moves = _random_moves(rng, trace, link, fates)
        simulation = simulate(trace, fates, moves, link)
        time = step_bound(trace, link, Limits(device=simulation.peak_bytes, host=max(simulation.host_bytes)))
        assert time is not None
        assert time <= simulation.step_ms + 1e-6
        peak = peak_bound(trace, link, Limits(step_ms=simulation.step_ms + 1e-9))
        assert peak is not None
        assert peak <= simulation.peak_bytes + 1e-4


def _random_moves(
    rng: random.Random, trace: StepTrace, link: LinkRates, fates: tuple[Fate, ...]
) -> list[Move]:
    first = effective_uses(Problem.of(trace, link), fates).first
    moves = []
    for index, fate in enumerate(fates):
        if fate == "offload":
            saved = trace.items[index]
            copy_after = rng.randrange(saved.ready, trace.num_forward)
            least = max(saved.last_forward_use, copy_after)
            release_after = rng.randrange(least, trace.num_forward)
            reload_before = rng.randint(trace.num_forward, first[index])
            moves.append(Move(index, copy_after, release_after, reload_before, first[index]))
    return moves


def test_a_stall_that_cannot_be_avoided_is_in_the_bound() -> None:
    # At kernel 3 at most 10 of the 40 bytes may be left: 30 in the two kernels between, in which 20 can be copied.
    trace = step([item("a", 40, (0, 0), (7, 7), fates=["save", "offload"])], regions=[Region("r", 50, 3, 3)])
    assert step_bound(trace, LINK, Limits(device=60)) == pytest.approx(8 + 1)
    assert step_bound(trace, LINK, Limits()) == pytest.approx(8.0)


def test_what_contention_costs_is_in_the_bound() -> None:
    link = LinkRates(10.0, 10.0, contention=0.25)
    trace = step([item("a", 10, (0, 0), (7, 7), fates=["offload"])])
    # 2 ms of copying cover 1.6 ms of kernels.
    assert step_bound(trace, link, Limits()) == pytest.approx(8.4)


def test_a_limit_below_the_fluid_floor_has_no_finite_bound() -> None:
    trace = step([item("a", 40, (0, 2), (6, 7))])
    assert step_bound(trace, LINK, Limits(device=39)) == float("inf")
    assert peak_bound(trace, LINK, Limits()) == pytest.approx(40.0)
