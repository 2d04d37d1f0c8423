import pytest

from offload_runtime.planning.evaluation import Evaluator, untouched
from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Limits
from offload_runtime.planning.relaxation import Relaxed, relax
from offload_runtime.planning.rounding import repair, rounded
from offload_runtime.step import Region
from tests.planning.steps import LINK, item, step
from tests.planning.traces import GIB, PCIE5, llama, small


def test_halves_of_equal_items_become_every_second_item() -> None:
    items = [item(f"i{n}", 10, (n, n), (15 - n, 15 - n)) for n in range(6)]
    problem = Problem.of(step(items, num_forward=8, num_backward=8), LINK)
    halves = Relaxed(0.0, 0.0, (0.5,) * 6, (0.0,) * 6)
    fates = rounded(problem, halves)
    assert fates == ("offload", "save") * 3


def test_whole_fractions_stay_what_they_are() -> None:
    items = [item(f"i{n}", 10, (n, n), (15 - n, 15 - n)) for n in range(3)]
    problem = Problem.of(step(items, num_forward=8, num_backward=8), LINK)
    assert rounded(problem, Relaxed(0.0, 0.0, (1.0, 0.0, 0.0), (0.0, 0.0, 1.0))) == (
        "offload",
        "save",
        "recompute",
    )


@pytest.mark.parametrize("target_gib", [40, 36, 32])
def test_rounding_keeps_close_to_the_bytes_of_the_relaxation(target_gib: int) -> None:
    problem = Problem.of(llama(), PCIE5)
    relaxed = relax(problem, Limits(device=target_gib * GIB))
    assert relaxed is not None
    items = problem.trace.items
    fluid = sum(share * item.moved_bytes for share, item in zip(relaxed.offloaded, items, strict=True))
    whole = Evaluator(problem, Limits()).moved_bytes(rounded(problem, relaxed))
    assert abs(whole - fluid) <= max(item.moved_bytes for item in items)


def test_repair_takes_the_cheapest_time_per_byte() -> None:
    items = [
        item("dear", 10, (0, 0), (15, 15), fates=["save", "recompute"], recompute_ms=2.0),
        item("cheap", 10, (0, 0), (15, 15), fates=["save", "recompute"], recompute_ms=0.5),
    ]
    trace = step(items, num_forward=8, num_backward=8, regions=[Region("r", 10, 7, 7)])
    evaluator = Evaluator(Problem.of(trace, LINK), Limits(device=20))
    assert repair(evaluator, ["save", "save"]) == ("save", "recompute")
    assert repair(evaluator, ["save", "save"], fixed=[1]) == ("recompute", "save")
    assert repair(evaluator, ["save", "save"], fixed=[0, 1]) is None


@pytest.mark.parametrize("seed", range(80))
def test_what_is_repaired_fits(seed: int) -> None:
    trace, link = small(seed)
    problem = Problem.of(trace, link)
    peak = Evaluator(problem, Limits()).plan(untouched(problem)).simulation.peak_bytes
    evaluator = Evaluator(problem, Limits(device=int(peak * 0.9), budget=60))
    fates = repair(evaluator, untouched(problem))
    if fates is not None:
        assert evaluator.score(fates)[0] == 0
