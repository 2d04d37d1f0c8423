import pytest

from offload_runtime.planning.lanes import simulate
from offload_runtime.planning.lifetimes import Problem, effective_uses, least_curve
from offload_runtime.planning.placement import COPY_MARGIN, place
from offload_runtime.step import LinkRates, Region
from tests.planning.steps import LINK, item, step
from tests.planning.traces import GIB, PCIE5, all_fates, llama, small


def test_a_copy_leaves_when_the_item_is_ready_and_is_released_when_it_is_done_with_margin() -> None:
    trace = step([item("a", 20, (0, 1), (15, 16), ready=1)], num_forward=10, num_backward=10)
    (move,) = place(trace, ["offload"], LINK, None)
    # Ready after kernel 1, at 2 ms; 2 ms of copying and the margin end within kernel 4.
    assert (move.copy_after, move.release_after) == (1, 4)
    assert place(trace, ["offload"], LINK, None, margin=0.0)[0].release_after == 3


def test_nothing_is_released_before_its_last_forward_use_or_after_forward() -> None:
    trace = step(
        [item("a", 10, (0, 8), (15, 16), ready=0), item("b", 500, (1, 1), (17, 17))],
        num_forward=10,
        num_backward=10,
    )
    moves = place(trace, ["offload", "offload"], LINK, None)
    assert [move.release_after for move in moves] == [8, 9]


def test_memory_moves_the_release_forward_and_the_copies_that_are_done_first_go_first() -> None:
    items = [item(name, 20, (at, at), (16 - at, 16 - at)) for at, name in enumerate("abc")]
    trace = step(items, num_forward=10, num_backward=10, regions=[Region("r", 30, 4, 6)])
    fates = ["offload"] * 3
    moves = place(trace, fates, LINK, 50)
    # Kernel 2 has room for one more beside c, kernel 4 for one; the last is done within kernel 6.
    assert [move.release_after for move in moves] == [1, 3, 6]
    assert simulate(trace, fates, moves, LINK).peak_bytes <= 50
    assert [move.release_after for move in place(trace, fates, LINK, 40)] == [1, 3, 3]


def test_a_reload_starts_as_late_as_it_may_with_margin() -> None:
    trace = step([item("a", 20, (0, 0), (18, 19))], num_forward=10, num_backward=10)
    (move,) = place(trace, ["offload"], LINK, None)
    # Due at kernel 18: 2.2 ms before it, within kernel 15.
    assert (move.reload_before, move.use_before) == (15, 18)


def test_reloads_start_earlier_where_the_lane_is_busy() -> None:
    items = [item("a", 20, (0, 0), (17, 18)), item("b", 20, (1, 1), (18, 19))]
    moves = place(
        step(items, num_forward=10, num_backward=10), ["offload", "offload"], LINK, None, margin=0.0
    )
    # b needs 16 to 18, so a has to be back at 16.
    assert [move.reload_before for move in moves] == [14, 16]


def test_a_reload_starts_late_where_memory_has_no_room_and_compute_waits() -> None:
    trace = step(
        [item("a", 20, (0, 0), (18, 19))], num_forward=10, num_backward=10, regions=[Region("r", 30, 10, 16)]
    )
    moves = place(trace, ["offload"], LINK, 40)
    assert moves[0].reload_before == 17
    simulation = simulate(trace, ["offload"], moves, LINK)
    assert simulation.peak_bytes <= 40
    assert simulation.copies[1].stall_ms == 1.0


@pytest.mark.parametrize("seed", range(120))
def test_the_limit_holds_whenever_some_placement_can_hold_it(seed: int) -> None:
    trace, link = small(seed)
    problem = Problem.of(trace, link)
    for fates in all_fates(trace)[:60]:
        least = max(least_curve(problem, fates, effective_uses(problem, fates)))
        for limit in (least, least + 7, least + 40):
            assert simulate(trace, fates, place(trace, fates, link, limit), link).peak_bytes <= limit


@pytest.mark.parametrize("slower", [1.02, 1.08])
@pytest.mark.parametrize("layers", [16, 32])
def test_a_link_that_is_a_little_slower_than_predicted_stalls_nothing(slower: float, layers: int) -> None:
    trace = llama(layers)
    # What the link carries within forward with the margin to spare: every second of the two projections.
    fates = ["offload" if item.name.startswith(("q", "gate")) else "save" for item in trace.items]
    moves = place(trace, fates, PCIE5, 36 * GIB)
    link = LinkRates(PCIE5.d2h_bytes_per_ms / slower, PCIE5.h2d_bytes_per_ms / slower)
    assert slower < 1 + COPY_MARGIN
    assert simulate(trace, fates, moves, link).stall_ms == 0.0
