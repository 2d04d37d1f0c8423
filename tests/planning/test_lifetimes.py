import pytest

from offload_runtime.planning.lifetimes import Problem, effective_uses, host_curve, least_curve
from offload_runtime.step import Region
from tests.planning.steps import LINK, item, step


def test_a_saved_item_lives_until_its_last_use_and_the_others_have_a_hole() -> None:
    problem = Problem.of(step([item("a", 5, (0, 1), (5, 6))]), LINK)
    curves = {}
    for fate in ("save", "offload", "recompute"):
        curves[fate] = least_curve(problem, [fate], effective_uses(problem, [fate]))
    assert curves["save"] == [5, 5, 5, 5, 5, 5, 5, 0]
    assert curves["offload"] == curves["recompute"] == [5, 5, 0, 0, 0, 5, 5, 0]


def test_resident_bytes_and_regions_lie_under_the_items() -> None:
    trace = step([item("a", 5, (0, 1), (5, 6))], regions=[Region("r", 3, 2, 7)], resident_bytes=100)
    problem = Problem.of(trace, LINK)
    assert least_curve(problem, ["offload"], effective_uses(problem, ["offload"])) == [
        *(105, 105, 103, 103, 103, 108, 108, 103)
    ]


def test_what_is_needed_to_recompute_is_there_by_then_and_until_then() -> None:
    items = [
        item("early", 1, (0, 0), (7, 7)),
        item("late", 1, (1, 1), (5, 5)),
        item("x", 1, (2, 2), (6, 6), needs=(0, 1)),
    ]
    problem = Problem.of(step(items), LINK)
    uses = effective_uses(problem, ["save", "save", "recompute"])
    assert uses.first == [6, 5, 6]
    assert uses.last == [7, 6, 6]
    assert effective_uses(problem, ["save", "save", "save"]).first == [7, 5, 6]


def test_needs_reach_through_chains_of_recomputed_items() -> None:
    items = [
        item("a", 1, (0, 0), (7, 7)),
        item("b", 1, (1, 1), (6, 6), needs=(0,)),
        item("c", 1, (2, 2), (4, 4), needs=(1,)),
    ]
    problem = Problem.of(step(items), LINK)
    assert effective_uses(problem, ["offload", "recompute", "recompute"]).first == [4, 4, 4]
    assert effective_uses(problem, ["offload", "save", "recompute"]).first == [7, 4, 4]


def test_items_that_need_each_other_are_refused_by_name() -> None:
    items = [item("a", 1, (0, 0), (7, 7), needs=(1,)), item("b", 1, (1, 1), (6, 6), needs=(0,))]
    with pytest.raises(ValueError, match="a, b"):
        Problem.of(step(items), LINK)


def test_host_memory_is_held_until_the_reload_has_been_waited_for() -> None:
    problem = Problem.of(step([item("a", 5, (0, 1), (5, 6), ready=1)]), LINK)
    assert host_curve(problem, ["offload"], effective_uses(problem, ["offload"])) == [0, 5, 5, 5, 5, 0, 0, 0]
