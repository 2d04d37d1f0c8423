"""What a card says is checked against what it names: each change of that is found, with card and line."""

from __future__ import annotations

import json

import pytest

from offload_runtime.card_checks import Checker
from offload_runtime.card_checks.skill import Checks
from offload_runtime.skills_catalog import Skill
from tests.card_checks.small_project import NAME, RESULT, Project

CARD = f"skills/{NAME}/card.yaml"
TEXT = f"skills/{NAME}/SKILL.md"
DETAILS = f"skills/{NAME}/references/details.md"
EVALS = f"skills/{NAME}/evals/evals.json"


def test_a_skill_in_which_nothing_is_wrong_has_no_finding(project: Project) -> None:
    verdict = project.check()
    assert verdict.diagnostics == ()
    assert verdict.ok
    assert verdict.checks == Checks(conditions=2, numbers=4, symbols=3, commands=4, evals=6, tests=0)
    assert verdict.not_checked == ()


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "place"),
    [
        ("docs/evidence/run.json", "1.0088", "1.0098", "CRD203", (CARD, "value: 1.009")),
        ("docs/evidence/run.json", "1.0131", "1.0141", "CRD203", (CARD, "value: 1.009")),
        ("docs/evidence/run.json", "1.0056", "1.0066", "CRD203", (CARD, "value: 1.009")),
        ("docs/evidence/run.json", "1.0094, ", "", "CRD203", (CARD, "value: 1.009")),
        ("docs/evidence/run.json", '"ratio":', '"quotient":', "CRD202", (CARD, "file: docs/evidence")),
        ("docs/evidence/run.json", "1.0088", '"1.0088"', "CRD202", (CARD, "file: docs/evidence")),
        (CARD, "value: 1.009\n", "value: 1.0087\n", "CRD203", (CARD, "value: 1.0087")),
        (CARD, "evidence/run.json", "evidence/other.json", "CRD201", (CARD, "file: docs/evidence/other")),
        ("offload_runtime/units.py", "def parse", "def read", "CRD301", (CARD, "symbol:")),
        ("offload_runtime/units.py", "class Size", "class Length", "CRD301", (CARD, "symbol:")),
        (
            "tests/test_units.py",
            "a_size_has_a_unit",
            "a_size_is_odd",
            "CRD302",
            (CARD, "test: tests/test_units"),
        ),
        ("tests/test_arena.py", "a_full_host", "a_host", "CRD302", (CARD, "test: tests/test_arena")),
        (
            "offload_runtime/arena.py",
            "the host can give",
            "the host has",
            "CRD303",
            (CARD, "error: the host"),
        ),
        ("tests/test_arena.py", "RUN503", "RUN504", "CRD304", (CARD, "test: tests/test_arena")),
        (CARD, "name: move-things", "name: move-stuff", "CRD105", (CARD, "name: move-stuff")),
        (TEXT, "name: move-things", "name: move-stuff", "CRD401", (TEXT, "name: move-stuff")),
        (TEXT, 'description: "', 'summary: "x"\ndescription: "', "CRD401", (TEXT, "summary:")),
        (TEXT, "references/details.md", "references/detail.md", "CRD402", (TEXT, "references/detail.md")),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("CRD") else "",
)
def test_one_change_is_found_where_the_skill_rests_on_it(
    project: Project, file: str, old: str, new: str, code: str, place: tuple[str, str]
) -> None:
    project.replace(file, old, new)
    assert project.findings() == [(code, place[0], project.line(*place))]


def test_a_result_file_that_is_no_json_is_found(project: Project) -> None:
    project.write("docs/evidence/run.json", "{")
    assert [code for code, _, _ in project.findings()] == ["CRD201"]


