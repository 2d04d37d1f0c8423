"""`offload test`: run the unit tests of policies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, Outcome
from offload_runtime.cli.paths import files_named
from offload_runtime.errors import Diagnostic, Severity, UsageError
from offload_runtime.policy_tests import PolicyTestResult, run_policy_tests, untested_policy
from offload_runtime.shipped import POLICY_FILE, TEST_FILE, locate_policy


@click.command(short_help="Run policy tests (cases.yaml).")
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--coverage", is_flag=True, help="Name the rules that no case covers.")
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Fail where the cases cover fewer of all rules than this; rules of a policy without tests count as "
    "uncovered.",
)
@click.option("--require-tests", is_flag=True, help="Fail for a policy that has no test file.")
@format_option("sarif", "github")
def command(paths: tuple[str, ...], coverage: bool, fail_under: float | None, require_tests: bool) -> Outcome:
    """Run policy tests (cases.yaml): what a policy decides for given tensors. Loads no torch.

    PATH is a test file, a policy with a test file beside it, the name of a shipped policy, or a folder, which
    stands for every policy in and below it; without PATH, the current folder. A rule is covered by a passing
    case that it decides.

    \b
    Example:
      offload test policies --coverage --fail-under 100 --require-tests
    """
    references, untested = _tests(paths or (".",))
    if not references and not untested:
        hint = f"write a {TEST_FILE} beside a policy, or name one"
        raise UsageError(
            Diagnostic("CLI607", "error", f"there is no policy in {' '.join(paths) or '.'}", hint=hint)
        )
    results = [run_policy_tests(reference) for reference in references]
    without = [untested_policy(file) for file in untested]
    findings = [finding for result in (*results, *without) for finding in result.all_diagnostics]
    findings += [_untested(file, "error" if require_tests else "warning") for file in untested]
    reached = Coverage.of([*results, *without])
    if fail_under is not None and not reached.reaches(fail_under):
        findings.append(_too_little(reached, fail_under, [*results, *without]))
    return Outcome(
        data=_data(results, without, reached),
        text="\n".join(
            [
                *(_line(result, coverage) for result in results if result.policy),
                *(_untested_line(result) for result in without if coverage),
                _total(results, reached),
            ]
        ),
        diagnostics=tuple(findings),
        exit_code=_exit_code([*results, *without], findings),
        diagnostics_are_output=True,
    )


@dataclass(frozen=True)
class Coverage:
    """How many rules, over all policies, decide a passing case; a policy without rules is wholly covered."""

    num_covered: int
    num_rules: int

    @classmethod
    def of(cls, results: Sequence[PolicyTestResult]) -> Coverage:
        """Add up the coverage of several test files."""
        return cls(sum(len(r.covered) for r in results), sum(len(r.rules) for r in results))

    @property
    def share(self) -> float:
        """Return the covered share of the rules."""
        return self.num_covered / self.num_rules if self.num_rules else 1.0

    def reaches(self, percent: float) -> bool:
        """Tell whether at least `percent` of the rules are covered; 29 of 100 reach 29."""
        return not self.num_rules or 100 * self.num_covered >= percent * self.num_rules

    def __str__(self) -> str:
        """Write a percentage that is never rounded up: 100 % means all."""
        per_mille = 1000 * self.num_covered // self.num_rules if self.num_rules else 1000
        return f"{per_mille / 10:g} %"


def _tests(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the test files to run, and the policies that have none beside them."""
    tests: dict[str, None] = {}
    untested = []
    for reference in files_named(paths, (POLICY_FILE, TEST_FILE)):
        if os.path.isdir(reference):  # a folder without a policy
            continue
        path, name = locate_policy(reference)
        if path.name == TEST_FILE or not os.path.isfile(path):
            tests[name] = None
        elif os.path.isfile(path.with_name(TEST_FILE)):
            tests[os.path.join(os.path.dirname(name), TEST_FILE)] = None
        else:
            untested.append(name)
    return list(tests), untested


def _untested(file: str, severity: Severity) -> Diagnostic:
    hint = f"write a {TEST_FILE} beside it"
    return Diagnostic("PTS210", severity, f"{file} has no test file", file, hint=hint)


def _too_little(reached: Coverage, fail_under: float, results: Sequence[PolicyTestResult]) -> Diagnostic:
    message = f"rule coverage is {reached}, and --fail-under asks for {fail_under:g} %"
    uncovered = [f"{rule} ({result.policy})" for result in results for rule in result.uncovered]
    return Diagnostic("PTS211", "error", message, hint=f"add a case for {', '.join(uncovered)}")


def _data(
    results: Sequence[PolicyTestResult], without: Sequence[PolicyTestResult], reached: Coverage
) -> dict[str, Any]:
    return {
        "passed": sum(result.num_passed for result in results),
        "failed": sum(result.num_failed for result in results),
        "rule_coverage": reached.share,
        "files": [
            {
                "file": result.file,
                "policy": result.policy,
                "passed": result.num_passed,
                "failed": result.num_failed,
                "rule_coverage": result.rule_coverage,
                "uncovered": list(result.uncovered),
                "cases": [{"name": case.name, "passed": case.passed} for case in result.cases],
            }
            for result in results
        ],
        "untested": [result.file for result in without],
    }


def _line(result: PolicyTestResult, coverage: bool) -> str:
    line = f"{result.file}: {_counts(result.num_passed, result.num_failed)}, "
    line += f"rule coverage {Coverage.of([result])}"
    return line + (_uncovered_lines(result) if coverage else "")


def _untested_line(result: PolicyTestResult) -> str:
    return f"{result.file}: no tests{_uncovered_lines(result)}"


def _uncovered_lines(result: PolicyTestResult) -> str:
    return "".join(f"\n  not covered: {rule}" for rule in result.uncovered)


def _total(results: Sequence[PolicyTestResult], reached: Coverage) -> str:
    if not any(result.cases for result in results):
        return "no case ran"
    counts = _counts(sum(r.num_passed for r in results), sum(r.num_failed for r in results))
    return f"{counts}, rule coverage {reached}"


def _counts(num_passed: int, num_failed: int) -> str:
    return f"{num_passed} passed, {num_failed} failed"


def _exit_code(results: Sequence[PolicyTestResult], findings: Sequence[Diagnostic]) -> int:
    if any(not result.cases and _only_reading(result) for result in results):
        return EXIT_UNREADABLE
    return EXIT_FINDINGS if any(finding.is_error for finding in findings) else EXIT_OK


def _only_reading(result: PolicyTestResult) -> bool:
    """Tell whether a file could not be read at all."""
    errors = [finding for finding in result.diagnostics if finding.is_error]
    return bool(errors) and all(finding.code.startswith("YAML") for finding in errors)
