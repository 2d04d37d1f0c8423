from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.hardware import Figure, HardwareProfile
from offload_runtime.offload_options import Measure, best_option, ladder, offload_options, recompute
from offload_runtime.training_state import TrainingShape

GB = 10**9
BILLION = 10**9


def machine(**figures: float) -> HardwareProfile:
    """32 GB/s both ways, 80 GB; ``adamw_rate`` in G parameters/s, ``host_memory`` in GB."""
    stated = [
        Figure("device.memory", 80, "GB", "test"),
        Figure("link.d2h", 32, "GB/s", "test"),
        Figure("link.h2d", 32, "GB/s", "test"),
    ]
    if "adamw_rate" in figures:
        stated.append(Figure("host.adamw_rate", figures["adamw_rate"], "Gparam/s", "test"))
    if "host_memory" in figures:
        stated.append(Figure("host.memory", figures["host_memory"], "GB", "test"))
    return HardwareProfile("test", "A test.", tuple(stated))


def kinds(measures: tuple[Measure, ...]) -> list[str]:
    return [measure.kind for measure in measures]


def test_the_order_is_that_of_bytes_freed_for_bytes_moved() -> None:
    rungs = ladder(TrainingShape(10 * BILLION, activation_bytes=10 * GB), machine())
    assert kinds(rungs) == ["optimizer_state", "gradients", "parameters", "activations"]
    assert [rung.freed_per_moved for rung in rungs] == [3, None, 1, 0.5]


def test_each_kind_moves_what_those_before_it_have_not_moved_already() -> None:
    optimizer, gradients, parameters = ladder(TrainingShape(10 * BILLION), machine())
    assert (optimizer.freed_bytes, optimizer.d2h_bytes, optimizer.h2d_bytes) == (120 * GB, 20 * GB, 20 * GB)
    assert (gradients.freed_bytes, gradients.moved_bytes) == (20 * GB, 0)
    # Twice in a step, of which the update that the optimizer sends is one.
    assert (parameters.freed_bytes, parameters.d2h_bytes, parameters.h2d_bytes) == (20 * GB, 0, 20 * GB)
    assert optimizer.host_bytes == 160 * GB


def test_a_step_on_the_gpu_fetches_the_state_and_sends_it_back() -> None:
    optimizer, gradients, parameters = ladder(TrainingShape(10 * BILLION, step_device="gpu"), machine())
    assert (optimizer.d2h_bytes, optimizer.h2d_bytes, optimizer.cpu_ms) == (120 * GB, 120 * GB, 0)
    assert (gradients.d2h_bytes, gradients.h2d_bytes) == (20 * GB, 20 * GB)
    assert (parameters.d2h_bytes, parameters.h2d_bytes) == (20 * GB, 40 * GB)


def test_an_optimizer_without_state_is_no_rung() -> None:
    rungs = ladder(TrainingShape(BILLION, optimizer="sgd", master_weights=False), machine())
    assert kinds(rungs) == ["gradients", "parameters"]
    assert rungs[0].moved_bytes == 2 * 2 * GB


def test_a_rank_moves_and_steps_its_own_shard() -> None:
    shape = TrainingShape(10 * BILLION, num_ranks=4, sharding="optimizer")
    optimizer = ladder(shape, machine(adamw_rate=1))[0]
    assert (optimizer.freed_bytes, optimizer.d2h_bytes, optimizer.h2d_bytes) == (30 * GB, 5 * GB, 5 * GB)
    assert optimizer.cpu_ms == pytest.approx(2500)


def test_recomputing_costs_one_more_forward() -> None:
    again = recompute(TrainingShape(BILLION, activation_bytes=6 * GB), 300)
    assert again is not None
    assert (again.freed_bytes, again.moved_bytes, again.compute_ms) == (6 * GB, 0, pytest.approx(100))
    assert recompute(TrainingShape(BILLION), 300) is None


def test_nothing_needed_is_no_option() -> None:
    assert offload_options(TrainingShape(BILLION), machine(), step_ms=250, needed_bytes=0) == ()


def test_activations_that_forward_hides_leave_for_free() -> None:
    # A third of 300 ms at 32 GB/s: 3.2 GB.
    shape = TrainingShape(BILLION, activation_bytes=40 * GB)
    free = best_option(offload_options(shape, machine(adamw_rate=1), step_ms=300, needed_bytes=3 * GB), None)
    assert free is not None
    assert kinds(free.measures) == ["activations"]
    assert (free.freed_bytes, free.stall_ms) == (3 * GB, 0)


