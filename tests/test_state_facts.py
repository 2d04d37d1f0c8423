"""What training holds follows from few facts; where one of them is missing, nothing does."""

from __future__ import annotations

import pytest

from offload_runtime.fact_sheet import FactSheet
from offload_runtime.predicates import Scalar
from offload_runtime.state_facts import derived, limit_bytes, sharding_of, trained_state

GB = 10**9
ADAM: dict[str, Scalar] = {
    "num_parameters": 10 * GB,
    "trainable_fraction": 1.0,
    "dtype": "bfloat16",
    "optimizer": "adamw",
    "master_weights": True,
}


def sheet(**facts: Scalar) -> FactSheet:
    return FactSheet().with_facts({**ADAM, **facts}, "given")


@pytest.mark.parametrize(
    ("facts", "parameters", "gradients", "optimizer_state"),
    [
        ({}, 20, 20, 120),  # 16 bytes for each of 10 billion: 160 GB
        ({"master_weights": False}, 20, 20, 40),
        ({"trainable_fraction": 0.01}, 20, 0.2, 1.2),
        ({"trainable_fraction": 0.0}, 20, 0, 0),
        ({"optimizer": "sgd"}, 20, 20, 40),
        ({"optimizer": "none", "master_weights": False}, 20, 20, 0),
        ({"dtype": "float32"}, 40, 40, 80),
        ({"data_parallel": 1}, 20, 20, 120),
        ({"data_parallel": 8, "zero_stage": 1}, 20, 20, 15),
        ({"data_parallel": 8, "zero_stage": 2}, 20, 2.5, 15),
        ({"data_parallel": 8, "zero_stage": 3}, 2.5, 2.5, 15),
        ({"data_parallel": 8, "framework": "fsdp2"}, 2.5, 2.5, 15),
        ({"data_parallel": 8, "distributed_optimizer": True}, 20, 20, 15),
    ],
    ids=str,
)
def test_the_bytes_of_state_follow_from_the_run(
    facts: dict[str, Scalar], parameters: float, gradients: float, optimizer_state: float
) -> None:
    found = derived(sheet(**facts))
    sizes = [found.size(f"{kind}_bytes") for kind in ("parameter", "gradient", "optimizer_state")]
    assert sizes == [round(size * GB) for size in (parameters, gradients, optimizer_state)]
    assert found.size("resident_bytes") == sum(size for size in sizes if size is not None)


@pytest.mark.parametrize(
    "missing",
    ["num_parameters", "trainable_fraction", "dtype", "optimizer", "master_weights"],
)
def test_nothing_is_guessed_for_a_fact_that_is_missing(missing: str) -> None:
    known = FactSheet().with_facts({name: v for name, v in ADAM.items() if name != missing}, "given")
    assert trained_state(known) is None
    assert derived(known) == known


@pytest.mark.parametrize(
    "facts",
    [
        {"tensor_parallel": 2},
        {"pipeline_parallel": 4},
        {"expert_parallel": 8},
        {"data_parallel": 8},
        {"world_size": 8},
        {"zero_stage": 3, "world_size": 8},
        {"data_parallel": 8, "zero_stage": 7},
    ],
    ids=str,
)
def test_what_ranks_share_is_not_guessed(facts: dict[str, Scalar]) -> None:
    assert sharding_of(sheet(**facts)) is None
    assert derived(sheet(**facts)).size("resident_bytes") is None


def test_what_is_given_is_not_computed_again() -> None:
    found = derived(sheet(optimizer_state_bytes=5, resident_bytes=7))
    assert (found.size("optimizer_state_bytes"), found.size("resident_bytes")) == (5, 7)
    assert found.origin("resident_bytes") == "given"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"resident_bytes": 81 * GB}, {"resident_fits": False, "fits": False, "floor_fits": False}),
        ({"resident_bytes": 79 * GB}, {"resident_fits": True}),
        ({"peak_bytes": 80 * GB}, {"fits": True, "floor_fits": True}),
        ({"peak_bytes": 81 * GB}, {"fits": False}),
        ({"peak_bytes": 100 * GB, "floor_bytes": 80 * GB}, {"fits": False, "floor_fits": True}),
        ({"peak_bytes": 100 * GB, "floor_bytes": 81 * GB}, {"fits": False, "floor_fits": False}),
    ],
    ids=str,
)
def test_whether_it_fits_follows_from_the_device(facts: dict[str, Scalar], expected: dict[str, bool]) -> None:
    known = FactSheet().with_facts({"gpu_total_bytes": 80 * GB, **facts}, "given")
    found = derived(known).values
    verdicts = {name: found[name] for name in ("resident_fits", "fits", "floor_fits") if name in found}
    assert verdicts == expected


@pytest.mark.parametrize(("num_parameters", "fits"), [(1 * GB, True), (8 * GB, None), (20 * GB, False)])
def test_state_fits_without_a_word_on_master_weights_where_both_forms_agree(
    num_parameters: int, fits: bool | None
) -> None:
    facts = {name: value for name, value in ADAM.items() if name != "master_weights"}
    known = FactSheet().with_facts(
        {**facts, "num_parameters": num_parameters, "gpu_total_bytes": 80 * GB}, "given"
    )
    assert derived(known).get("resident_fits") is fits
    assert derived(known).get("resident_bytes") is None


def test_a_plan_may_take_what_device_peak_auto_leaves() -> None:
    from offload_runtime.runtime.setting import AUTO_MARGIN

    assert limit_bytes(100 * GB) == int(100 * GB * (1 - AUTO_MARGIN))
