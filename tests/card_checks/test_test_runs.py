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


def test_each_test_gets_its_outcome_and_a_table_that_of_its_worst_case(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TESTS)
    names = ["passes", "fails", "skipped", "table", "table[1]", "table[2]"]
    tests = [f"tests/test_a.py::test_{name}" for name in names]
    outcomes = run_named_tests([*tests, "tests/test_a.py::TestInside::test_method"], tmp_path)
    assert list(outcomes.values()) == [
        "passed",
        "failed",
        "skipped",
        "failed",
        "passed",
        "failed",
        "passed",
    ]


def test_a_case_that_does_not_exist_did_not_run_and_the_others_did(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(TESTS)
    outcomes = run_named_tests(["tests/test_a.py::test_table[9]", "tests/test_a.py::test_passes"], tmp_path)
    assert list(outcomes.values()) == ["not run", "passed"]


def test_nothing_named_runs_nothing(tmp_path: Path) -> None:
    assert run_named_tests([], tmp_path) == {}
