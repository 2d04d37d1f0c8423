"""What the README shows is run."""

import re
from pathlib import Path

import pytest

from offload_runtime.cli import run
from offload_runtime.cli.program import COMMANDS

README = (Path(__file__).parents[1] / "README.md").read_text()


def block(language: str) -> str:
    """Return the only code block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_the_policy_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(block("yaml"))
    exit_code = run(["validate", str(path), "--for", "graph"])
    assert (exit_code, capsys.readouterr().out) == (0, f"{path}: Policy, ok\n")


def test_the_training_loop_runs_and_moves_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python"), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"[1-9]\d* of \d+ activations offloaded in 1 graph\n", printed)
    moved = re.search(r"planned (\d+ KiB), moved (\d+ KiB), reloaded (\d+ KiB) a step", printed)
    assert moved is not None
    assert moved[1] == moved[2] == moved[3] != "0 KiB"


def test_every_command_is_listed_and_no_other() -> None:
    assert set(re.findall(r"^\| `offload (\w+)", README, re.MULTILINE)) == set(COMMANDS)


def test_the_finding_that_is_shown_is_what_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = next(
        text for text in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if "policy.yaml:" in text
    )
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(block("yaml").replace("matmul", "matmull").replace("12GiB", "12"))
    assert run(["validate", "policy.yaml"]) == 1
    assert capsys.readouterr().out == shown.removeprefix("$ offload validate policy.yaml\n")


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_make_targets_exist(target: str) -> None:
    assert f"`make {target}`" in README or f"$ make {target} " in README
    assert re.search(rf"^{target}:", (Path(__file__).parents[1] / "Makefile").read_text(), re.MULTILINE)
