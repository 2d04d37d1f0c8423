"""Every code block of the pages written by hand is run, or checked against the program."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from offload_runtime.cli import run
from offload_runtime.docgen.link_check import broken_links, linked_pages
from tests.docs.page_blocks import (
    DOCS,
    Block,
    blocks,
    check_command,
    command_lines,
    expected_output,
    write_files,
)

ROOT = DOCS.parent
COMMANDS = [(block.page, line) for block in blocks("sh", "console") for line in command_lines(block)]
OFFLOAD = [(page, line) for page, line in COMMANDS if line.startswith("offload ")]
SHOWN = blocks("console")
INLINE = [block for block in blocks("python") if block.file_name is None]
VARIABLES = re.compile(r"\bOFFLOAD_[A-Z]+\b")


def where(block: Block) -> str:
    return f"{block.page}-{block.text.splitlines()[0][:40]}"


def test_each_block_is_of_a_kind_that_is_checked() -> None:
    assert {block.language for block in blocks()} == {"python", "yaml", "console", "sh"}
    assert [block for block in blocks("console") if not block.text.startswith("$ offload ")] == []


@pytest.mark.parametrize(("page", "line"), OFFLOAD)
def test_a_command_exists_with_its_options(page: str, line: str) -> None:
    check_command(line)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(click.NoSuchOption, match="--modle"):
        check_command("offload plan balanced --modle builtin:llama-tiny")
    with pytest.raises(AssertionError, match="plot"):
        check_command("offload plot")


def test_other_commands_are_of_a_kind_that_is_known() -> None:
    others = [shlex.split(line, comments=True) for _, line in COMMANDS if not line.startswith("offload ")]
    programs = {next(word for word in words if "=" not in word) for words in others}
    assert programs == {"pip", "python", "torchrun"}


def test_environment_variables_that_pages_name_are_read_somewhere() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "offload_runtime").rglob("*.py"))
    named = {name for path in DOCS.glob("*.md") for name in VARIABLES.findall(path.read_text("utf-8"))}
    assert sorted(name for name in named if f'"{name}"' not in source) == []
    assert "OFFLOAD_POLICY" in named


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name for path in DOCS.glob("*.md") for name in re.findall(r"`make (\w+)", path.read_text("utf-8"))
    }
    assert named
    assert named <= targets


@pytest.mark.parametrize("block", blocks("yaml"), ids=where)
def test_a_file_that_a_page_shows_is_valid(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(block.page, tmp_path)
    assert block.file_name is not None, "a file needs a name in its first line"
    exit_code = run(["validate", block.file_name])
    assert (exit_code, capsys.readouterr().out.splitlines()[1:]) == (0, [])


@pytest.mark.parametrize("block", SHOWN, ids=where)
def test_a_command_prints_what_its_page_shows(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(block.page, tmp_path)
    command, _, shown = block.text.partition("\n")
    assert run(shlex.split(command.removeprefix("$ "))[1:]) == 0
    assert expected_output(shown.strip()).fullmatch(capsys.readouterr().out.strip())


def test_what_a_page_shows_is_compared_line_by_line() -> None:
    pattern = expected_output("one\n...\nlast: ... of 3")
    assert pattern.fullmatch("one\ntwo\nthree\nlast: 2 of 3")
    assert not pattern.fullmatch("one\ntwo\nlast: 2\n of 3")
    assert not pattern.fullmatch("ones\ntwo\nlast: 2 of 3")


@pytest.mark.parametrize("block", INLINE, ids=where)
def test_python_of_a_page_runs_and_offloads(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch._dynamo.reset()
    exec(compile(block.text, f"docs/{block.page}.md", "exec"), {"__name__": "__main__"})
    assert "print" not in block.text or re.search(r"moved [1-9]", capsys.readouterr().out)


def run_script(name: str, folder: Path, **variables: str) -> str:
    write_files("recipes", folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    finished = subprocess.run(
        [sys.executable, name], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_trainer_of_hugging_face_offloads_by_the_environment(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    run_script("train.py", tmp_path, OFFLOAD_POLICY="balanced", OFFLOAD_REPORT="report.txt")
    report = (tmp_path / "report.txt").read_text()
    moved = re.search(r"planned (\S+ KiB), moved (\S+ KiB), reloaded (\S+ KiB) a step", report)
    assert moved is not None, report
    assert moved[1] == moved[2] == moved[3] != "0 KiB"


def test_the_trainer_of_hugging_face_refuses_the_back_end_by_name(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate.utils")
    shown = re.search(r"`ValueError: ('OFFLOAD' is not[^`]*)`", (DOCS / "recipes.md").read_text("utf-8"))
    assert shown is not None
    with pytest.raises(ValueError, match=shown[1]):
        accelerate.TorchDynamoPlugin(backend="offload")


def test_data_parallel_training_offloads_in_one_process(tmp_path: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert re.search(r"moved [1-9]", run_script("train_ddp.py", tmp_path, **variables))


def test_links_of_pages_written_by_hand_lead_somewhere() -> None:
    pages = linked_pages(ROOT, {})
    by_hand = [page for page in pages if not page.startswith("docs/reference/") and page != "llms.txt"]
    assert list(broken_links(ROOT, pages, by_hand)) == []
