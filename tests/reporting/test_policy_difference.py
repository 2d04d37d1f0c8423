from typing import Any

import pytest

from offload_runtime.reporting.policy_difference import (
    difference_data,
    policy_difference,
    render_difference,
)
from tests.reporting.records import graph_report, report, verdict

MIB = 1024 * 1024
BEFORE = report(
    graph_report(
        verdict("a", "save", "compute", layer=0, num_bytes=4 * MIB),
        verdict("b", "save", "compute", layer=1, num_bytes=4 * MIB),
        verdict("c", "save", "compute", layer=3, num_bytes=2 * MIB),
        verdict("d", "recompute", None, num_bytes=1 * MIB),
        verdict("e", "save", "compute", num_bytes=1 * MIB),
    )
)
AFTER = report(
    graph_report(
        verdict("a", "offload", "heavy", layer=0, num_bytes=4 * MIB, reason="largest first"),
        verdict("b", "offload", "heavy", layer=1, num_bytes=4 * MIB, reason="largest first"),
        verdict("c", "offload", "heavy", layer=3, num_bytes=2 * MIB, reason="largest first"),
        verdict("d", "recompute", None, num_bytes=1 * MIB),
        verdict("e", "save", "heavy", num_bytes=1 * MIB),
    )
)
DIFFERENCE = policy_difference(BEFORE, AFTER)


def test_a_tensor_changes_by_its_fate_or_by_its_rule() -> None:
    assert [change.activation.name for change in DIFFERENCE.changes] == ["a", "b", "c", "e"]
    assert [change.activation.name for change in DIFFERENCE.fate_changes] == ["a", "b", "c"]


def test_two_equal_explanations_have_no_difference() -> None:
    same = policy_difference(BEFORE, BEFORE)
    assert same.changes == ()
    assert "0 of 5 tensors change fate;" in render_difference(same, "m")
    assert "->" not in render_difference(same, "m").partition("\n")[2]


def test_data_holds_bytes_by_fate_before_and_after_and_every_change() -> None:
    data = difference_data(DIFFERENCE)
    assert data["fates"]["save"] == {
        "before": {"num_tensors": 4, "num_bytes": 11 * MIB, "moved_bytes": 0},
        "after": {"num_tensors": 1, "num_bytes": 1 * MIB, "moved_bytes": 0},
    }
    assert data["fates"]["offload"]["after"]["moved_bytes"] == data["planned_bytes"]["after"] == 10 * MIB
    assert (data["num_tensors"], data["num_fate_changes"], data["num_rule_changes"]) == (5, 3, 1)
    first = data["changes"][0]
    assert (first["name"], first["layer"], first["num_bytes"]) == ("a", 0, 4 * MIB)
    assert first["after"] == {
        "fate": "offload",
        "rule": "heavy",
        "reason": "largest first",
        "moved_bytes": 4 * MIB,
    }


def test_tensors_that_change_alike_are_one_row_with_their_layers() -> None:
    lines = render_difference(DIFFERENCE, "builtin:m").splitlines()
    assert lines[0] == (
        "small -> small on builtin:m, mode graph: 3 of 5 tensors change fate, 1 by another rule alone; "
        "offloaded each step 0 B -> 10 MiB"
    )
    rows = [" ".join(line.split()) for line in lines]
    assert rows[3] == "save 4 1 11 MiB 1 MiB -10 MiB"
    assert rows[-2:] == [
        "save -> offload compute -> heavy matmul 0-1, 3 3 10 MiB",
        "save compute -> heavy matmul outside 1 1 MiB",
    ]


@pytest.mark.parametrize(("limit", "shown"), [(None, 4), (2, 2)])
def test_by_tensor_each_has_its_row_and_what_is_left_out_is_counted(limit: int | None, shown: int) -> None:
    text = render_difference(DIFFERENCE, "m", by="tensor", limit=limit)
    rows = [line for line in text.splitlines() if "aten.mm.default" in line]
    assert len(rows) == shown
    assert ("... and 2 more" in text) is (limit == 2)


def test_a_tensor_that_only_one_side_sees_is_a_change() -> None:
    after = report(graph_report(verdict("new", "save", "compute")))
    (gone, *_, new) = policy_difference(BEFORE, after).changes
    assert (gone.fates, new.fates) == (("save", None), (None, "save"))
    data: dict[str, Any] = difference_data(policy_difference(BEFORE, after))
    assert (data["changes"][0]["after"], data["changes"][-1]["before"]) == (None, None)
    assert "save -> -" in render_difference(policy_difference(BEFORE, after), "m")
