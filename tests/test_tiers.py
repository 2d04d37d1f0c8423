"""The figures worked out in the documents on offload arithmetic, and the sentences around them."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.hardware import Figure, HardwareProfile, list_hardware, load_hardware
from offload_runtime.tiers import (
    ArithmeticLine,
    OffloadArithmetic,
    TrainingShape,
    offload_arithmetic,
    step_time_ms,
)

GB = 10**9
BILLION = 10**9
PCIE4 = (
    Figure("device.memory", 80, "GB", "datasheet"),
    Figure("device.hbm_rate", 2, "TB/s", "datasheet"),
    Figure("link.d2h", 32, "GB/s", "PCIe 4.0 x16 in theory"),
    Figure("link.h2d", 32, "GB/s", "PCIe 4.0 x16 in theory"),
)


def machine(*more: Figure) -> HardwareProfile:
    return HardwareProfile("pcie4", "A GPU of 80 GB behind PCIe 4.0 x16 in theory.", (*PCIE4, *more))


def line(arithmetic: OffloadArithmetic, label: str) -> ArithmeticLine:
    (found,) = [line for line in arithmetic.lines if line.label == label]
    return found


@pytest.fixture
def worked_example() -> OffloadArithmetic:
    """10 billion parameters, mixed-precision Adam, 32 GB/s, 250 ms of compute."""
    return offload_arithmetic(machine(), TrainingShape(10 * BILLION, step_ms=250))


@pytest.mark.parametrize(
    ("label", "value", "unit"),
    [
        ("state for one parameter", 16, "B"),
        ("model state", 160, "GB"),
        ("more than fits", 80, "GB"),
        ("what a step can hide, device to host", 8, "GB"),
        ("what a step can hide, host to device", 8, "GB"),
        ("optimizer state: freed", 120, "GB"),
        ("optimizer state: copies in a step", 1250, "ms"),
        ("optimizer state: copies against the window", 5, "times"),
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
        "20 GB / 32 GB/s + 20 GB / 32 GB/s"
    )
    assert all(found.expression and found.source for found in worked_example.lines)


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
    assert arithmetic.verdict == "nothing has to leave the device: what training holds fits"
    assert line(arithmetic, "room that is left").value == pytest.approx(80 - 16 - 20)


def test_activations_that_nobody_gave_are_not_silently_none() -> None:
    arithmetic = offload_arithmetic(machine(), TrainingShape(BILLION, step_ms=250))
    assert arithmetic.verdict.endswith("; activations were not given")
    assert line(arithmetic, "activations").value is None


def test_a_host_that_cannot_hold_it_is_the_verdict() -> None:
    host = machine(Figure("host.memory", 10, "GB", "test"), Figure("host.adamw_rate", 1, "Gparam/s", "test"))
    arithmetic = offload_arithmetic(host, TrainingShape(10 * BILLION, step_ms=250))
    assert arithmetic.choice is None
    assert arithmetic.verdict == ("80 GB have to leave, and the host has too little memory: 106.7 GB of 8 GB")


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
    assert line(arithmetic, "activations that leave for free").value == pytest.approx(55.3 * 0.230, rel=1e-3)


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
    assert line(arithmetic, "compute of one step").value == step_time_ms(hardware, training)
    budget = line(arithmetic, "what a step can hide, device to host").value
    assert (budget is None) == (expected is None)


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_every_shipped_profile_can_be_reasoned_about(profile: HardwareProfile) -> None:
    shape = TrainingShape(8_030_261_248, num_tokens=8192, activation_bytes=40 * GB)
    arithmetic = offload_arithmetic(profile, shape)
    assert (arithmetic.needed_bytes > 0) == (profile.device_memory_bytes < 8_030_261_248 * 16 + 40 * GB)
    assert line(arithmetic, "compute of one step").value is not None


def test_ranks_that_shard_hold_their_part() -> None:
    shape = TrainingShape(10 * BILLION, step_ms=250, num_ranks=8, sharding="full")
    arithmetic = offload_arithmetic(machine(), shape)
    assert line(arithmetic, "model state of one rank").value == pytest.approx(20)
    assert arithmetic.needed_bytes == 0


def test_all_in_16_bit_has_the_row_of_mixed_precision_beside_it() -> None:
    training = TrainingShape(10 * BILLION, step_ms=250, master_weights=False)
    plain = offload_arithmetic(machine(), training)
    assert line(plain, "optimizer state: freed").expression.endswith("1 freed for each byte moved")
    mixed = line(plain, "optimizer state: freed with float32 master weights")
    assert (mixed.value, mixed.unit) == (120, "GB")
    assert mixed.expression == "12 B freed, 2 B down + 2 B up for each parameter: 3 freed for each byte moved"


@pytest.mark.parametrize("shape", [{}, {"optimizer": "none", "master_weights": False}], ids=str)
def test_there_is_no_second_row_where_both_are_the_same(shape: dict[str, Any]) -> None:
    found = offload_arithmetic(machine(), TrainingShape(BILLION, step_ms=250, **shape))
    assert not any("with float32 master weights" in each.label for each in found.lines)


def test_the_step_on_the_cpu_says_whose_parameters_and_whose_cores() -> None:
    host = machine(Figure("host.adamw_rate", 5, "Gparam/s", "test"))
    step = line(offload_arithmetic(host, TrainingShape(BILLION)), "optimizer state: step on the CPU")
    assert step.expression == "1,000,000,000 parameters of one rank / host.adamw_rate"
    assert "one rank's share of the cores" in step.source