def test_what_forward_does_not_hide_is_recomputed_where_that_is_cheaper_than_waiting() -> None:
    shape = TrainingShape(BILLION, activation_bytes=40 * GB)
    best = best_option(offload_options(shape, machine(adamw_rate=1), step_ms=300, needed_bytes=10 * GB), None)
    assert best is not None
    assert kinds(best.measures) == ["activations", "recompute"]
    # 3.2 GB leave for free; 6.8 of 40 GB are recomputed in that share of 100 ms. Waiting would take 6.8 / 32 s.
    assert best.stall_ms == pytest.approx(100 * 6.8 / 40, rel=1e-3)


def test_a_large_window_offloads_optimizer_state_first() -> None:
    shape = TrainingShape(10 * BILLION, step_ms=20_000)
    best = best_option(
        offload_options(shape, machine(adamw_rate=50), step_ms=20_000, needed_bytes=60 * GB), None
    )
    assert best is not None
    assert [(m.kind, m.fraction) for m in best.measures] == [("optimizer_state", 0.5)]
    assert best.stall_ms == pytest.approx(100)  # half of 10 G parameters at 50 G/s; the copies are hidden


def test_copies_beyond_the_window_stall() -> None:
    # The seed's case: 40 GB at 32 GB/s against 250 ms.
    options = offload_options(
        TrainingShape(10 * BILLION), machine(adamw_rate=1000), step_ms=250, needed_bytes=120 * GB
    )
    best = best_option(options, None)
    assert best is not None
    assert best.stall_ms == pytest.approx(1250 - 250 + 10)


def test_an_unknown_time_is_an_unknown_stall_and_known_ones_come_first() -> None:
    shape = TrainingShape(BILLION, activation_bytes=4 * GB)
    without_rate = offload_options(shape, machine(), step_ms=300, needed_bytes=2 * GB)
    stalls = {tuple(kinds(option.measures)): option.stall_ms for option in without_rate}
    assert stalls[("optimizer_state",)] is None
    assert stalls[("activations",)] == 0
    best = best_option(without_rate, None)
    assert best is not None
    assert kinds(best.measures) == ["activations"]
    assert all(
        o.stall_ms is None for o in offload_options(shape, machine(), step_ms=None, needed_bytes=2 * GB)
    )


def test_an_option_that_the_host_cannot_hold_is_passed_over() -> None:
    shape = TrainingShape(10 * BILLION)
    options = offload_options(shape, machine(adamw_rate=1), step_ms=250, needed_bytes=120 * GB)
    assert options
    assert best_option(options, 100 * GB) is None
    assert best_option(options, 200 * GB) is not None


def test_more_than_everything_cannot_be_freed() -> None:
    assert offload_options(TrainingShape(BILLION), machine(), step_ms=250, needed_bytes=17 * GB) == ()


SHAPES = st.builds(
    TrainingShape,
    num_parameters=st.integers(1, 10**11),
    parameter_dtype=st.sampled_from(["float32", "bfloat16"]),
    optimizer=st.sampled_from(["adamw", "sgd-momentum", "sgd", "none"]),
    master_weights=st.booleans(),
    activation_bytes=st.none() | st.integers(0, 10**11),
    num_ranks=st.integers(1, 64),
    sharding=st.sampled_from(["none", "optimizer", "gradients", "full"]),
    step_device=st.sampled_from(["cpu", "gpu"]),
)


@given(SHAPES, st.floats(1, 1e5), st.floats(0.001, 1.2))
def test_every_option_frees_what_is_needed_and_takes_nothing_that_is_not(
    shape: TrainingShape, step_ms: float, share: float
) -> None:
    hardware = machine(adamw_rate=4.6)
    everything = sum(rung.freed_bytes for rung in ladder(shape, hardware))
    needed = int(everything * share)
    options = offload_options(shape, hardware, step_ms=step_ms, needed_bytes=needed)
    assert bool(options) == (0 < needed <= everything)
    for option in options:
        assert option.freed_bytes >= needed
        assert option.stall_ms is not None
        assert option.stall_ms >= 0
        for index, measure in enumerate(option.measures):
            assert 0 < measure.fraction <= 1
            # Without any one of them it is not enough.
            rest = option.measures[:index] + option.measures[index + 1 :]
            assert sum(other.freed_bytes for other in rest) < needed
    best = best_option(options, None)
    least_ms = min((option.stall_ms or 0.0 for option in options), default=0.0)
    assert best is None or best.stall_ms == pytest.approx(least_ms, abs=1e-6)  # a nanosecond is no difference


@given(SHAPES, st.floats(0.01, 1))
def test_a_part_of_a_measure_is_that_part_of_its_costs(shape: TrainingShape, fraction: float) -> None:
    for rung in ladder(shape, machine(adamw_rate=2)):
        part = rung.scaled(fraction)
        assert part.link_ms == pytest.approx(rung.link_ms * fraction)
        assert part.freed_bytes >= rung.freed_bytes * fraction
        assert part.freed_bytes < rung.freed_bytes * fraction + 1
        assert replace(rung.scaled(1.0)) == rung
