"""Run the tests that cards name, by pytest, in this repository and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from offload_runtime.card_checks.symbols import split_reference

__all__ = ["TestOutcome", "run_named_tests"]

TestOutcome = Literal["passed", "failed", "skipped", "not run"]
PYTEST_USAGE_ERROR = 4
_RANK: tuple[TestOutcome, ...] = ("not run", "skipped", "passed", "failed")


def run_named_tests(tests: Iterable[str], root: Path) -> Mapping[str, TestOutcome]:
    """Run tests given as ``tests/FILE.py::name`` and return how each went; of a table, the worst of its cases.

    Everything runs in one process of pytest, started in ``root`` with that checkout's own configuration.
    """
    named = tuple(dict.fromkeys(tests))
    if not named:
        return {}
    exit_code, results = _run(named, root)
    if exit_code == PYTEST_USAGE_ERROR:
        # One id of no case keeps pytest from running anything: run the whole tables, and look the cases up in them.
        _, results = _run(tuple(dict.fromkeys(test.partition("[")[0] for test in named)), root)
    return {test: _outcome(test, results) for test in named}


def _run(tests: tuple[str, ...], root: Path) -> tuple[int, tuple[tuple[str, str, TestOutcome], ...]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        ]
        command += [f"--junit-xml={report}", "-o", "junit_family=xunit1", *tests]
        finished = subprocess.run(command, cwd=root, check=False, capture_output=True)
        return finished.returncode, _results(report) if report.is_file() else ()


def _results(report: Path) -> tuple[tuple[str, str, TestOutcome], ...]:
    """Return file, name with its id, and outcome of each case in a report of pytest."""
    cases = []
    for case in ElementTree.parse(report).iter("testcase"):
        outcome: TestOutcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        cases.append((case.get("file", ""), case.get("name", ""), outcome))
    return tuple(cases)


def _outcome(test: str, results: tuple[tuple[str, str, TestOutcome], ...]) -> TestOutcome:
    file, _ = split_reference(test)
    name = test.rpartition("::")[2]
    found = [
        outcome
        for in_file, case, outcome in results
        if in_file == file and (case == name or case.partition("[")[0] == name)
    ]
    return max(found, key=_RANK.index, default="not run")
