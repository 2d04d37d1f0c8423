"""The decision table in a SKILL.md is what the cards beside it say."""

from __future__ import annotations

from typing import Any

import yaml

from offload_runtime.card import Card
from offload_runtime.card_checks.decision_table import DECISION_TABLE, decision_table, with_decision_table
from offload_runtime.card_reading import load_card
from tests.card_checks.small_project import CARD, NAME, SKILL_TEXT, Project


def card(name: str) -> Card:
    data: Any = yaml.safe_load(CARD)
    return load_card({**data, "name": name})


def test_rows_say_for_and_against_by_facts_and_share_what_is_the_same() -> None:
    assert decision_table([card("c"), card("a"), card("reader")], "reader") == (
        "| condition | facts | decision |\n"
        "|---|---|---|\n"
        "| The step does not fit. | `fits` is false | use a, c |\n"
        "| The step fits. | `fits` is true | not a, c |\n"
    )


def test_what_stands_between_the_marks_is_replaced_and_nothing_else() -> None:
    text = f"# A\n\n{DECISION_TABLE}old\n<!-- end -->\n\nafter\n"
    written = with_decision_table(text, [card("a")], "reader")
    assert written.startswith(f"# A\n\n{DECISION_TABLE}\n| condition |")
    assert written.endswith("| not a |\n\n<!-- end -->\n\nafter\n")
    assert with_decision_table(written, [card("a")], "reader") == written
    assert with_decision_table("# A\n", [card("a")], "reader") == "# A\n"


def test_a_condition_that_changes_makes_the_table_elsewhere_stale(project: Project) -> None:
    project.write("skills/other/card.yaml", CARD.replace(NAME, "other"))
    table = with_decision_table(f"{SKILL_TEXT}\n{DECISION_TABLE}<!-- end -->\n", [card("other")], NAME)
    project.write(f"skills/{NAME}/SKILL.md", table)
    assert project.check().diagnostics == ()
    changed = CARD.replace(NAME, "other").replace("The step does not fit.", "The step is too large.")
    project.write("skills/other/card.yaml", changed)
    (finding,) = project.check().diagnostics
    assert (finding.code, finding.file) == ("CRD404", f"skills/{NAME}/SKILL.md")
    assert finding.line == table[: table.index(DECISION_TABLE)].count("\n") + 1
