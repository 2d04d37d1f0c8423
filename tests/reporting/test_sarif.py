import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offload_runtime import __version__
from offload_runtime.codes import CODES
from offload_runtime.errors import Diagnostic
from offload_runtime.reporting import sarif
from offload_runtime.validate import validate_file

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "schemas/sarif-schema-2.1.0.json").read_text("utf-8"))
NEGATIVE = sorted((ROOT / "tests/examples/negative").glob("*.yaml"))


def run_of(*diagnostics: Diagnostic) -> dict[str, Any]:
    """Render the log, hold it against the standard's schema, and return its only run."""
    log = json.loads(sarif.render(diagnostics))
    jsonschema.Draft7Validator(SCHEMA).validate(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return dict(run)


def test_every_finding_of_the_examples_makes_a_log_that_the_schema_of_the_standard_accepts() -> None:
    findings = [finding for path in NEGATIVE for finding in validate_file(str(path)).diagnostics]
    assert len(run_of(*findings)["results"]) == len(findings) > len(NEGATIVE) / 2


def test_the_schema_refuses_a_log_whose_level_is_none_of_the_standard() -> None:
    log = json.loads(sarif.render([Diagnostic("POL104", "error", "a", "p.yaml")]))
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(log)


def test_an_empty_log_says_that_nothing_was_found_and_by_which_version() -> None:
    run = run_of()
    assert run["results"] == []
    assert run["tool"]["driver"]["version"] == __version__
    assert "invocations" not in run


def test_each_code_is_one_rule_that_its_results_point_at() -> None:
    run = run_of(
        Diagnostic("POL120", "error", "a", "p.yaml", 3, 5),
        Diagnostic("POL104", "warning", "b", "p.yaml", 1),
        Diagnostic("POL120", "note", "c", "p.yaml"),
    )
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["POL104", "POL120"]
    assert run["tool"]["driver"]["rules"][0]["help"]["text"] == CODES["POL104"].cure
    assert [(r["ruleId"], r["ruleIndex"], r["level"]) for r in run["results"]] == [
        ("POL120", 1, "error"),
        ("POL104", 0, "warning"),
        ("POL120", 1, "note"),
    ]


def test_a_place_is_given_as_far_as_it_is_known() -> None:
    full, line_only, file_only = run_of(
        Diagnostic("POL104", "error", "a", "a folder/p.yaml", 3, 5),
        Diagnostic("POL104", "error", "b", "/etc/p.yaml", 1),
        Diagnostic("POL104", "error", "c", "p.yaml"),
    )["results"]
    assert full["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20folder/p.yaml"},
        "region": {"startLine": 3, "startColumn": 5},
    }
    assert line_only["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "file:///etc/p.yaml"},
        "region": {"startLine": 1},
    }
    assert file_only["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "p.yaml"}}


@pytest.mark.parametrize(("severity", "successful"), [("error", False), ("warning", True)])
def test_what_stands_in_no_file_is_a_notification_on_the_call(severity: Any, successful: bool) -> None:
    run = run_of(
        Diagnostic("POL104", severity, "5 is no size", "--set", 1, 15, hint="write 5GiB"),
        Diagnostic("CLI601", "warning", "b"),
    )
    assert run["results"] == []
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is successful
    override, call = invocation["toolConfigurationNotifications"]
    assert override["message"] == {"text": "5 is no size (write 5GiB)"}
    assert override["associatedRule"] == {"id": "POL104", "index": 1}
    assert (call["level"], call["associatedRule"]["index"]) == ("warning", 0)


def test_the_hint_is_part_of_the_message() -> None:
    (result,) = run_of(Diagnostic("POL104", "error", "5 is no size", "p.yaml", hint="write 5GiB"))["results"]
    assert result["message"] == {"text": "5 is no size (write 5GiB)"}


def test_a_file_whose_name_is_no_text_is_named_by_its_bytes() -> None:
    """Names of files are bytes: what is no UTF-8 in them comes in as lone surrogates."""
    finding = Diagnostic("YAML003", "error", "bad\udcff.yaml is not UTF-8", "bad\udcff.yaml", 1)
    (result,) = run_of(finding)["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "bad%FF.yaml"}
    assert sarif.render([finding]).isascii()
