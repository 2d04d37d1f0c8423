"""The exports that the texts of skills show are run with the policies beside them; a refused one starts no launcher."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from offload_runtime.card_checks.commands import fenced_blocks
from offload_runtime.cli import run
from offload_runtime.skills_catalog import list_skills

FOLDER = next(skill for skill in list_skills() if skill.name == "export-offload-policy")
TEXT = FOLDER.path("SKILL.md").read_text("utf-8")
TEXTS = {
    f"{skill.name}/{file}": skill.path(file).read_text("utf-8")
    for skill in list_skills()
    for file in skill.files()
    if file.endswith(".md")
}
BLOCKS = [
    block.replace("\\\n", " ")
    for language, block, _ in fenced_blocks(TEXT)
    if language == "console" and ".yaml" in block
]


def write_policies(folder: Path) -> None:
    for language, block, _ in fenced_blocks(TEXT):
        named = re.search(r"^name: (\S+)$", block, re.MULTILINE)
        if language == "yaml" and named:
            (folder / f"{named[1]}.yaml").write_text(block)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[:60])
def test_an_export_that_is_shown_prints_what_is_shown(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policies(tmp_path)
    monkeypatch.chdir(tmp_path)
    command, *shown = block.splitlines()
    words = shlex.split(command.removeprefix("$ ").partition(" > ")[0])
    assert words[:2] == ["offload", "export"]
    assert run(words[1:]) == 0
    printed = capsys.readouterr().out
    if shown:
        assert printed.splitlines() == shown


@pytest.mark.parametrize("name", TEXTS)
def test_no_launch_line_goes_on_where_the_export_refuses(name: str) -> None:
    """Inside ``$(...)`` its exit code is lost, and training starts without settings."""
    blocks = [block.replace("\\\n", " ") for _, block, _ in fenced_blocks(TEXTS[name])]
    assert [block for block in blocks if "$(offload" in block] == []
    launches = [
        line
        for block in blocks
        for line in block.splitlines()
        if "torchrun" in line and "offload export" in line
    ]
    assert all(" > overrides.txt && " in line and line.endswith("$(cat overrides.txt)") for line in launches)


def test_a_launch_line_is_shown() -> None:
    assert re.search(
        r"offload export .* > overrides.txt && \\\n +uv run torchrun .* \$\(cat overrides.txt\)\n", TEXT
    )
