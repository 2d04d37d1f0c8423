from __future__ import annotations

import re
from typing import Any

import pytest

from offload_runtime.cli.eval_graders import grade_apply_saves, grade_export_refuses, graders

HEAD = "apiVersion: offload/v1\nkind: Policy\nname: mine\n"
OFFLOADS = HEAD + (
    "limits: {budget: 4MiB}\n"
    "activations:\n"
    "  default: recompute\n"
    "  rules: [{name: heavy, match: {op: matmul}, action: offload}]\n"
)
WRONG = HEAD + "activations: {default: forget}\n"


def test_only_what_was_asked_for_trains() -> None:
    assert set(graders(train=False)) == {"export_refuses"}
    assert set(graders(train=True)) == {"export_refuses", "apply_saves"}


@pytest.mark.parametrize(
    ("policy", "assertion", "failure"),
    [
        (OFFLOADS, {"target": "deepspeed"}, None),
        (OFFLOADS, {"target": "deepspeed", "path": "nowhere"}, "deepspeed refuses"),
        (OFFLOADS, {"target": "deepspeed", "code": "POL100"}, "deepspeed refuses"),
        (OFFLOADS, {"target": "torchtitan"}, "torchtitan takes the policy"),
        (OFFLOADS, {"target": "abacus"}, "target is one of"),
        (WRONG, {"target": "deepspeed"}, "POL103"),
    ],
)
def test_an_export_is_refused_or_not(policy: str, assertion: dict[str, Any], failure: str | None) -> None:
    found = grade_export_refuses(policy, assertion)
    assert (found is None) is (failure is None)
    assert failure is None or failure in (found or "")


def test_a_model_is_trained_to_see_what_a_policy_saves() -> None:
    failure = grade_apply_saves(OFFLOADS, {"min_bytes": "1GiB", "steps": 1})
    found = re.fullmatch(r"the peak is (\d+) bytes lower, not 1073741824", failure or "")
    assert found is not None
    assert int(found.group(1)) > 1 << 20


def test_a_policy_with_a_mistake_in_it_saves_nothing() -> None:
    assert "POL103" in (grade_apply_saves(WRONG, {"min_bytes": "1MiB"}) or "")
