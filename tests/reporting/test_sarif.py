import json
from typing import Any

from offload_runtime.codes import CODES
from offload_runtime.errors import Diagnostic
from offload_runtime.reporting import sarif


def run_of(*diagnostics: Diagnostic) -> dict[str, Any]:
    """Render the log and return its only run."""
    log = json.loads(sarif.render(diagnostics))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return dict(run)


def test_each_code_is_one_rule_that_its_results_point_at() -> None:
    run = run_of(
        Diagnostic("POL120", "error", "a", "p.yaml", 3, 5),
        Diagnostic("POL104", "warning", "b", "p.yaml", 1),
        Diagnostic("POL120", "note", "c"),
    )
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["POL104", "POL120"]
    assert run["tool"]["driver"]["rules"][0]["help"]["text"] == CODES["POL104"].cure
    assert [(r["ruleId"], r["ruleIndex"], r["level"]) for r in run["results"]] == [
        ("POL120", 1, "error"),
        ("POL104", 0, "warning"),
        ("POL120", 1, "note"),
    ]


def test_a_place_is_given_as_far_as_it_is_known() -> None:
    full, line_only, nowhere, override = run_of(
        Diagnostic("POL104", "error", "a", "a folder/p.yaml", 3, 5),
        Diagnostic("POL104", "error", "b", "/etc/p.yaml", 1),
        Diagnostic("POL104", "error", "c"),
        Diagnostic("POL104", "error", "d", "--set", 1, 15),
    )["results"]
    assert full["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20folder/p.yaml"},
        "region": {"startLine": 3, "startColumn": 5},
    }
    assert line_only["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "file:///etc/p.yaml"},
        "region": {"startLine": 1},
    }
    assert "locations" not in nowhere
    assert "locations" not in override


def test_the_hint_is_part_of_the_message() -> None:
    (result,) = run_of(Diagnostic("POL104", "error", "5 is no size", hint="write 5GiB"))["results"]
    assert result["message"] == {"text": "5 is no size (write 5GiB)"}
