from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from offload_runtime.targets import TARGETS, check_target
from offload_runtime.validate import validate_file, validate_policy

HEAD = "apiVersion: offload/v1\nkind: Policy\nname: x\n"
DATA = {"apiVersion": "offload/v1", "kind": "Policy", "name": "x", "activations": {"default": "auto"}}


def test_a_file_is_checked_by_its_kind(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(HEAD + "activations: {default: auto}\n")
    test = tmp_path / "cases.yaml"
    test.write_text(
        "apiVersion: offload/v1\nkind: PolicyTest\npolicy: policy.yaml\n"
        "cases: [{name: a, given: {op: matmul}, expect: {action: auto}}]\n"
    )
    assert [(v.kind, v.ok, v.diagnostics) for v in map(validate_file, map(str, (policy, test)))] == [
        ("Policy", True, ()),
        ("PolicyTest", True, ()),
    ]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("kind: Polcy\n", "POL111", 1, 7),
        ("kind: [Policy]\n", "POL111", 1, 7),
        ("name: x\n", "POL101", 1, 1),
        ("- a\n", "POL102", 1, 1),
        ("policy\n", "POL102", 1, 1),
    ],
)
def test_a_document_of_no_known_kind_is_told_the_kinds(
    tmp_path: Path, text: str, code: str, line: int, column: int
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    verdict = validate_file(str(path))
    assert verdict.kind is None
    assert not verdict.ok
    assert [(d.code, d.line, d.column) for d in verdict.diagnostics] == [(code, line, column)]


def test_reading_and_meaning_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(HEAD + "limits: {budget: 5, host: 010}\nactivations: {default: ofload}\n")
    assert [d.code for d in validate_file(str(path)).diagnostics] == ["POL104", "YAML031", "POL103"]


def test_a_value_that_was_refused_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(HEAD + "activations: {default: yes}\n")
    assert [d.code for d in validate_file(str(path)).diagnostics] == ["YAML030"]


def test_a_warning_leaves_a_file_ok(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(HEAD + "limits: {budget: 5GiB}\nactivations: {default: save}\n")
    verdict = validate_file(str(path))
    assert verdict.ok
    assert [(d.code, d.severity) for d in verdict.diagnostics] == [("POL161", "warning")]


def test_a_policy_test_is_validated_with_its_policy_but_not_run(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(HEAD + "activations: {default: keep}\n")
    test = tmp_path / "cases.yaml"
    test.write_text(
        "apiVersion: offload/v1\nkind: PolicyTest\npolicy: policy.yaml\n"
        "cases: [{name: a, given: {op: matmull, bytes: 5}, expect: {action: save}}]\n"
    )
    assert [d.code for d in validate_file(str(test)).diagnostics] == ["PTS204", "POL120", "POL104", "POL103"]


def test_overrides_are_validated_like_the_file() -> None:
    assert validate_policy(DATA, overrides=["schedule.defer=8"]) == ()
    assert [d.code for d in validate_policy(DATA, overrides=["schedule.defer=x"])] == ["POL109"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("gradients: {offload: true}", "gradients"),
        ("optimizer_state: {offload_fraction: 0.5}", "optimizer_state"),
        ("parameters: {offload: true}", "parameters"),
    ],
)
def test_a_clause_that_a_front_end_cannot_honour_is_named_with_its_line(
    tmp_path: Path, target: str, section: str, path: str
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(HEAD + "activations: {default: auto}\n" + section + "\n")
    assert validate_file(str(file)).ok
    (finding,) = validate_file(str(file), target=target).diagnostics
    assert (finding.code, finding.path, finding.line) == ("POL190", path, 5)
    assert target in finding.message
    assert finding.hint


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "section",
    [
        "schedule: {defer: auto, prefetch: auto}",
        "schedule: {select: planned}\nlimits: {device_peak: 40GiB, step_overhead: 5%, host: 64GiB, budget: 8GiB}",
    ],
)
def test_planning_by_time_is_honoured_by_every_front_end(tmp_path: Path, target: str, section: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(HEAD + "activations: {default: auto}\n" + section + "\n")
    assert validate_file(str(file), target=target).diagnostics == ()


@pytest.mark.parametrize("target", TARGETS)
def test_a_policy_without_activations_is_refused_by_a_front_end(target: str) -> None:
    data = {key: value for key, value in DATA.items() if key != "activations"} | {
        "gradients": {"offload": False}
    }
    assert {d.path for d in validate_policy(data, target=target)} == {"activations", "gradients"}


def test_an_unknown_target_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match=r"target is one of graph, inductor, deepspeed, .*, not 'onnx'"):
        validate_policy(DATA, target="onnx")
    assert callable(check_target)


def test_validating_a_policy_takes_well_under_half_a_second() -> None:
    code = (
        "from offload_runtime.validate import validate_file\n"
        "assert validate_file('balanced', target='graph').ok\n"
        "import sys, resource\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(usage.ru_utime + usage.ru_stime)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, check=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert statistics.median(seconds) < 0.4
