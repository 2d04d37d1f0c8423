import pytest

from offload_runtime.compiler import Fate
from offload_runtime.planning.evaluation import Evaluator
from offload_runtime.planning.lanes import simulate, step_ms
from offload_runtime.planning.lifetimes import Problem, effective_uses
from offload_runtime.planning.limits import Limits
from offload_runtime.planning.placement import place
from offload_runtime.step import LinkRates, Move
from tests.planning.steps import LINK, item, step
from tests.planning.traces import all_fates, small


def test_without_moves_the_kernels_follow_each_other() -> None:
    simulation = simulate(step([item("a", 5, (0, 1), (5, 6))]), ["save"], [], LINK)
    assert simulation.step_ms == 8.0
    assert simulation.starts_ms[:3] == (0.0, 1.0, 2.0)
    assert simulation.device_bytes == (5, 5, 5, 5, 5, 5, 5, 0)
    assert simulation.host_bytes == (0,) * 8
    assert simulation.copies == ()


def test_a_copy_that_is_hidden_costs_nothing() -> None:
    move = Move(0, copy_after=0, release_after=1, reload_before=4, use_before=5)
    simulation = simulate(step([item("a", 10, (0, 1), (5, 6))]), ["offload"], [move], LINK)
    assert simulation.step_ms == 8.0
    out, back = simulation.copies
    assert (out.direction, out.start_ms, out.end_ms, out.stall_ms) == ("d2h", 1.0, 2.0, 0.0)
    assert (back.direction, back.start_ms, back.end_ms, back.stall_ms) == ("h2d", 4.0, 5.0, 0.0)
    assert simulation.device_bytes == (10, 10, 0, 0, 10, 10, 10, 0)
    assert simulation.host_bytes == (10, 10, 10, 10, 10, 0, 0, 0)


def test_compute_waits_for_a_copy_that_is_not_done_and_the_wait_is_charged_to_it() -> None:
    move = Move(0, copy_after=0, release_after=1, reload_before=5, use_before=5)
    simulation = simulate(step([item("a", 25, (0, 1), (5, 6))]), ["offload"], [move], LINK)
    out, back = simulation.copies
    assert (out.end_ms, out.stall_ms) == (3.5, 1.5)
    assert (back.start_ms, back.stall_ms) == (6.5, 2.5)
    assert simulation.stall_ms == 4.0
    assert simulation.step_ms == 12.0
    assert simulation.hidden_fraction == pytest.approx(1 - 4.0 / 5.0)


def test_copies_of_one_direction_queue_in_the_order_of_issue() -> None:
    items = [item("a", 10, (0, 0), (7, 7)), item("b", 10, (0, 0), (6, 6))]
    moves = [Move(0, 0, 2, 5, 7), Move(1, 0, 3, 5, 6)]
    simulation = simulate(step(items), ["offload", "offload"], moves, LINK)
    order = [(copy.item, copy.direction, copy.start_ms) for copy in simulation.copies]
    assert order == [("a", "d2h", 1.0), ("b", "d2h", 2.0), ("b", "h2d", 5.0), ("a", "h2d", 6.0)]


def test_recomputing_runs_behind_the_waits_and_before_the_kernel() -> None:
    items = [item("a", 20, (0, 0), (7, 7)), item("b", 1, (1, 1), (5, 5), recompute_ms=3.0, needs=(0,))]
    move = Move(0, 0, 3, 4, 5)
    simulation = simulate(step(items), ["offload", "recompute"], [move], LINK)
    assert simulation.copies[1].stall_ms == 1.0
    assert simulation.starts_ms[5] == 6.0
    assert simulation.ends_ms[5] == 10.0
    assert simulation.device_bytes[4:] == (20, 21, 20, 20)


def test_a_kernel_takes_longer_while_a_copy_runs() -> None:
    link = LinkRates(10.0, 10.0, contention=0.5)
    move = Move(0, 0, 3, 5, 6)
    simulation = simulate(step([item("a", 15, (0, 0), (6, 7))]), ["offload"], [move], link)
    # 1.5 ms of copying cover 1 ms of kernels; the reload covers kernel 5 whole, and is done when it ends.
    assert simulation.ends_ms[1] == 2.5
    assert simulation.copies[1].stall_ms == 0.0
    assert simulation.step_ms == 9.0


def test_each_direction_slows_down_while_both_are_busy() -> None:
    items = [item("a", 10, (0, 0), (5, 5)), item("b", 40, (1, 1), (7, 7))]
    link = LinkRates(10.0, 10.0, duplex_share=0.5)
    moves = [Move(0, 0, 1, 4, 5), Move(1, 1, 4, 6, 7)]
    simulation = simulate(step(items), ["offload", "offload"], moves, link)
    copies = {(copy.item, copy.direction): copy for copy in simulation.copies}
    # b leaves from 2 to 4 alone, then shares with the reload of a, from 4: 2 ms for a's 10 bytes, the rest alone.
    assert copies["a", "h2d"].end_ms == 6.0
    assert copies["b", "d2h"].end_ms == 7.0


def test_start_up_time_counts_once_for_each_copy() -> None:
    link = LinkRates(10.0, 10.0, latency_ms=0.25)
    simulation = simulate(step([item("a", 10, (0, 0), (6, 7))]), ["offload"], [Move(0, 0, 3, 4, 6)], link)
    assert [copy.end_ms - copy.start_ms for copy in simulation.copies] == [1.25, 1.25]


@pytest.mark.parametrize(
    ("fates", "moves", "message"),
    [
        (["offload"], [], "a move for each"),
        (["save"], [Move(0, 0, 1, 4, 5)], "a move for each"),
        (["save", "save"], [], "a fate for each"),
        (["offload"], [Move(0, 0, 0, 4, 5)], "a: a copy or a reload"),
        (["offload"], [Move(0, 0, 1, 4, 6)], "a: a copy or a reload"),
        (["offload"], [Move(0, 0, 4, 4, 5)], "a: a copy or a reload"),
    ],
)
def test_moves_that_cannot_be_carried_out_are_refused(
    fates: list[Fate], moves: list[Move], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(step([item("a", 10, (0, 1), (5, 6))]), fates, moves, LINK)


def test_an_item_that_cannot_be_recomputed_is_refused() -> None:
    trace = step([item("a", 10, (0, 1), (5, 6), fates=["save"])])
    with pytest.raises(ValueError, match="a cannot be recomputed"):
        simulate(trace, ["recompute"], [], LINK)


@pytest.mark.parametrize("seed", range(60))
def test_the_fast_way_to_the_step_time_agrees_and_memory_stands_still_between_the_ends(seed: int) -> None:
    trace, link = small(seed)
    problem = Problem.of(trace, link)
    for fates in all_fates(trace)[:40]:
        moves = place(trace, fates, link, None)
        simulation = simulate(trace, fates, moves, link)
        assert step_ms(problem, fates, moves, effective_uses(problem, fates)) == pytest.approx(
            simulation.step_ms
        )
        kernels_ms = sum(kernel.duration_ms for kernel in trace.kernels)
        assert simulation.step_ms >= kernels_ms + simulation.stall_ms - 1e-9
        assert Evaluator(problem, Limits()).plan(fates).simulation == simulation
