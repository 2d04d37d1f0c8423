"""The errors that the skills quote: provoked here, and compared with what SKILL.md and card.yaml say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offload_runtime.card import FailureMode
from offload_runtime.card_reading import load_card
from offload_runtime.skills_catalog import Skill, list_skills, package_card
from offload_runtime.validate import validate_file

HEAD = "apiVersion: offload/v1\nkind: Policy\nname: p\n"
RULES = HEAD + "activations:\n  default: recompute\n  rules:\n"

# Code: the policy that provokes it, and the message as a whole.
MISTAKES = {
    "POL104": (
        HEAD + "limits: {budget: 12}\nactivations: {default: auto}\n",
        "12 is not a size with a unit, or unlimited",
    ),
    "POL109": (
        HEAD + "optimizer_state: {offload_fraction: 1.5}\n",
        "1.5 is not between 0 and 1",
    ),
    "POL120": (
        RULES + "    - {name: heavy, match: {op: [matmull, attention]}, action: offload}\n",
        "'matmull' is not an op class such as matmul, or an overload such as aten.mm.default",
    ),
    "POL127": (
        RULES
        + "    - {name: products, match: {op: matmul}, action: save}\n"
        + "    - {name: mlp, match: {op: matmul, layers: ':8'}, action: offload}\n",
        "rule 'mlp' is unreachable: 'products' (line 7) matches all it could match",
    ),
    "POL160": (
        HEAD + "extends: [moe]\nschedule: {defer: 8}\n",
        "the policy is for mixtures of experts: defer 8 has cost mixtures of experts 24 % of their speed, or a timeout",
    ),
    "POL190": (
        HEAD + "activations: {default: auto}\noptimizer_state: {offload_fraction: 0.5}\n",
        "inductor cannot honour optimizer_state: optimizer_state is not honoured by this runtime yet",
    ),
}

_ROW = re.compile(r"^\| (?:`(?P<error>[^`]+)`|[^|]*?)(?: \((?P<code>[A-Z]{3,4}\d{3})\))? \|", re.MULTILINE)


@pytest.mark.parametrize("code", MISTAKES)
def test_a_mistake_in_a_policy_has_the_text_that_a_skill_quotes(code: str, tmp_path: Path) -> None:
    policy, message = MISTAKES[code]
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    found = {(d.code, d.message) for d in validate_file(str(file), target="inductor").diagnostics}
    assert (code, message) in found
    quoted = [
        mode.error for skill in (*list_skills(), package_card()) for mode in modes(skill) if mode.code == code
    ]
    assert quoted
    assert all(fits(message, error) for error in quoted), quoted


@pytest.mark.parametrize("skill", list_skills(), ids=lambda skill: skill.name)
def test_the_failure_table_of_a_skill_names_the_errors_of_its_card(skill: Skill) -> None:
    """Every error of ours with its code, both ways; every quoted text of another system is on the card."""
    text = skill.path("SKILL.md").read_text("utf-8")
    rows = list(_ROW.finditer(text.partition("\n## Failure table\n")[2]))
    card = modes(skill)
    assert {row["code"] for row in rows if row["code"]} == {mode.code for mode in card if mode.code}
    texts = [mode.error for mode in card]
    for row in rows:
        if row["error"] and not row["code"]:
            assert any(row["error"] in error for error in texts), row["error"]


def modes(skill: Skill) -> tuple[FailureMode, ...]:
    return load_card(skill.card).failure_modes


def fits(message: str, error: str) -> bool:
    """Tell whether ``message`` reads as ``error`` does; ... stands for whatever differs."""
    return re.fullmatch(".*".join(map(re.escape, error.split("..."))), message) is not None
