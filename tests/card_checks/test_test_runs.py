from __future__ import annotations

from pathlib import Path

from offload_runtime.card_checks.test_runs import run_named_tests

TESTS = """\
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.parametrize("n", [1, 2, 3])
def test_table(n): assert n != 2
class TestInside:
    def test_method(self): pass
"""


def test_each_test_gets_its_outcome_and_one_without_a_case_keeps_no_other_from_running(
    tmp_path: Path,
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TESTS)
    expected = {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skipped": "skipped",
        "test_table": "failed",
        "test_table[1]": "passed",
        "test_table[2]": "failed",
        "test_table[9]": "not run",
        "TestInside::test_method": "passed",
    }
    outcomes = run_named_tests([f"tests/test_a.py::{name}" for name in expected], tmp_path)
    assert list(outcomes.values()) == list(expected.values())


def test_nothing_named_runs_nothing(tmp_path: Path) -> None:
    assert run_named_tests([], tmp_path) == {}
