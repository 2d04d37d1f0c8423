"""The code table and the source agree: what is raised stands in it, and what stands in it can be raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offload_runtime.codes import CODES, FAMILIES, CodeEntry

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "offload_runtime"
CODE = re.compile(r'"((?:YAML|POL|PTS|GRF|PLN|RUN|CLI|MOD|HWP|BEN|CRD|DOC|EXP|ADV)[0-9]{3})"')

# Codes that no file can provoke, with the test that does.
PROVOKED_ELSEWHERE = {
    "YAML001": "test_strict_yaml.py::test_a_directory_or_missing_file_is_unreadable",
    "YAML002": "test_shipped.py::test_an_unknown_name_is_told_the_closest_one",
    "YAML004": "test_strict_yaml.py::test_a_file_larger_than_one_mib_is_not_parsed",
    "YAML006": "test_strict_yaml.py::test_values_are_bounded_at_20000",
    "POL150": "test_overrides.py::test_an_override_is_checked_like_the_file_and_blamed_by_its_own_place",
    "POL170": "test_compiler.py::test_a_relative_range_is_refused_where_the_number_of_layers_is_unknown",
    "POL171": "test_compiler.py::test_a_callable_that_gives_no_action_is_named",
    "POL180": "test_judgement.py::test_a_rule_that_matches_nothing_is_an_error_that_lists_what_was_there",
    "POL181": "test_judgement.py::test_expect_matches_bounds_the_number_of_tensors",
    "POL182": "test_judgement.py::test_one_of_four_layers_with_expect_four_is_an_error",
    "HWP801": "test_hardware.py::test_a_name_that_does_not_exist_is_told_the_closest_one",
    "CRD105": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD201": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD202": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD203": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD301": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD302": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD303": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD304": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD305": "card_checks/test_skill.py::test_named_tests_run_on_request_and_a_failing_one_is_found",
    "CRD401": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD402": "card_checks/test_skill.py::test_one_change_is_found_where_the_skill_rests_on_it",
    "CRD403": "card_checks/test_skill.py::test_a_command_that_is_gone_is_found_where_it_is_named",
    "CRD404": "card_checks/test_decision_table.py::test_a_condition_that_changes_makes_the_table_elsewhere_stale",
    "CRD501": "card_checks/test_evals.py::test_one_fault_is_one_finding",
    "CRD502": "card_checks/test_evals.py::test_one_fault_is_one_finding",
    "CRD503": "card_checks/test_evals.py::test_one_fault_is_one_finding",
    "CRD504": "card_checks/test_evals.py::test_what_would_have_to_train_is_a_note_until_it_is_asked_for",
    "CRD601": "test_skills_catalog.py::test_a_name_that_does_not_exist_is_told_the_closest_one",
    "CRD602": "test_skills_install.py::test_a_file_of_other_contents_is_kept_unless_forced",
    "CRD603": "cli/test_skills.py::test_tests_are_run_in_a_checkout_only",
    "CRD604": "test_skills_install.py::test_a_folder_that_cannot_be_one_is_named",
    "POL183": "test_judgement.py::test_a_rule_that_decides_nothing_is_a_warning_that_names_the_shadower",
}
# Raised by the command line about test files; its own tests provoke them.
OF_THE_COMMAND_LINE = {"PTS210", "PTS211"}


def raised() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.json")]:
        if path.parent.name != "codes":
            for code in CODE.findall(path.read_text("utf-8")):
                found.setdefault(code, set()).add(path.name)
    return found


def test_every_code_that_is_raised_stands_in_the_table() -> None:
    assert {code: files for code, files in raised().items() if code not in CODES} == {}


def test_every_code_in_the_table_is_raised_somewhere() -> None:
    assert sorted(set(CODES) - set(raised())) == []


@pytest.mark.parametrize("entry", CODES.values(), ids=lambda entry: entry.code)
def test_every_entry_explains_itself(entry: CodeEntry) -> None:
    assert entry.code.rstrip("0123456789") in FAMILIES
    assert not entry.title.endswith(".")
    assert entry.explanation.endswith(".")
    assert entry.cure
    assert entry.good_example is None or entry.bad_example is not None


def test_every_code_about_files_has_a_negative_example() -> None:
    families = tuple(code for code in CODES if code.startswith(("YAML", "POL", "PTS", "HWP", "CRD")))
    shown = {path.stem.split("-")[0] for path in (ROOT / "tests/examples/negative").glob("*.yaml")}
    assert sorted(set(families) - shown - set(PROVOKED_ELSEWHERE) - OF_THE_COMMAND_LINE) == []
    assert sorted(shown & set(PROVOKED_ELSEWHERE)) == []


@pytest.mark.parametrize(("code", "test"), PROVOKED_ELSEWHERE.items())
def test_the_test_that_provokes_a_code_exists(code: str, test: str) -> None:
    file, _, name = test.partition("::")
    text = (ROOT / "tests" / file).read_text("utf-8")
    assert f"def {name}(" in text
    assert code in text
