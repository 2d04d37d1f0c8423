import pytest

from offload_runtime.compiler import Fate
from offload_runtime.planning.floor import floor_fates, holders_at, infeasible
from offload_runtime.planning.lifetimes import Problem, effective_uses, least_curve
from offload_runtime.planning.limits import Holder, Limits
from offload_runtime.step import Region
from tests.planning.steps import LINK, item, step
from tests.planning.traces import all_fates, small


@pytest.mark.parametrize("seed", range(100))
def test_the_floor_of_a_small_step_is_that_of_its_best_fates(seed: int) -> None:
    trace, link = small(seed)
    problem = Problem.of(trace, link)
    budget = seed if seed % 2 else None

    def peak(fates: tuple[Fate, ...]) -> int:
        return max(least_curve(problem, fates, effective_uses(problem, fates)))

    def moved(fates: tuple[Fate, ...]) -> int:
        return sum(i.moved_bytes for i, fate in zip(trace.items, fates, strict=True) if fate == "offload")

    fitting = [fates for fates in all_fates(trace) if budget is None or moved(fates) <= budget]
    found = floor_fates(problem, Limits(budget=budget))
    if not fitting:
        assert found is None
    else:
        assert found is not None
        assert peak(found) == min(map(peak, fitting))


def test_holders_add_up_to_the_floor_however_many_there_are() -> None:
    regions = [Region(f"r{number}", 2, 0, 5) for number in range(40)]
    problem = Problem.of(step([item("saved", 9, (0, 0), (7, 7))], regions=regions, resident_bytes=7), LINK)
    floor = infeasible(problem, Limits(), None)
    assert sum(holder.num_bytes for holder in floor.holders) == floor.floor_bytes


def test_holders_are_those_alive_at_the_kernel_largest_first() -> None:
    items = [item("saved", 9, (0, 0), (7, 7)), item("away", 20, (0, 0), (7, 7))]
    trace = step(items, regions=[Region("r", 5, 3, 3), Region("later", 50, 5, 5)], resident_bytes=7)
    problem = Problem.of(trace, LINK)
    assert holders_at(problem, ["save", "offload"], 3) == (
        Holder("saved", 9),
        Holder("resident", 7),
        Holder("r", 5),
    )
