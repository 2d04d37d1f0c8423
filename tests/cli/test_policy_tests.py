from pathlib import Path

import pytest

from offload_runtime.cli.policy_tests import Coverage
from tests.cli.conftest import Offload

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: small
summary: Save matmuls and attention, recompute the rest.
activations:
  default: recompute
  rules:
    - {name: products, match: {op: matmul}, action: save}
    - {name: attention, match: {op: attention}, action: save}
"""
CASES = """\
apiVersion: offload/v1
kind: PolicyTest
policy: policy.yaml
cases:
  - name: a product is saved
    given: {op: aten.mm.default}
    expect: {action: save, rule: products}
"""
ATTENTION = """\
  - name: attention is saved
    given: {op: attention}
    expect: {action: save, rule: attention}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a policy of two rules, of which its tests cover one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "cases.yaml").write_text(CASES)
    return folder


@pytest.mark.parametrize("path", [[], ["small"], ["small/cases.yaml"], ["small/policy.yaml"], ["small", "."]])
def test_a_policy_and_its_tests_are_found_from_every_side_once(
    offload: Offload, small: Path, path: list[str]
) -> None:
    finished = offload("test", *path, "--format", "json")
    assert finished.exit_code == 0
    data = finished.document["data"]
    assert (data["passed"], data["failed"], data["rule_coverage"]) == (1, 0, 0.5)
    assert [file["file"] for file in data["files"]] == ["small/cases.yaml"]


def test_a_failed_case_is_a_finding_at_its_expectation(offload: Offload, small: Path) -> None:
    (small / "cases.yaml").write_text(CASES.replace("action: save", "action: offload"))
    finished = offload("test", "small")
    assert finished.exit_code == 1
    lines = finished.stdout.splitlines()
    assert lines[0].startswith(
        "small/cases.yaml:7:5: PTS201 case 'a product is saved': action save, expected offload"
    )
    assert lines[-1] == "0 passed, 1 failed, rule coverage 0 %"


def test_coverage_names_the_rules_that_no_case_covers(offload: Offload, small: Path) -> None:
    assert "not covered" not in offload("test", "small").stdout
    assert "  not covered: attention" in offload("test", "small", "--coverage").stdout.splitlines()


@pytest.mark.parametrize(("fail_under", "exit_code"), [("50", 0), ("50.1", 1), ("100", 1)])
def test_too_little_coverage_fails_and_says_what_to_add(
    offload: Offload, small: Path, fail_under: str, exit_code: int
) -> None:
    finished = offload("test", "small", "--fail-under", fail_under, "--format", "json")
    assert finished.exit_code == exit_code
    codes = {d["code"]: d["hint"] for d in finished.document["diagnostics"]}
    assert codes == ({} if exit_code == 0 else {"PTS211": "add a case for attention (small)"})


@pytest.mark.parametrize(
    ("num_covered", "num_rules", "percent", "reaches", "text"),
    [
        (29, 100, 29.0, True, "29 %"),
        (28, 100, 29.0, False, "28 %"),
        (1999, 2000, 100.0, False, "99.9 %"),
        (0, 0, 100.0, True, "100 %"),
        (0, 3, 0.0, True, "0 %"),
    ],
)
def test_coverage_is_counted_exactly_and_never_rounded_up(
    num_covered: int, num_rules: int, percent: float, reaches: bool, text: str
) -> None:
    coverage = Coverage(num_covered, num_rules)
    assert coverage.reaches(percent) is reaches
    assert str(coverage) == text


def test_the_rules_of_a_policy_without_tests_count_as_uncovered(offload: Offload, small: Path) -> None:
    (small / "cases.yaml").write_text(CASES + ATTENTION)
    other = small.parent / "other"
    other.mkdir()
    (other / "policy.yaml").write_text(POLICY.replace("name: small", "name: other"))
    finished = offload("test", ".", "--fail-under", "51", "--coverage", "--format", "json")
    assert finished.exit_code == 1
    assert finished.document["data"]["rule_coverage"] == 0.5
    hints = {d["code"]: d["hint"] for d in finished.document["diagnostics"]}
    assert hints["PTS211"] == "add a case for products (other), attention (other)"
    assert offload("test", ".", "--fail-under", "50").exit_code == 0
    text = offload("test", ".", "--coverage").stdout
    assert "other/policy.yaml: no tests\n  not covered: products\n  not covered: attention\n" in text


def test_a_policy_without_tests_and_without_rules_leaves_nothing_uncovered(
    offload: Offload, small: Path
) -> None:
    (small / "cases.yaml").unlink()
    (small / "policy.yaml").write_text(POLICY.partition("  rules:")[0])
    assert offload("test", "small", "--fail-under", "100").exit_code == 0


def test_a_policy_without_tests_that_is_wrong_fails_with_its_findings(offload: Offload, small: Path) -> None:
    (small / "cases.yaml").unlink()
    (small / "policy.yaml").write_text(POLICY.replace("op: matmul", "op: matmull"))
    finished = offload("test", "small", "--format", "json")
    assert finished.exit_code == 1
    assert {d["code"] for d in finished.document["diagnostics"]} == {"POL120", "PTS210"}


@pytest.mark.parametrize(
    ("output_format", "shown"), [("github", "::error file=small/cases.yaml,line=7"), ("sarif", '"PTS201"')]
)
def test_failures_are_annotations_where_that_is_asked_for(
    offload: Offload, small: Path, output_format: str, shown: str
) -> None:
    (small / "cases.yaml").write_text(CASES.replace("action: save", "action: offload"))
    finished = offload("test", "small", "--format", output_format)
    assert (finished.exit_code, shown in finished.stdout) == (1, True)


def test_full_coverage_satisfies_the_highest_demand(offload: Offload, small: Path) -> None:
    (small / "cases.yaml").write_text(CASES + ATTENTION)
    assert offload("test", "small", "--fail-under", "100").exit_code == 0


@pytest.mark.parametrize(
    ("option", "severity", "exit_code"), [([], "warning", 0), (["--require-tests"], "error", 1)]
)
def test_a_policy_without_tests_is_warned_about_or_refused(
    offload: Offload, small: Path, option: list[str], severity: str, exit_code: int
) -> None:
    (small / "cases.yaml").unlink()
    finished = offload("test", "small", *option, "--format", "json")
    assert finished.exit_code == exit_code
    (finding,) = finished.document["diagnostics"]
    assert (finding["code"], finding["severity"], finding["file"]) == (
        "PTS210",
        severity,
        "small/policy.yaml",
    )
    assert finished.document["data"]["untested"] == ["small/policy.yaml"]


def test_where_no_case_ran_no_coverage_is_claimed(offload: Offload, small: Path) -> None:
    (small / "cases.yaml").unlink()
    assert offload("test", "small").stdout.splitlines()[-1] == "no case ran"


def test_a_shipped_policy_is_tested_by_its_name(offload: Offload, small: Path) -> None:
    finished = offload("test", "sac-default", "--format", "json")
    assert finished.exit_code == 0
    assert finished.document["data"]["files"][0]["file"] == "policies/sac-default/cases.yaml"


def test_a_folder_without_policies_is_a_usage_error_not_a_success(
    offload: Offload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = offload("test", "--format", "json")
    assert finished.exit_code == 2
    assert finished.document["diagnostics"][0]["code"] == "CLI607"


@pytest.mark.parametrize("path", ["missing/cases.yaml", "nonesuch"])
def test_a_test_file_that_cannot_be_read_is_exit_code_3(offload: Offload, small: Path, path: str) -> None:
    assert offload("test", path, "small").exit_code == 3
