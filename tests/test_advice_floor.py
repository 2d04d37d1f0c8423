"""What of the state stays on the device: what is off it already is no cure, and ranks that share it are counted."""

from __future__ import annotations

import pytest

from offload_runtime.predicates import Scalar
from tests.test_advice_diagnosis import GIB, advice, sheet_of

SEVENTY_BILLION: dict[str, Scalar] = {
    "framework": "deepspeed",
    "zero_stage": 3,
    "data_parallel": 8,
    "num_parameters": 70_000_000_000,
    "trainable_fraction": 1.0,
    "dtype": "bfloat16",
    "optimizer": "adamw",
    "master_weights": True,
    "gpu_total_bytes": 80 * GIB,
}


def test_state_that_is_off_the_device_is_not_resident() -> None:
    whole = sheet_of(SEVENTY_BILLION).size("resident_bytes")
    assert whole == 16 * 70_000_000_000 // 8
    off: dict[str, Scalar] = {**SEVENTY_BILLION, "optimizer_offload": True}
    # DeepSpeed's offloaded optimizer has the gradients on the host, too: weights stay.
    assert sheet_of(off).size("resident_bytes") == 2 * 70_000_000_000 // 8
    assert sheet_of({**off, "parameter_offload": True}).size("resident_bytes") == 0
    half = sheet_of(
        {**off, "framework": "megatron-bridge", "distributed_optimizer": True, "offload_fraction": 0.5}
    )
    assert half.size("resident_bytes") == (2 + 2 + 6) * 70_000_000_000 // 8


def test_a_cure_that_is_on_already_is_not_named() -> None:
    on: dict[str, Scalar] = {**SEVENTY_BILLION, "optimizer_offload": True, "num_parameters": 400_000_000_000}
    found = advice(on)
    assert found.conclusion == "refused"
    assert not any("offload the optimizer's state" in cure for cure in found.cures.enough)
    assert [step.mechanism for step in found.order] == ["parameters", "activations"]
    both = advice({**SEVENTY_BILLION, "optimizer_offload": True, "parameter_offload": True})
    assert "DeepSpeed has on already: optimizer offload and parameter offload" in both.summary


@pytest.mark.parametrize(
    ("stage", "cure"),
    [
        (3, "more ranks than 8: 16 ranks hold 65.2 GiB each"),
        (1, "share the state among ranks (ZeRO-3, FSDP2): 16 ranks hold 65.2 GiB each"),
    ],
)
def test_more_ranks_are_counted_from_those_that_share_already(stage: int, cure: str) -> None:
    found = advice({**SEVENTY_BILLION, "zero_stage": stage})
    assert any(cure in text for text in found.cures.enough)


def test_what_ranks_share_is_said_in_words() -> None:
    lines = [line.expression for section in advice(SEVENTY_BILLION).sections for line in section.lines]
    assert any("parameters, gradients and optimizer state shared by 8 ranks" in text for text in lines)


def test_eight_ranks_of_a_node_are_not_one_that_shares_with_nobody() -> None:
    facts = {name: value for name, value in SEVENTY_BILLION.items() if name != "data_parallel"}
    assert sheet_of({**facts, "ranks_per_node": 8}).size("resident_bytes") is None
