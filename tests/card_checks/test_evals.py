from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.card_checks.small_project import NAME, Project, evals, one_eval

EVALS = f"skills/{NAME}/evals/evals.json"
Change = Callable[[dict[str, Any]], object]


def findings(project: Project, change: Change, **options: Any) -> list[tuple[str, str]]:
    data = evals()
    change(data)
    project.write(EVALS, json.dumps(data, indent=1))
    found = project.check(**options).diagnostics
    assert {finding.file for finding in found} <= {EVALS}
    return [(finding.code, finding.message) for finding in found]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda d: d["evals"].append(one_eval("case-0")), "CRD501", "two evals are called case-0"),
        (lambda d: d["evals"][0].update(should_trigger=False), "CRD501", "2 prompts that should trigger"),
        (lambda d: d["evals"][5].update(should_trigger=True), "CRD501", "2 prompts that should not"),
        (lambda d: d["evals"][1].update(prompt=f"Use {NAME}."), "CRD501", "the prompt of case-1 names"),
        (lambda d: d["evals"][2].update(right_answer="Wait."), "CRD502", "the right answer of case-2 fails"),
        (
            lambda d: d["evals"][3].update(wrong_answer="Not `offload apply`."),
            "CRD503",
            "the wrong answer of case-3 passes",
        ),
        (lambda d: d["evals"].pop(), "POL110", "the list has 5 of at least 6 members"),
        (lambda d: d["evals"][0]["assertions"][0].update(kind="rhymes"), "POL102", "is not an assertion"),
        (lambda d: d["evals"][0]["assertions"][0].pop("any_of"), "POL101", "key 'any_of' is missing"),
        (lambda d: d["evals"][0].update(judge="a model"), "POL100", "unknown key 'judge'"),
    ],
)
def test_one_fault_is_one_finding(project: Project, change: Change, code: str, message: str) -> None:
    ((found_code, found_message),) = findings(project, change)
    assert found_code == code
    assert message in found_message


def test_evals_of_another_skill_are_refused(project: Project) -> None:
    assert findings(project, lambda d: d.update(skill="other")) == [
        ("CRD501", "these are the evals of 'other'")
    ]


def needs_training(data: dict[str, Any]) -> None:
    data["evals"][0]["assertions"] = [{"kind": "apply_saves", "min_bytes": "1MiB"}]
    data["evals"][0]["right_answer"] = "```yaml\nkind: Policy\nname: good\n```\n"
    data["evals"][0]["wrong_answer"] = "```yaml\nkind: Policy\nname: bad\n```\n"


def test_what_would_have_to_train_is_a_note_until_it_is_asked_for(project: Project) -> None:
    ((code, message),) = findings(project, needs_training)
    assert code == "CRD504"
    assert "hangs on 1 assertion that was not graded" in message
    assert project.check().ok


def test_asked_for_it_is_graded(project: Project) -> None:
    outside = {"apply_saves": lambda policy, assertion: None if "good" in policy else "it saves nothing"}
    assert findings(project, needs_training, outside=outside) == []
    nothing = {"apply_saves": lambda policy, assertion: None}
    assert [code for code, _ in findings(project, needs_training, outside=nothing)] == ["CRD503"]


def test_a_finding_stands_at_its_eval(project: Project) -> None:
    data = evals()
    data["evals"][2]["right_answer"] = "Wait."
    project.write(EVALS, json.dumps(data, indent=1))
    ((_, file, line),) = project.findings()
    assert file == EVALS
    assert line == project.line(EVALS, '"id": "case-2"') - 1
