"""Facts out of results of bench and apply: what was measured is not typed again; no slowdown, no facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.errors import UnreadableError
from offload_runtime.fact_sheet import read_fact_file
from offload_runtime.result_facts import facts_of_result, is_result
from offload_runtime.runtime.exit_report import render_reports
from offload_runtime.runtime.numa import NumaBinding
from tests.reporting.records import graph_report, report

APPLIED: dict[str, Any] = {
    "policy_hash": "0" * 64,
    "policy": {"fits": True, "peak_device_bytes": 1, "step_ms": 900.0},
    "baseline": {"fits": True, "peak_device_bytes": 2, "step_ms": 300.0},
    "stall_ms": 300.0,
    "hidden_fraction": 0.4,
    "moved_bytes": 12,
    "planned_bytes": 12,
}


def side(
    name: str, ratio: float | None, *, kind: str = "peer", moved_bytes: int | None = None
) -> dict[str, Any]:
    summary = {"ratio": ratio, "median_ms": None if ratio is None else 700.0 * ratio}
    return {
        "name": name,
        "kind": kind,
        "moved_bytes": moved_bytes,
        "planned_bytes": moved_bytes,
        "summary": summary,
    }


def benched(*sides: dict[str, Any], baseline: str = "compile", warmup: int = 20) -> dict[str, Any]:
    return {
        "kind": "BenchResult",
        "baseline": baseline,
        "control": "control",
        "warmup": warmup,
        "environment": {"link_width": 16},
        "sides": [side("compile", 1.0), side("control", 1.001, kind="control"), *sides],
    }


def test_apply_gives_the_slowdown_and_what_stalled() -> None:
    found = facts_of_result(APPLIED)
    assert found["slowdown"] == pytest.approx(3)
    assert (found["stall_ms"], found["offload_step_ms"], found["hidden_fraction"]) == (300.0, 900.0, 0.4)
    assert (found["offload_mechanism"], found["paired_baseline"]) == ("offload_runtime", True)
    assert found["warm_steps_only"] is False


def test_a_baseline_that_does_not_fit_leaves_the_slowdown_unknown() -> None:
    found = facts_of_result(
        {**APPLIED, "baseline": {"fits": False, "peak_device_bytes": None, "step_ms": None}}
    )
    assert {"slowdown", "paired_baseline"}.isdisjoint(found)
    assert found["stall_ms"] == 300.0


BOUND = NumaBinding(1, 12, (4, 5, 6, 7))
BARRED = NumaBinding(1, reason="none of the CPUs of node 1 is allowed to this process")


@pytest.mark.parametrize(
    ("bindings", "is_local"),
    [
        ([BOUND], True),
        ([BOUND.with_memory(True), NumaBinding(0, 3, (0,))], True),
        ([BARRED], False),
        ([BOUND, BARRED], False),
        (
            [
                NumaBinding(
                    1, 11, (4,), reason="thread 7: Operation not permitted; thread 8: Invalid argument"
                )
            ],
            None,
        ),
        ([NumaBinding(1, reason="the CPUs of node 1 are unknown")], None),
        ([NumaBinding(reason="switched off by OFFLOAD_NUMA=0")], None),
        ([BOUND, NumaBinding(reason="pageable memory, no device to be near to")], None),
        ([], None),
    ],
    ids=str,
)
def test_apply_says_whether_it_was_bound_where_that_is_certain(
    bindings: list[NumaBinding], is_local: bool | None
) -> None:
    found = facts_of_result({**APPLIED, "numa": "; ".join(sorted(map(str, bindings)))})
    assert found.get("numa_local") is is_local


@pytest.mark.parametrize(
    ("only", "mechanism"),
    [
        (side("balanced", 1.3, kind="policy", moved_bytes=5), "offload_runtime"),
        (side("save-on-cpu", 1.3), "activation_hooks"),
        (side("largest-first:8GiB", 1.3, moved_bytes=5), "offload_runtime"),
    ],
)
def test_bench_gives_the_slowdown_of_the_one_side_that_offloads(only: dict[str, Any], mechanism: str) -> None:
    found = facts_of_result(benched(only, side("eager", 1.1)))
    assert (found["slowdown"], found["offload_mechanism"]) == (1.3, mechanism)
    assert found["offload_step_ms"] == pytest.approx(910)
    assert (found["warm_steps_only"], found["pcie_link_width"]) == (True, 16)
    assert facts_of_result(benched(only, warmup=3))["warm_steps_only"] is False


def test_of_several_sides_that_offload_the_one_named_gives_the_facts() -> None:
    result = benched(side("balanced", 1.1, kind="policy", moved_bytes=5), side("save-on-cpu", 3.0))
    found = facts_of_result(result, "save-on-cpu")
    assert (found["slowdown"], found["offload_mechanism"]) == (3.0, "activation_hooks")
    assert facts_of_result(result, "balanced")["slowdown"] == 1.1
    with pytest.raises(ValueError, match="name it with --side: balanced, save-on-cpu"):
        facts_of_result(result)
    with pytest.raises(ValueError, match=r"no side eager .* name one with --side: balanced, save-on-cpu"):
        facts_of_result(result, "eager")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (
            {**APPLIED, "policy": {"fits": True, "peak_device_bytes": 1, "step_ms": None}},
            "without an accelerator",
        ),
        ({**APPLIED, "moved_bytes": 0}, "nothing was offloaded"),
        (benched(side("save-on-cpu", None)), "no side that offloads was timed"),
        (benched(side("eager", 1.1)), "no side that offloads was timed"),
        (
            benched(side("a", 1.1, moved_bytes=1), side("b", 1.1, moved_bytes=1)),
            "2 sides offload and were timed",
        ),
        (benched(side("save-on-cpu", 1.0), baseline="save-on-cpu"), "its baseline save-on-cpu offloads"),
        ({"kind": "BenchResult"}, "another version"),
    ],
)
def test_a_result_without_a_slowdown_is_refused_with_what_to_give(
    result: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"data": result}))
    with pytest.raises(UnreadableError) as error:
        read_fact_file(path)
    (found,) = error.value.diagnostics
    assert found.code == "ADV901"
    assert why in found.message
    assert found.hint is not None


def test_who_has_given_the_slowdown_is_told_to_leave_the_file_out() -> None:
    with pytest.raises(ValueError, match=r"no times.*; leave --from out and give --fact slowdown="):
        facts_of_result({**APPLIED, "policy": {"fits": True, "peak_device_bytes": 1, "step_ms": None}})


REPORT: dict[str, Any] = {
    "graphs": [{}, {}, {}],
    "diagnostics": [],
    "mode": "graph",
    "moved_bytes": 12,
    "planned_bytes": 12,
    "stall_ms": 300.0,
    "hidden_fraction": 0.4,
    "numa": "",
}


def test_apply_says_how_its_policy_was_compiled() -> None:
    found = facts_of_result({**APPLIED, "mode": "graph", "num_graphs": 2})
    assert (found["mode"], found["num_graphs"]) == ("graph", 2)


@pytest.mark.parametrize("as_lines", [False, True], ids=["a document", "a line each"])
def test_the_report_of_a_run_gives_what_it_holds_and_no_slowdown(tmp_path: Path, as_lines: bool) -> None:
    path = tmp_path / "report.json"
    written = [REPORT, {**REPORT, "graphs": [{}]}] if as_lines else [REPORT]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in written))
    found = read_fact_file(path)
    assert (found["mode"], found["offload_mechanism"]) == ("graph", "offload_runtime")
    assert found["stall_ms"] == 300.0
    assert "slowdown" not in found
    # What differs between two models of one process is said of neither.
    assert found.get("num_graphs") == (None if as_lines else 3)


def test_a_report_of_a_run_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(render_reports([report(graph_report(), graph_report())], as_json=True))
    found = read_fact_file(path)
    assert (found["mode"], found["num_graphs"]) == ("graph", 2)
    path.write_text(render_reports([], as_json=True))
    with pytest.raises(UnreadableError, match="nothing was captured"):
        read_fact_file(path)


EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"


def test_what_was_measured_on_an_h200_is_read_where_one_side_offloads() -> None:
    path = EVIDENCE / "frontier-qwen3-30b-a3b-floor-h200.json"
    sides = {side["name"]: side["summary"] for side in json.loads(path.read_text())["sides"]}
    found = read_fact_file(path)
    assert found["slowdown"] == sides["planned:23GiB"]["ratio"]
    assert found["offload_step_ms"] == sides["planned:23GiB"]["median_ms"]
    with pytest.raises(UnreadableError, match="sides offload"):
        read_fact_file(EVIDENCE / "frontier-llama3-8b-h200.json")


@pytest.mark.parametrize("other", [{"num_gpus": 8}, [], "text"], ids=str)
def test_facts_are_no_result(other: object) -> None:
    assert not is_result(other)
