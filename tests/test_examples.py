"""Examples are tests: a positive one has no finding, a negative one those that its first line names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offload_runtime.errors import Diagnostic
from offload_runtime.policy_tests import run_policy_tests
from offload_runtime.validate import validate_file

EXAMPLES = Path(__file__).parent / "examples"
POSITIVE = sorted((EXAMPLES / "positive").glob("*.yaml"))
NEGATIVE = sorted((EXAMPLES / "negative").glob("*.yaml"))

EXPECT = re.compile(rb"# expect: (.*)")
TARGET = re.compile(rb"^# for: ([\w-]+)$", re.MULTILINE)


def findings(path: Path) -> tuple[Diagnostic, ...]:
    target = TARGET.search(path.read_bytes())
    verdict = validate_file(str(path), target=target.group(1).decode() if target else None)
    if verdict.kind == "PolicyTest":
        return run_policy_tests(str(path)).all_diagnostics
    return verdict.diagnostics


@pytest.mark.parametrize("path", POSITIVE, ids=lambda path: path.stem)
def test_positive_example_has_no_finding(path: Path) -> None:
    assert findings(path) == ()


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_negative_example_has_exactly_the_findings_that_it_names(path: Path) -> None:
    first_line = path.read_bytes().split(b"\n")[0]
    expected = EXPECT.fullmatch(first_line)
    assert expected is not None, f"line 1 of {path.name} is not '# expect: CODE LINE:COLUMN'"
    in_this_file = [d for d in findings(path) if d.file == str(path)]
    found = ", ".join(f"{d.code} {d.line}:{d.column}" for d in in_this_file)
    assert found == expected.group(1).decode()


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_negative_example_is_named_after_a_code_that_it_provokes(path: Path) -> None:
    assert path.stem.split("-")[0] in {finding.code for finding in findings(path)}


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_every_error_of_a_negative_example_says_how_to_cure_it(path: Path) -> None:
    assert [str(d) for d in findings(path) if d.severity != "note" and d.hint is None] == []
