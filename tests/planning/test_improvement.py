import pytest

from offload_runtime.planning.evaluation import Evaluator
from offload_runtime.planning.improvement import improve
from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Limits
from tests.planning.traces import GIB, PCIE5, all_fates, llama, small


def test_needless_offloads_and_recomputation_are_dropped() -> None:
    problem = Problem.of(llama(4), PCIE5)
    evaluator = Evaluator(problem, Limits(device=40 * GIB))
    fates = ["recompute" if item.recompute else "offload" for item in problem.trace.items]
    assert set(improve(evaluator, fates, num_evaluations=500)) == {"save"}


@pytest.mark.parametrize("seed", range(60))
def test_the_result_fits_and_is_no_worse(seed: int) -> None:
    trace, link = small(seed)
    evaluator = Evaluator(Problem.of(trace, link), Limits(device=120))
    for fates in all_fates(trace)[:10]:
        if evaluator.score(fates)[0] == 0:
            assert evaluator.score(improve(evaluator, fates, num_evaluations=50)) <= evaluator.score(fates)


def test_the_number_of_judgements_is_bounded() -> None:
    problem = Problem.of(llama(8, with_act=True), PCIE5)
    evaluator = Evaluator(problem, Limits(device=24 * GIB))
    fates = ["offload"] * len(problem.trace.items)
    before = evaluator.num_judged
    improve(evaluator, fates, num_evaluations=40)
    # A repair that has begun is finished.
    assert evaluator.num_judged - before <= 40 + len(fates)
