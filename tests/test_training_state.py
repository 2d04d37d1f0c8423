from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.training_state import TrainingShape, bytes_per_parameter, rank_state

BILLION = 10**9


@pytest.mark.parametrize(
    ("shape", "parts", "total"),
    [
        ({}, (2, 2, 4, 8), 16),
        ({"parameter_dtype": "float16", "optimizer": "adam"}, (2, 2, 4, 8), 16),
        ({"parameter_dtype": "float32"}, (4, 4, 0, 8), 16),
        ({"parameter_dtype": "float32", "master_weights": False}, (4, 4, 0, 8), 16),
        ({"master_weights": False}, (2, 2, 0, 4), 8),
        ({"optimizer": "sgd-momentum"}, (2, 2, 4, 4), 12),
        ({"optimizer": "sgd"}, (2, 2, 4, 0), 8),
        ({"optimizer": "sgd", "master_weights": False}, (2, 2, 0, 0), 4),
        ({"optimizer": "none"}, (2, 2, 0, 0), 4),
    ],
    ids=str,
)
def test_bytes_per_parameter_follow_optimizer_and_precision(
    shape: dict[str, Any], parts: tuple[int, ...], total: int
) -> None:
    each = bytes_per_parameter(TrainingShape(BILLION, **shape))
    assert (each.parameters, each.gradients, each.master, each.moments) == parts
    assert each.total == total
    assert each.optimizer_state == parts[2] + parts[3]


@pytest.mark.parametrize(
    ("sharding", "parameters", "gradients", "optimizer_state"),
    [("none", 2, 2, 12), ("optimizer", 2, 2, 3), ("gradients", 2, 0.5, 3), ("full", 0.5, 0.5, 3)],
)
def test_ranks_divide_what_sharding_says(
    sharding: Any, parameters: float, gradients: float, optimizer_state: float
) -> None:
    state = rank_state(TrainingShape(BILLION, num_ranks=4, sharding=sharding))
    assert (state.parameters, state.gradients, state.optimizer_state) == (
        parameters * BILLION,
        gradients * BILLION,
        optimizer_state * BILLION,
    )
    assert state.total == sum((state.parameters, state.gradients, state.optimizer_state))


def test_a_shard_is_rounded_up() -> None:
    assert rank_state(TrainingShape(10, num_ranks=3, sharding="full")).parameters == 2 * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"parameter_dtype": "float64"},
            "parameter_dtype is 'float64', not one of float32, bfloat16, float16",
        ),
        ({"optimizer": "adafactor"}, "optimizer is 'adafactor', not one of adamw, adam"),
        ({"sharding": "zero3"}, "sharding is 'zero3', not one of none, optimizer, gradients, full"),
        ({"step_device": "tpu"}, "step_device is 'tpu'"),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"step_ms": 0}, "step_ms is 0"),
        ({"activation_bytes": -1}, "activation_bytes is -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingShape(BILLION, **wrong)
