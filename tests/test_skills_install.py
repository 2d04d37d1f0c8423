from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.errors import RefusedError, UsageError
from offload_runtime.skills_catalog import Skill, list_skills
from offload_runtime.skills_install import InstalledSkill, install_skills


@pytest.fixture
def skill(tmp_path: Path) -> Skill:
    for file in ("SKILL.md", "card.yaml", "references/a.md", "evals/evals.json"):
        path = tmp_path / "source" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    return Skill("mine", tmp_path / "source", "source")


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_an_agent_reads_is_copied_and_evals_are_not(skill: Skill, tmp_path: Path) -> None:
    target = tmp_path / "a/b"
    (installed,) = install_skills([skill], target)
    assert installed == InstalledSkill("mine", (target / "mine").as_posix(), num_written=3, num_unchanged=0)
    assert files(target) == ["mine/SKILL.md", "mine/card.yaml", "mine/references/a.md"]


def test_a_second_time_changes_nothing(skill: Skill, tmp_path: Path) -> None:
    install_skills([skill], tmp_path)
    before = (tmp_path / "mine/SKILL.md").stat().st_mtime_ns
    (installed,) = install_skills([skill], tmp_path)
    assert (installed.num_written, installed.num_unchanged) == (0, 3)
    assert (tmp_path / "mine/SKILL.md").stat().st_mtime_ns == before


def test_a_file_of_other_contents_is_kept_unless_forced(skill: Skill, tmp_path: Path) -> None:
    other = tmp_path / "mine/card.yaml"
    other.parent.mkdir()
    other.write_text("somebody's work")
    with pytest.raises(RefusedError) as caught:
        install_skills([skill], tmp_path)
    assert [(d.code, d.message) for d in caught.value.diagnostics] == [
        ("CRD602", f"{other.as_posix()} has other contents")
    ]
    assert files(tmp_path / "mine") == ["card.yaml"]
    assert other.read_text() == "somebody's work"
    install_skills([skill], tmp_path, force=True)
    assert other.read_text() == "card.yaml"


def test_a_folder_that_cannot_be_one_is_named(skill: Skill, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError) as caught:
        install_skills([skill], tmp_path / "file")
    (finding,) = caught.value.diagnostics
    assert finding.code == "CRD604"


def test_nothing_is_written_where_a_file_stands_for_a_later_skill(tmp_path: Path) -> None:
    *earlier, last = list_skills()
    (tmp_path / last.name).write_text("mine")
    with pytest.raises(UsageError, match="CRD604"):
        install_skills([*earlier, last], tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == [last.name]


def test_every_shipped_skill_can_be_installed(tmp_path: Path) -> None:
    skills = list_skills()
    assert [one.name for one in install_skills(skills, tmp_path)] == [one.name for one in skills]


def test_a_path_longer_than_the_system_allows_is_named(skill: Skill, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        install_skills([skill], tmp_path / ("x" * 300))


def test_a_link_to_nothing_is_kept_unless_forced(skill: Skill, tmp_path: Path) -> None:
    """Writing through it would make a file that nobody named."""
    link = tmp_path / "mine/card.yaml"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="has other contents"):
        install_skills([skill], tmp_path)
    assert not (tmp_path / "elsewhere").exists()
