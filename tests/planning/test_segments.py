from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.segments import cut, saved_curve, tightest_curve
from offload_runtime.step import Region
from tests.planning.steps import LINK, item, step
from tests.planning.traces import GIB, PCIE5, llama


def test_memory_is_looked_at_only_where_the_unmodified_step_exceeds_the_limit() -> None:
    trace = step([item("a", 10, (0, 1), (6, 7))], regions=[Region("r", 5, 3, 4)])
    problem = Problem.of(trace, LINK)
    segments = cut(problem, 10, num_segments=100)
    assert (segments.forward_samples, segments.backward_samples) == ((3,), (4,))
    assert segments.forward[-1] == 4
    assert segments.backward[-1] == 8


def test_a_long_step_is_cut_into_few_segments_with_its_highest_points_among_them() -> None:
    problem = Problem.of(llama(), PCIE5)
    curve = saved_curve(problem)
    segments = cut(problem, 30 * GIB, num_segments=150)
    assert len(segments.forward) + len(segments.backward) <= 160
    assert curve.index(max(curve)) in segments.forward_samples
    assert set(segments.forward_samples) <= set(segments.forward)
    assert set(segments.backward_samples) <= set(segments.backward)


def test_the_tightest_curve_lets_go_of_what_may_leave() -> None:
    items = [item("a", 10, (0, 1), (6, 7)), item("kept", 3, (0, 1), (6, 7), fates=["save"])]
    problem = Problem.of(step(items), LINK)
    assert tightest_curve(problem) == [13, 13, 3, 3, 3, 3, 13, 13]
