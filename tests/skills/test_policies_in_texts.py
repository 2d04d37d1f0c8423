"""The policies that the skills show: each is valid, and tests beside them pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.card_checks.commands import fenced_blocks
from offload_runtime.policy_tests import run_policy_tests
from offload_runtime.skills_catalog import list_skills
from offload_runtime.validate import validate_file

BLOCKS = {
    f"{skill.name}/{file}:{line}": block
    for skill in list_skills()
    for file in skill.files()
    if file.endswith(".md")
    for language, block, line in fenced_blocks(skill.path(file).read_text("utf-8"))
    if language == "yaml"
}


@pytest.mark.parametrize("place", [place for place, block in BLOCKS.items() if "kind: Policy\n" in block])
def test_a_policy_in_a_text_is_valid(place: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(BLOCKS[place])
    assert validate_file(str(file)).diagnostics == ()


def test_the_shown_test_covers_every_rule_of_the_shown_policy(tmp_path: Path) -> None:
    """The cases of the reference page are for the policy of SKILL.md."""
    mine = {place: block for place, block in BLOCKS.items() if place.startswith("write-offload-policy/")}
    (policy,) = [block for block in mine.values() if "name: first-half-mlp" in block]
    (cases,) = [block for block in mine.values() if "kind: PolicyTest" in block]
    (tmp_path / "policy.yaml").write_text(policy)
    (tmp_path / "cases.yaml").write_text(cases)
    result = run_policy_tests(str(tmp_path / "cases.yaml"))
    assert result.all_diagnostics == ()
    assert set(result.covered) == set(result.rules)
    assert result.rules
