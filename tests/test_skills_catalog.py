from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.card import CARD_FILE
from offload_runtime.errors import UnreadableError
from offload_runtime.shipped import find_source, skills_directory
from offload_runtime.skills_catalog import (
    PACKAGE_CARD,
    SKILL_FILE,
    find_skill,
    list_skills,
    package_card,
    repository_root,
)

ROOT = Path(__file__).parent.parent
SKILLS = (
    "choose-offload",
    "diagnose-offload-overhead",
    "export-offload-policy",
    "offload-optimizer-state",
    "tune-activation-offload",
    "write-offload-policy",
)


def test_the_promised_skills_are_shipped_each_with_its_files() -> None:
    assert tuple(skill.name for skill in list_skills()) == SKILLS
    for skill in list_skills():
        assert {SKILL_FILE, CARD_FILE, "evals/evals.json"} <= set(skill.files())


def test_the_package_has_a_card_of_its_own() -> None:
    card = package_card()
    assert (card.name, card.is_package) == (PACKAGE_CARD, True)
    assert card.card == ROOT / CARD_FILE
    assert card.files() == (CARD_FILE,)
    assert find_skill(PACKAGE_CARD) == card


def test_findings_call_a_shipped_file_by_its_place_in_the_repository() -> None:
    skill = find_skill("choose-offload")
    assert skill.file_label(SKILL_FILE) == "skills/choose-offload/SKILL.md"
    assert package_card().file_label(CARD_FILE) == "card.yaml"


def test_such_a_name_leads_to_the_file_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_source("skills/choose-offload/SKILL.md") == skills_directory() / "choose-offload/SKILL.md"


def test_a_folder_elsewhere_is_a_skill_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "mine/references").mkdir(parents=True)
    for file in ("SKILL.md", "references/b.md", "references/a.md", ".hidden"):
        (tmp_path / "mine" / file).write_text("x")
    for reference in (f"{tmp_path}/mine", f"{tmp_path}/mine/card.yaml"):
        skill = find_skill(reference)
        assert (skill.name, skill.label) == ("mine", f"{tmp_path}/mine")
        assert skill.files() == ("SKILL.md", "references/a.md", "references/b.md")


@pytest.mark.parametrize(
    ("reference", "hint"),
    [("tune-activations-offload", "did you mean tune-activation-offload?"), ("x", "skills: ")],
)
def test_a_name_that_does_not_exist_is_told_the_closest_one(reference: str, hint: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        find_skill(reference)
    (finding,) = caught.value.diagnostics
    assert finding.code == "CRD601"
    assert (finding.hint or "").startswith(hint)


def test_the_checkout_is_found_that_this_package_runs_from() -> None:
    assert repository_root() == ROOT


@pytest.mark.parametrize("folder", [".agents/skills", ".claude/skills"])
def test_agents_find_the_skills_through_a_link(folder: str) -> None:
    link = ROOT / folder
    assert link.is_symlink()
    assert link.readlink() == Path("../skills")
    assert (link / "choose-offload" / SKILL_FILE).is_file()
