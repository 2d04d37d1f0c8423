from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.card_reading import load_card
from offload_runtime.cli import skills
from offload_runtime.skills_catalog import list_skills, package_card
from tests.card_checks.small_project import CARD, NAME, SKILL_TEXT
from tests.cli.conftest import Offload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A skill of somebody's own, with an error in its card and none in its text."""
    directory = tmp_path / NAME
    (directory / "references").mkdir(parents=True)
    (directory / "references/details.md").write_text("# Details\n")
    (directory / "SKILL.md").write_text(SKILL_TEXT)
    (directory / "card.yaml").write_text(CARD.replace("holds: {fits: false}", "holds: {fits: true}"))
    return directory


def test_the_shipped_skills_are_listed_with_the_card_of_the_package(offload: Offload) -> None:
    finished = offload("skills", "list", "--format", "json")
    assert finished.exit_code == 0
    listed = finished.document["data"]["skills"]
    assert [entry["name"] for entry in listed] == ["cpu-offload", *(skill.name for skill in list_skills())]
    assert all(entry["title"] and entry["summary"] for entry in listed)
    text = offload("skills", "list").stdout
    assert all(entry["name"] in text for entry in listed)


def test_a_skill_is_shown_as_an_agent_reads_it(offload: Offload) -> None:
    skill = list_skills()[0]
    finished = offload("skills", "show", skill.name)
    assert finished.stdout.rstrip("\n") == skill.path("SKILL.md").read_text().rstrip("\n")
    data = offload("skills", "show", skill.name, "--format", "json").document["data"]
    assert load_card(data["card"]) == load_card(skill.card)
    assert data["files"] == list(skill.files())


def test_the_card_of_the_package_is_shown_as_markdown_and_as_it_is_where_that_is_asked_for(
    offload: Offload,
) -> None:
    card = load_card(package_card().card)
    shown = offload("skills", "show", "cpu-offload").stdout
    assert shown.startswith(f"# {card.title}\n\n{card.summary}\n")
    assert "\n## Avoid when\n\n- " in shown
    assert all(text in shown for text in card.known_limitations)
    assert "apiVersion" not in shown
    written = offload("skills", "show", "cpu-offload", "--file", "card.yaml").stdout
    assert written.rstrip("\n") == package_card().card.read_text().rstrip("\n")


def test_another_file_of_a_skill_can_be_shown_and_no_other(offload: Offload) -> None:
    skill = list_skills()[0]
    shown = offload("skills", "show", skill.name, "--file", "card.yaml")
    assert shown.stdout.rstrip("\n") == skill.card.read_text().rstrip("\n")
    assert offload("skills", "show", skill.name, "card.yaml").stdout == shown.stdout
    assert offload("skills", "show", skill.name, "SKILL.md", "--file", "card.yaml").exit_code == 2
    refused = offload("skills", "show", skill.name, "--file", "../choose-offload/card.yaml")
    assert refused.exit_code == 2
    assert "files of" in refused.stderr


def test_a_skill_that_does_not_exist_is_told_the_names(offload: Offload) -> None:
    finished = offload("skills", "show", "tune-activations-offload", "--format", "json")
    assert finished.exit_code == 3
    (finding,) = finished.document["diagnostics"]
    assert (finding["code"], finding["hint"]) == ("CRD601", "did you mean tune-activation-offload?")


def test_every_shipped_skill_holds(offload: Offload) -> None:
    finished = offload("skills", "check", "--format", "json")
    assert finished.document["diagnostics"] == []
    assert finished.exit_code == 0
    verdicts = finished.document["data"]["skills"]
    assert [verdict["name"] for verdict in verdicts] == [
        "cpu-offload",
        *(skill.name for skill in list_skills()),
    ]
    # What was counted was looked at: no card without a condition, a symbol and a command.
    for verdict in verdicts:
        assert verdict["not_checked"] == []
        assert min(verdict["checked"][kind] for kind in ("conditions", "symbols", "commands")) > 0


def test_a_fault_is_shown_at_its_line_and_ends_with_1(offload: Offload, folder: Path) -> None:
    finished = offload("skills", "check", str(folder))
    line = (folder / "card.yaml").read_text().split("\n").index("  - text: The step does not fit.") + 1
    assert finished.exit_code == 1
    assert f"{folder}/card.yaml:{line}:5: CRD101 with the facts of holds (fits True)" in finished.stdout
    assert "next: offload codes CRD101" in finished.stderr


@pytest.mark.parametrize("output_format", ["sarif", "github"])
def test_findings_come_in_the_formats_of_other_tools(
    offload: Offload, folder: Path, output_format: str
) -> None:
    finished = offload("skills", "check", str(folder), "--format", output_format)
    assert finished.exit_code == 1
    assert "CRD101" in finished.stdout


def test_tests_are_run_in_a_checkout_only(
    offload: Offload, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills, "repository_root", lambda: None)
    finished = offload("skills", "check", str(folder), "--run-tests", "--format", "json")
    assert finished.exit_code == 4
    assert [finding["code"] for finding in finished.document["diagnostics"]] == ["CRD603"]


def test_skills_are_installed_where_a_client_looks(
    offload: Offload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = offload("skills", "install", "--client", "claude", "--format", "json")
    assert finished.document["data"]["folder"] == ".claude/skills"
    assert sorted(path.name for path in (tmp_path / ".claude/skills").iterdir()) == [
        skill.name for skill in list_skills()
    ]
    again = offload("skills", "install", "choose-offload", "--to", ".claude/skills")
    assert again.stdout.startswith(".claude/skills/choose-offload: 0 files written")


@pytest.mark.parametrize(
    "options", [[], ["--to", ""], ["--to", "x", "--client", "claude"], ["--to", "x", "cpu-offload"]]
)
def test_one_place_and_what_is_a_skill_are_needed_to_install(
    offload: Offload, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert offload("skills", "install", *options).exit_code == 2
    assert list(tmp_path.iterdir()) == []