def test_a_number_that_rounds_to_what_the_card_says_is_not_stale(project: Project) -> None:
    project.write("docs/evidence/run.json", json.dumps({**RESULT, "ratio": 1.00949}))
    assert project.findings() == []


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("explain", (CARD, "next_command")),
        ("apply", (CARD, "command: offload apply")),
        ("codes", (TEXT, "offload codes")),
        ("validate", (TEXT, "offload validate")),
    ],
)
def test_a_command_that_is_gone_is_found_where_it_is_named(
    project: Project, command: str, place: tuple[str, str]
) -> None:
    findings = project.findings(missing_command=f"offload {command}")
    assert ("CRD403", place[0], project.line(*place)) in findings


def test_a_command_in_a_reference_is_looked_up_too(project: Project) -> None:
    project.write(DETAILS, "# Details\n\nSee `offload bench`.\n")
    assert project.findings(missing_command="offload bench") == [("CRD403", DETAILS, 3)]


@pytest.mark.parametrize("text", ["# Move things\n", "---\nname: move-things\n"])
def test_a_text_without_frontmatter_is_refused(project: Project, text: str) -> None:
    project.write(TEXT, text)
    assert project.findings() == [("CRD401", TEXT, 1)]


def test_a_frontmatter_that_is_no_yaml_is_found(project: Project) -> None:
    project.replace(TEXT, "name: move-things", "name: [")
    assert [(code, file) for code, file, _ in project.findings()] == [("YAML010", TEXT)]


@pytest.mark.parametrize("length", [0, 1025])
def test_a_description_has_1_to_1024_characters(project: Project, length: int) -> None:
    project.replace(TEXT, "Moves things. Use when they do not fit.", "x" * length)
    assert project.findings() == [("CRD401", TEXT, 3)]


def test_a_text_of_500_lines_is_too_long(project: Project) -> None:
    project.write(TEXT, (project.root / TEXT).read_text() + "\n" * 500)
    assert project.findings() == [("CRD401", TEXT, 1)]


@pytest.mark.parametrize("file", [CARD, TEXT, EVALS])
def test_a_file_that_is_missing_is_found(project: Project, file: str) -> None:
    (project.root / file).unlink()
    assert project.findings() == [("YAML001", file, None)]


def test_the_texts_are_checked_beside_a_broken_card(project: Project) -> None:
    project.replace(CARD, "title: Move things\n", "")
    project.replace(TEXT, "references/details.md", "references/detail.md")
    assert [code for code, _, _ in project.findings()] == ["CRD402", "POL101"]


def test_without_a_checkout_the_numbers_and_tests_are_said_to_be_unchecked(project: Project) -> None:
    skill = Skill(NAME, project.root / "skills" / NAME, f"skills/{NAME}")
    checker = Checker(None, lambda line, is_whole: None)
    (verdict,) = checker.check([skill])
    # The symbol is looked up in the installed package, which has no such class.
    assert [finding.code for finding in verdict.diagnostics] == ["CRD301"]
    assert verdict.not_checked == ("numbers, tests and evals, for want of a checkout",)
    assert verdict.checks.numbers == 0
    with pytest.raises(ValueError, match="in a checkout"):
        checker.check([skill], run_tests=True)


def test_named_tests_run_on_request_and_a_failing_one_is_found(project: Project) -> None:
    verdict = project.check(run_tests=True)
    assert (verdict.checks.tests, verdict.diagnostics) == (2, ())
    project.replace("tests/test_units.py", "assert True", "assert False")
    expected = ("CRD305", CARD, project.line(CARD, "test: tests/test_units"))
    assert project.findings(run_tests=True) == [expected]
    assert project.findings() == []


def test_nothing_that_a_card_names_is_imported_or_run_by_itself(project: Project) -> None:
    trap = f"open({str(project.root / 'sprung')!r}, 'w').close()\n"
    for file in ("offload_runtime/units.py", "tests/test_units.py", "tests/test_arena.py"):
        path = project.root / file
        path.write_text(trap + path.read_text())
    assert project.findings() == []
    assert not (project.root / "sprung").exists()
