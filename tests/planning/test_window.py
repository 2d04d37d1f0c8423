import pytest

from offload_runtime.planning.window import window_bound
from offload_runtime.step import Region
from tests.planning.steps import LINK, item, step
from tests.planning.traces import PCIE5, llama


def test_the_window_is_what_the_link_carries_from_the_first_saved_byte_to_the_peak() -> None:
    trace = step([item("a", 5, (1, 1), (12, 13))], num_forward=10, regions=[Region("r", 9, 6, 6)])
    window = window_bound(trace, LINK)
    assert (window.opens_after, window.peak_at, window.peak_bytes) == (1, 6, 14)
    # Kernels 2 to 5.
    assert (window.duration_ms, window.num_bytes) == (4.0, 40)


def test_the_window_closes_with_forward_where_the_peak_comes_later() -> None:
    trace = step([item("a", 5, (1, 1), (12, 13))], num_forward=10, regions=[Region("r", 9, 12, 12)])
    window = window_bound(trace, LINK)
    assert (window.peak_at, window.duration_ms) == (12, 8.0)


def test_items_that_may_not_be_offloaded_open_no_window() -> None:
    trace = step([item("a", 5, (1, 1), (12, 13), fates=["save", "recompute"])], num_forward=10)
    window = window_bound(trace, LINK)
    assert (window.opens_after, window.num_bytes) == (None, 0)


def test_a_decoder_of_eight_billion_parameters_has_a_window_of_its_forward() -> None:
    trace = llama()
    window = window_bound(trace, PCIE5)
    forward_ms = sum(kernel.duration_ms for kernel in trace.kernels[: trace.num_forward])
    assert window.duration_ms == pytest.approx(forward_ms, rel=0.05)
