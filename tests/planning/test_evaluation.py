import pytest

from offload_runtime.planning.evaluation import Evaluator, permitted
from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Limits
from tests.planning.steps import LINK, item, step


def test_permitted_fates_come_in_order_and_an_item_without_any_is_an_error() -> None:
    items = [
        item("a", 1, (0, 0), (7, 7)),
        item("b", 1, (0, 0), (7, 7), fates=["recompute", "offload"]),
        item("c", 1, (0, 0), (7, 7), fates=["skip"]),
    ]
    problem = Problem.of(step(items), LINK)
    assert permitted(problem, 0) == ("save", "offload", "recompute")
    assert permitted(problem, 1) == ("offload", "recompute")
    assert permitted(problem, 2) == ("skip",)
    with pytest.raises(ValueError, match="d: no fate"):
        Problem.of(step([*items, item("d", 1, (0, 0), (7, 7), fates=[])]), LINK)


def test_the_score_counts_what_exceeds_the_limits_then_time_bytes_and_recomputed_items() -> None:
    items = [item("a", 10, (0, 0), (7, 7)), item("b", 4, (0, 0), (6, 6), recompute_ms=0.5)]
    problem = Problem.of(step(items), LINK)
    assert Evaluator(problem, Limits()).score(["offload", "recompute"]) == (0, 8.5, 10, 1)
    assert Evaluator(problem, Limits(budget=8, host=7)).score(["offload", "save"]) == (2 + 3, 0.0, 0, 0)
    assert Evaluator(problem, Limits(device=13)).score(["save", "save"])[0] == 1
