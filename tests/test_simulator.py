import pytest

from offload_runtime.simulator import Allocation, MemoryPeak, Tape, peak_memory


def _tape(*allocations: tuple[int, int, int], num_forward: int = 4, resident: int = 0) -> Tape:
    named = tuple(Allocation(f"t{i}", size, first, last) for i, (size, first, last) in enumerate(allocations))
    return Tape(num_forward, 4, resident, named)


def test_what_lives_at_the_same_time_adds_up() -> None:
    assert peak_memory([_tape((10, 0, 2), (20, 2, 3), (5, 3, 5))]).num_bytes == 30


def test_a_storage_is_alive_during_its_last_read() -> None:
    assert peak_memory([_tape((10, 0, 2), (20, 3, 3))]).num_bytes == 20
    assert peak_memory([_tape((10, 0, 3), (20, 3, 3))]).num_bytes == 30


def test_parameters_are_there_throughout() -> None:
    assert peak_memory([_tape(resident=7)]) == MemoryPeak(7, "forward", 0, 0)
    assert peak_memory([_tape((10, 1, 1), resident=7)]).num_bytes == 17


@pytest.mark.parametrize(
    ("allocation", "side", "position"), [((10, 2, 3), "forward", 2), ((10, 6, 7), "backward", 2)]
)
def test_the_peak_says_where_it_sits(allocation: tuple[int, int, int], side: str, position: int) -> None:
    peak = peak_memory([_tape(allocation)])
    assert (peak.side, peak.position) == (side, position)


def test_what_one_graph_keeps_for_backward_lies_under_the_next_graph() -> None:
    first = _tape((100, 1, 6), (50, 0, 1))
    second = _tape((60, 2, 3))
    peak = peak_memory([first, second])
    assert (peak.num_bytes, peak.graph) == (160, 1)


def test_what_a_graph_freed_before_backward_does_not() -> None:
    assert peak_memory([_tape((100, 0, 3)), _tape((60, 2, 3))]).num_bytes == 100


def test_no_graph_takes_no_memory() -> None:
    assert peak_memory([]).num_bytes == 0
