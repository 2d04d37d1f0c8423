"""The figures worked out in the documents on offload arithmetic, and the sentences around them."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.hardware import Figure, HardwareProfile, list_hardware, load_hardware
from offload_runtime.tier_lines import ArithmeticLine, arithmetic_sections
from offload_runtime.tier_verdict import arithmetic_verdict
from offload_runtime.tiers import (
    DeviceDemand,
    OffloadArithmetic,
    TrainingShape,
    offload_arithmetic,
    step_time_ms,
)

GB = 10**9
GIB = 1 << 30
BILLION = 10**9
PCIE4 = (
    Figure("device.memory", 80, "GB", "datasheet"),
    Figure("device.hbm_rate", 2, "TB/s", "datasheet"),
    Figure("link.d2h", 32, "GB/s", "PCIe 4.0 x16 in theory"),
    Figure("link.h2d", 32, "GB/s", "PCIe 4.0 x16 in theory"),
)


def machine(*more: Figure) -> HardwareProfile:
    return HardwareProfile("pcie4", "A GPU of 80 GB behind PCIe 4.0 x16 in theory.", (*PCIE4, *more))


def lines_of(arithmetic: OffloadArithmetic) -> list[ArithmeticLine]:
    return [line for section in arithmetic_sections(arithmetic) for line in section.lines]


def line(arithmetic: OffloadArithmetic, label: str) -> ArithmeticLine:
    (found,) = [line for line in lines_of(arithmetic) if line.label == label]
    return found


@pytest.fixture
def worked_example() -> OffloadArithmetic:
    """10 billion parameters, mixed-precision Adam, 32 GB/s, 250 ms of compute."""
    return offload_arithmetic(machine(), TrainingShape(10 * BILLION, step_ms=250))


@pytest.mark.parametrize(
    ("label", "value", "unit"),
    [
        ("state for one parameter", 16, "B"),
        ("model state", 160 * GB / GIB, "GiB"),
        ("more than fits", 80 * GB / GIB, "GiB"),
        ("what a step can hide, device to host", 8 * GB / GIB, "GiB"),
        ("what a step can hide, host to device", 8 * GB / GIB, "GiB"),
        ("optimizer state: freed", 120 * GB / GIB, "GiB"),
        ("optimizer state: copies in a step", 1250, "ms"),
        ("optimizer state: copies against the step", 5, "times"),
        ("how much slower the link is", 62.5, "times"),
    ],
)
def test_the_worked_figures_come_out(
    worked_example: OffloadArithmetic, label: str, value: float, unit: str
) -> None:
    found = line(worked_example, label)
    assert (found.value, found.unit) == (pytest.approx(value), unit)


def test_a_naive_optimizer_offload_moves_four_bytes_for_each_parameter(
    worked_example: OffloadArithmetic,
) -> None:
    optimizer = worked_example.order[0]
    assert optimizer.kind == "optimizer_state"
    assert optimizer.moved_bytes == 4 * 10 * BILLION == 40 * GB


def test_each_line_says_what_it_was_computed_from(worked_example: OffloadArithmetic) -> None:
    assert line(worked_example, "model state").expression == "16 B x 10,000,000,000 parameters"
    assert line(worked_example, "what a step can hide, device to host").expression == "32 GB/s x 250 ms"
    assert line(worked_example, "optimizer state: copies in a step").expression == (
        "18.6 GiB / 32 GB/s + 18.6 GiB / 32 GB/s"
    )
    assert all(found.expression and found.source for found in lines_of(worked_example))


def test_what_leaves_first_is_optimizer_state_then_gradients_then_parameters(
    worked_example: OffloadArithmetic,
) -> None:
    assert [measure.kind for measure in worked_example.order] == [
        "optimizer_state",
        "gradients",
        "parameters",
    ]
    assert worked_example.choice is not None
    assert [(m.kind, m.freed_bytes) for m in worked_example.choice.measures] == [("optimizer_state", 80 * GB)]


def test_what_fits_does_not_leave() -> None:
    arithmetic = offload_arithmetic(machine(), TrainingShape(BILLION, step_ms=250, activation_bytes=20 * GB))
    assert arithmetic.needed_bytes == 0
    assert arithmetic.choice is None
    assert arithmetic.options == ()
    assert arithmetic_verdict(arithmetic) == "nothing has to leave the device: what training holds fits"
    assert line(arithmetic, "room that is left").value == pytest.approx((80 - 16 - 20) * GB / GIB)


def test_activations_that_nobody_gave_are_not_silently_none() -> None:
    arithmetic = offload_arithmetic(machine(), TrainingShape(BILLION, step_ms=250))
    assert arithmetic_verdict(arithmetic).endswith("; activations were not given")
    assert line(arithmetic, "activations").value is None


def test_a_host_that_cannot_hold_it_is_the_verdict() -> None:
    host = machine(Figure("host.memory", 10, "GB", "test"), Figure("host.adamw_rate", 1, "Gparam/s", "test"))
    arithmetic = offload_arithmetic(host, TrainingShape(10 * BILLION, step_ms=250))
    assert arithmetic.choice is None
    assert arithmetic_verdict(arithmetic) == (
        "74.5 GiB have to leave, and the host has too little memory: 99.3 GiB of 7.45 GiB"
    )


def test_a_window_that_hides_it_adds_only_the_step_on_the_cpu() -> None:
    host = machine(Figure("host.adamw_rate", 5, "Gparam/s", "test"))
    arithmetic = offload_arithmetic(host, TrainingShape(10 * BILLION, step_ms=3000))
    assert arithmetic.choice is not None
    assert arithmetic.choice.stall_ms == pytest.approx(10 / 5 * 1000 * 80 / 120)
    assert line(arithmetic, "optimizer state: step on the CPU").value == pytest.approx(2000)


def test_activations_leave_for_free_within_forward() -> None:
    arithmetic = offload_arithmetic(
        load_hardware("h200-pcie5"), TrainingShape(BILLION, step_ms=690, activation_bytes=GB)
    )
    # The published bound for that machine: 55 GB/s for 215 to 235 ms of forward.
    assert line(arithmetic, "activations that leave for free").value == pytest.approx(
        55.3 * 0.230 * GB / GIB, rel=1e-3
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"step_ms": 100.0, "num_tokens": 8192}, 100.0),
        ({"num_tokens": 8192}, 6 * BILLION * 8192 / 750e9),
        ({}, None),
        ({"num_tokens": 8192, "parameter_dtype": "float16"}, None),
    ],
    ids=["given", "estimated", "unknown", "no-rate"],
)
def test_the_time_of_a_step_is_given_or_six_flop_for_each_parameter_and_token(
    shape: dict[str, Any], expected: float | None
) -> None:
    hardware = machine(Figure("device.matmul_bfloat16", 750, "TFLOP/s", "test"))
    training = TrainingShape(BILLION, **shape)
    assert step_time_ms(hardware, training) == (None if expected is None else pytest.approx(expected))
    arithmetic = offload_arithmetic(hardware, training)
    assert line(arithmetic, "forward and backward of one step").value == step_time_ms(hardware, training)
    budget = line(arithmetic, "what a step can hide, device to host").value
    assert (budget is None) == (expected is None)


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_every_shipped_profile_can_be_reasoned_about(profile: HardwareProfile) -> None:
    shape = TrainingShape(8_030_261_248, num_tokens=8192, activation_bytes=40 * GB)
    arithmetic = offload_arithmetic(profile, shape)
    assert (arithmetic.needed_bytes > 0) == (profile.device_memory_bytes < 8_030_261_248 * 16 + 40 * GB)
    assert line(arithmetic, "forward and backward of one step").value is not None


def test_ranks_that_shard_hold_their_part() -> None:
    shape = TrainingShape(10 * BILLION, step_ms=250, num_ranks=8, sharding="full")
    arithmetic = offload_arithmetic(machine(), shape)
    assert line(arithmetic, "model state of one rank").value == pytest.approx(20 * GB / GIB)
    assert arithmetic.needed_bytes == 0


def test_all_in_16_bit_has_the_row_of_mixed_precision_beside_it() -> None:
    training = TrainingShape(10 * BILLION, step_ms=250, master_weights=False)
    plain = offload_arithmetic(machine(), training)
    assert line(plain, "optimizer state: freed").expression.endswith("1 freed for each byte moved")
    mixed = line(plain, "optimizer state: freed with float32 master weights")
    assert (mixed.value, mixed.unit) == (pytest.approx(120 * GB / GIB), "GiB")
    assert mixed.expression == "12 B freed, 2 B down + 2 B up for each parameter: 3 freed for each byte moved"


@pytest.mark.parametrize("shape", [{}, {"optimizer": "none", "master_weights": False}], ids=str)
def test_there_is_no_second_row_where_both_are_the_same(shape: dict[str, Any]) -> None:
    found = offload_arithmetic(machine(), TrainingShape(BILLION, step_ms=250, **shape))
    assert not any("with float32 master weights" in each.label for each in lines_of(found))


def test_the_step_on_the_cpu_says_whose_parameters_and_whose_cores() -> None:
    host = machine(Figure("host.adamw_rate", 5, "Gparam/s", "test"))
    step = line(offload_arithmetic(host, TrainingShape(BILLION)), "optimizer state: step on the CPU")
    assert step.expression == "1,000,000,000 parameters of one rank / host.adamw_rate"
    assert "one rank's share of the cores" in step.source


def test_memory_is_in_gib_in_every_line_and_rates_alone_in_gb() -> None:
    shape = TrainingShape(
        10 * BILLION, step_ms=250, activation_bytes=20 * GB, num_ranks=2, sharding="optimizer"
    )
    for found in lines_of(offload_arithmetic(load_hardware("h200-pcie5"), shape)):
        assert found.unit in ("GiB", "GB/s", "ms", "times", "B"), found
        assert " GB" not in found.expression.replace(" GB/s", ""), found


def demand(**given: Any) -> DeviceDemand:
    """Return what a plan found: a peak of 60 GB, of which 30 GB are activations, within 50 GB."""
    sizes = {"limit_bytes": 50 * GB, "peak_bytes": 60 * GB, "floor_bytes": 30 * GB, **given}
    return DeviceDemand(limit_name="limits.device_peak", host_limit_bytes=sizes.pop("host", None), **sizes)


PLANNED = TrainingShape(BILLION, step_ms=2000, activation_bytes=30 * GB)


def test_after_a_plan_the_window_is_the_plans_own() -> None:
    planned = offload_arithmetic(machine(), PLANNED, demand(window_ms=500.0))
    found = line(planned, "activations that leave for free")
    rate = machine().link().d2h_bytes_per_ms
    assert found.value == pytest.approx(rate * 500 / GIB)
    assert found.source == "predicted by the plan: from the first saved byte to the peak"
    assert line(offload_arithmetic(machine(), PLANNED), found.label).value != found.value


def test_a_plan_is_judged_by_its_limit_and_not_by_the_device() -> None:
    alone, planned = offload_arithmetic(machine(), PLANNED), offload_arithmetic(machine(), PLANNED, demand())
    assert (alone.needed_bytes, planned.needed_bytes) == (0, 10 * GB)
    over = line(planned, "more than fits")
    assert (over.value, over.source) == (
        pytest.approx(10 * GB / GIB),
        "predicted by the plan, limits.device_peak",
    )


def test_a_plan_whose_peak_is_within_its_limit_moves_nothing() -> None:
    found = offload_arithmetic(machine(), TrainingShape(10 * BILLION), demand(peak_bytes=40 * GB))
    assert (found.needed_bytes, found.choice) == (0, None)
    assert arithmetic_verdict(found) == (
        "nothing has to leave the device: the peak of 37.3 GiB is within limits.device_peak, 46.6 GiB"
    )


def test_where_activations_are_enough_a_plan_is_not_told_to_move_state() -> None:
    host = machine(Figure("host.adamw_rate", 1000, "Gparam/s", "test"))
    shape = TrainingShape(BILLION, step_ms=300, activation_bytes=30 * GB)
    found = offload_arithmetic(host, shape, demand())
    assert any(measure.kind == "optimizer_state" for option in found.options for measure in option.measures)
    assert found.choice is not None
    assert {measure.kind for measure in found.choice.measures} <= {"activations", "recompute"}
    assert "another system" not in arithmetic_verdict(found)


def test_below_the_floor_of_a_plan_only_state_helps_and_another_system_moves_it() -> None:
    found = offload_arithmetic(machine(), PLANNED, demand(floor_bytes=55 * GB))
    assert found.state_bytes == 5 * GB
    assert found.choice is not None
    of_state = [m.freed_bytes for m in found.choice.measures if m.kind not in ("activations", "recompute")]
    assert sum(of_state) >= 5 * GB
    assert line(found, "more than fits without activations").value == pytest.approx(5 * GB / GIB)
    verdict = arithmetic_verdict(found)
    assert "4.66 GiB of them whatever becomes of activations" in verdict
    assert "; rates alone say so, a plan weighs each tensor; " in verdict
    assert verdict.endswith(
        "; state leaves by another system (offload export), a plan moves activations alone"
    )


def test_a_plan_that_needs_more_than_all_that_can_leave_says_so() -> None:
    found = offload_arithmetic(machine(), TrainingShape(BILLION, activation_bytes=GB), demand(limit_bytes=GB))
    assert (found.options, found.choice) == ((), None)
    assert arithmetic_verdict(found).endswith("and all that can leave is not enough")


def test_a_plan_pins_no_more_than_its_policy_lets_it() -> None:
    found = offload_arithmetic(machine(), TrainingShape(BILLION, activation_bytes=30 * GB), demand(host=GB))
    assert found.choice is not None
    assert found.choice.host_bytes <= GB


def test_frozen_parameters_have_neither_gradients_nor_state() -> None:
    found = offload_arithmetic(machine(), TrainingShape(10 * BILLION, num_trained=BILLION))
    state = line(found, "model state")
    assert state.value == pytest.approx((16 + 2 * 9) * GB / GIB)
    assert state.expression == "16 B x 1,000,000,000 parameters + 2 B x 9,000,000,000 frozen"
    assert [measure.freed_bytes for measure in found.order] == [12 * GB, 2 * GB, 20 * GB]
