from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from offload_runtime.compiler import SavedActivation
from offload_runtime.offload_plan import OffloadPlan, TensorVerdict, Transfer, TransferSource

ACTIVATION = SavedActivation(
    "mm_1", "aten.mm.default", "matmul", "layers.0.mlp", 0, 4, 4096, "bfloat16", "contiguous"
)
VERDICT = TensorVerdict(ACTIVATION, "offload", "heavy", "rule heavy", moved_bytes=4096, num_views=1)
TRANSFER = Transfer(TransferSource("mm_1", 4096, ("view_2",)), 3, 9, 5, 7)
PLAN = OffloadPlan("policy", (VERDICT,), (TRANSFER,))


def changed(value: Any, **changes: Any) -> Any:
    return dataclasses.replace(value, **changes)


def test_a_plan_hash_is_a_sha256_of_its_content() -> None:
    assert len(bytes.fromhex(PLAN.hash)) == 32
    assert PLAN.hash == OffloadPlan("policy", (VERDICT,), (TRANSFER,)).hash


@pytest.mark.parametrize(
    "other",
    [
        changed(PLAN, transfers=()),
        changed(PLAN, verdicts=()),
        changed(PLAN, verdicts=(changed(VERDICT, fate="save"),)),
        changed(PLAN, verdicts=(changed(VERDICT, activation=changed(ACTIVATION, layer=1)),)),
        changed(PLAN, verdicts=(changed(VERDICT, activation=changed(ACTIVATION, num_bytes=8192)),)),
        changed(PLAN, transfers=(changed(TRANSFER, release_after=10),)),
        changed(PLAN, transfers=(changed(TRANSFER, reload_before=4),)),
        changed(PLAN, transfers=(TRANSFER, TRANSFER)),
    ],
    ids=["no-transfer", "no-verdict", "fate", "layer", "bytes", "release", "reload", "one-more"],
)
def test_a_plan_that_does_something_else_has_another_hash(other: OffloadPlan) -> None:
    assert other.hash != PLAN.hash


@pytest.mark.parametrize(
    "same",
    [
        changed(PLAN, policy_hash="a callable of another process"),
        changed(PLAN, verdicts=(changed(VERDICT, reason="in other words"),)),
        changed(PLAN, verdicts=(changed(VERDICT, activation=changed(ACTIVATION, name="mm_7")),)),
        changed(PLAN, transfers=(changed(TRANSFER, source=TransferSource("mm_7", 4096, ("view_9",))),)),
    ],
    ids=["policy-hash", "reason", "name", "names-of-a-copy"],
)
def test_what_may_differ_between_processes_is_no_part_of_the_hash(same: OffloadPlan) -> None:
    assert same.hash == PLAN.hash
