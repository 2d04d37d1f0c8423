"""One skill checked whole: its card by itself, then against evidence, code, tests, commands and evals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from offload_runtime.card import CARD_FILE, Card
from offload_runtime.card_checks.anchors import check_failure_modes, check_symbols, named_tests
from offload_runtime.card_checks.commands import CommandLookup
from offload_runtime.card_checks.decision_table import check_decision_table
from offload_runtime.card_checks.evals import check_evals, read_evals
from offload_runtime.card_checks.grading import Grader, OutsideGrader
from offload_runtime.card_checks.numbers import ResultFiles, check_numbers
from offload_runtime.card_checks.skill_text import check_skill_text
from offload_runtime.card_checks.symbols import Sources
from offload_runtime.card_checks.test_runs import TestOutcome, run_named_tests
from offload_runtime.card_reading import read_card
from offload_runtime.errors import Diagnostic, UnreadableError, sorted_diagnostics
from offload_runtime.findings import Findings
from offload_runtime.skills_catalog import EVALS_FILE, SKILL_FILE, Skill
from offload_runtime.strict_yaml import read_yaml_file

__all__ = ["Checker", "Checks", "SkillVerdict"]

PACKAGE_PARENT = Path(__file__).parent.parent.parent


NOT_CHECKED = "numbers, tests and evals, for want of a checkout"


@dataclass(frozen=True, slots=True)
class Checks:
    """How many of each were checked; tests are those that were run."""

    conditions: int = 0
    numbers: int = 0
    symbols: int = 0
    commands: int = 0
    evals: int = 0
    tests: int = 0


@dataclass(frozen=True, slots=True)
class SkillVerdict:
    """What was found about one skill; ``not_checked`` says in words what could not be looked at here."""

    name: str
    file: str
    checks: Checks
    not_checked: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Tell whether no finding is an error."""
        return not any(diagnostic.is_error for diagnostic in self.diagnostics)


@dataclass(frozen=True)
class Checker:
    """Checks skills against ``root``, the checkout that holds evidence and tests; None where there is none.

    ``lookup`` knows the command line, ``outside`` the graders that need more than the text layer.
    """

    root: Path | None
    lookup: CommandLookup
    outside: Mapping[str, OutsideGrader] = field(default_factory=dict)

    @cached_property
    def _sources(self) -> Sources:
        return Sources(self.root or PACKAGE_PARENT)

    @cached_property
    def _results(self) -> ResultFiles:
        return ResultFiles(self._sources.root)

    def check(self, skills: Sequence[Skill], *, run_tests: bool = False) -> tuple[SkillVerdict, ...]:
        """Check skills; findings are returned, never raised.

        ``run_tests`` also runs the tests that the cards name, all in one go; ValueError where there is no checkout to
        run them in.
        """
        if run_tests and self.root is None:
            raise ValueError("the tests that a card names can only be run in a checkout of the project")
        readings = []
        for skill in skills:
            findings = Findings()
            readings.append((skill, self._read(skill, findings), findings))
        outcomes = self._run_tests([card for _, card, _ in readings if card is not None]) if run_tests else {}
        return tuple(self._check_skill(skill, card, outcomes, findings) for skill, card, findings in readings)

    def _check_skill(
        self, skill: Skill, card: Card | None, outcomes: Mapping[str, TestOutcome], findings: Findings
    ) -> SkillVerdict:
        checks = Checks()
        if card is not None:
            num_tests = _check_outcomes(card, outcomes, findings)
            checks = replace(self._check_card(skill, card, findings), tests=num_tests)
        if not skill.is_package:
            num_commands, num_evals = self._check_texts(skill, findings)
            checks = replace(checks, commands=checks.commands + num_commands, evals=num_evals)
        return SkillVerdict(
            name=skill.name,
            file=skill.file_label(CARD_FILE),
            checks=checks,
            not_checked=() if self.root is not None else (NOT_CHECKED,),
            diagnostics=sorted_diagnostics(findings.diagnostics),
        )

    def _read(self, skill: Skill, findings: Findings) -> Card | None:
        try:
            document = read_yaml_file(skill.card, file=skill.file_label(CARD_FILE))
        except UnreadableError as error:
            findings.diagnostics += error.diagnostics
            return None
        reading = read_card(document)
        findings.diagnostics += reading.diagnostics
        return reading.card

    def _check_card(self, skill: Skill, card: Card, findings: Findings) -> Checks:
        if card.name != skill.name:
            message = f"the card is called {card.name!r}, and its folder {skill.name!r}"
            findings.add(card.span("name"), "CRD105", message, f"write name: {skill.name}")
        has_checkout = self.root is not None
        num_numbers = check_numbers(card, self._results, findings) if has_checkout else 0
        num_symbols = check_symbols(card, self._sources, findings, has_tests=has_checkout)
        if has_checkout:
            check_failure_modes(card, self._sources, findings)
        return Checks(
            conditions=sum(condition.when is not None for _, condition in card.conditions()),
            numbers=num_numbers,
            symbols=num_symbols,
            commands=self._check_commands(card, findings),
        )

    def _check_texts(self, skill: Skill, findings: Findings) -> tuple[int, int]:
        """Check SKILL.md, references and evals; returns how many commands and evals they have."""
        label = skill.file_label(EVALS_FILE)
        num_commands = check_skill_text(skill, self.lookup, findings)
        check_decision_table(skill.directory, skill.file_label(SKILL_FILE), findings)
        if self.root is None and not skill.path(EVALS_FILE).is_file():
            return num_commands, 0  # evals hold answers, and stay in the checkout
        evals = read_evals(skill.path(EVALS_FILE), skill.name, label, findings)
        grader = Grader(self.lookup, self.outside)
        return num_commands, check_evals(evals, skill.name, label, grader, findings)

    def _check_commands(self, card: Card, findings: Findings) -> int:
        named = [(follow_up.command, follow_up.command_span) for follow_up in card.follow_up_validation]
        named.append((card.next_command, card.span("next_command")))
        given = [(command, span) for command, span in named if command is not None]
        for command, span in given:
            problem = self.lookup(command, True)
            if problem is not None:
                hint = "`offload --help` lists the commands, `offload COMMAND --help` the options"
                findings.add(span, "CRD403", f"`{command}`: {problem}", hint)
        return len(given)

    def _run_tests(self, cards: Sequence[Card]) -> Mapping[str, TestOutcome]:
        """Run each test that a card names and that is there, and return how it went."""
        assert self.root is not None
        named = [test for card in cards for test, _ in named_tests(card)]
        return run_named_tests([test for test in named if self._sources.problem(test) is None], self.root)


def _check_outcomes(card: Card, outcomes: Mapping[str, TestOutcome], findings: Findings) -> int:
    """Find named tests that do not pass; returns how many were run."""
    run = [(test, span) for test, span in named_tests(card) if test in outcomes]
    for test, span in run:
        if outcomes[test] in ("failed", "not run"):
            words = "fails" if outcomes[test] == "failed" else "did not run: pytest finds no such case"
            findings.add(span, "CRD305", f"{test} {words}", f"run python -m pytest '{test}' and see")
    return len(run)
