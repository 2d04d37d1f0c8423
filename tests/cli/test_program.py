import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import offload_runtime
from offload_runtime.cli import catalog, program
from offload_runtime.errors import Diagnostic, RefusedError
from tests.cli.conftest import Offload

OFFLOAD = [sys.executable, "-c", "from offload_runtime.cli import main; main()"]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        ([], "CLI605", f"the commands are {', '.join(sorted(program.COMMANDS))}"),
        (["validat"], "CLI605", "did you mean validate?"),
        (["zzz"], "CLI605", f"the commands are {', '.join(sorted(program.COMMANDS))}"),
        (["list", "models", "--formt", "json"], "CLI602", "did you mean --format?"),
        (
            ["skills", "install", "--target", "here"],
            "CLI602",
            "the options are --client or --force or --format or --to",
        ),
        (["explain", "balanced", "--zzzz", "here"], "CLI602", "see `offload explain --help`"),
        (["list", "models", "--format", "xml"], "CLI604", "see `offload list --help`"),
        (["list", "planets"], "CLI604", "see `offload list --help`"),
        (["explain", "balanced"], "CLI603", "see `offload explain --help`"),
        (["apply", "balanced", "--model", "builtin:llama-tiny", "--steps", "0"], "CLI604", None),
        (["apply", "balanced", "--model", "builtin:llama-tiny", "--dtype", "int3"], "CLI604", None),
        (["validate"], "CLI603", "see `offload validate --help`"),
        (["list", "models", "extra"], "CLI601", None),
    ],
)
def test_a_wrong_command_line_is_one_finding_and_exit_code_2(
    offload: Offload, args: list[str], code: str, hint: str | None
) -> None:
    finished = offload(*args)
    assert finished.exit_code == 2
    assert finished.stdout == ""
    assert finished.stderr.startswith(f"{code} ")
    if hint is not None:
        assert f"hint: {hint}" in finished.stderr


def test_choices_that_click_breaks_into_lines_are_shown_in_one(offload: Offload) -> None:
    names = sorted(catalog.CATALOGS)
    message = f"missing argument '{'|'.join(names)}'. Choose from: {', '.join(names)}"
    assert offload("list").stderr.splitlines()[0] == f"CLI603 {message}"


def test_a_usage_error_is_one_json_document_where_json_was_asked_for(offload: Offload) -> None:
    finished = offload("validat", "p.yaml", "--format=json")
    assert finished.stderr == ""
    assert finished.document["command"] == "validat"
    assert finished.document["ok"] is False
    assert finished.document["exit_code"] == finished.exit_code == 2
    (diagnostic,) = finished.document["diagnostics"]
    assert diagnostic["code"] == "CLI605"
    assert diagnostic["hint"] == "did you mean validate?"
    assert finished.document["next"] == ["offload --help"]


def test_the_last_format_counts_and_what_follows_two_dashes_is_no_option() -> None:
    assert program.requested_format(["list", "--format", "json", "--format=text"]) == "text"
    assert program.requested_format(["test", "--", "--format", "json"]) == "text"
    assert program.requested_format(["test", "--format"]) == "text"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_bug_of_ours_is_exit_code_70_without_a_traceback(
    offload: Offload, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr(catalog, "CATALOGS", {"models": _broken})
    finished = offload("list", "models", "--format", output)
    assert finished.exit_code == 70
    assert "Traceback" not in finished.stdout + finished.stderr
    text = finished.stderr if output == "text" else finished.document["diagnostics"][0]["message"]
    assert "internal error: ZeroDivisionError: a line and another" in text


def test_the_traceback_of_a_bug_is_there_for_who_asks(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "CATALOGS", {"models": _broken})
    monkeypatch.setenv("OFFLOAD_DEBUG", "1")
    finished = offload("list", "models", "--format", "json")
    assert "Traceback" in finished.stderr
    assert finished.document["exit_code"] == 70


def test_a_refusal_carries_its_exit_code_and_its_cure(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RefusedError(Diagnostic("PLN401", "error", "no room", hint="take less"))

    monkeypatch.setattr(catalog, "CATALOGS", {"models": refuse})
    finished = offload("list", "models")
    assert finished.exit_code == 4
    assert finished.stderr == "PLN401 no room\n      hint: take less\n"


def test_an_interrupt_is_said_and_leaves_the_shells_own_code(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "CATALOGS", {"models": interrupt})
    finished = offload("list", "models", "--format", "json")
    assert finished.exit_code == 130
    assert finished.document["diagnostics"][0]["code"] == "CLI690"


def _broken() -> None:
    raise ZeroDivisionError("a line\nand   another")


@pytest.mark.parametrize("name", sorted(program.COMMANDS))
def test_the_help_of_a_command_carries_an_example_that_names_it(offload: Offload, name: str) -> None:
    finished = offload(name, "--help")
    assert finished.exit_code == 0
    assert re.search(rf"Example:\n +offload {name}\b", finished.stdout)


@pytest.mark.parametrize("name", sorted(program.COMMANDS))
def test_every_option_of_a_command_is_explained(name: str) -> None:
    command = program.program.get_command(click.Context(program.program), name)
    assert command is not None
    unexplained = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert unexplained == []


def test_the_version_is_that_of_the_package(offload: Offload) -> None:
    finished = offload("--version")
    assert finished.exit_code == 0
    assert finished.stdout == f"offload {offload_runtime.__version__}\n"


def _environment(**changes: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    return {**plain, "TERM": "xterm", **changes}


def _on_a_terminal(args: list[str], environment: dict[str, str]) -> str:
    """Run the command with stdout and stderr on a pseudo-terminal and return what it showed."""
    parent, child = pty.openpty()
    process = subprocess.Popen([*OFFLOAD, *args], stdout=child, stderr=child, env=environment, cwd=ROOT)
    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 4096):
            shown += chunk
    except OSError:  # Linux reports the end of a pseudo-terminal as EIO
        pass
    finally:
        os.close(parent)
    process.wait(timeout=60)
    return shown.decode()


def test_codes_are_coloured_on_a_terminal() -> None:
    assert "\x1b[31m" in _on_a_terminal(["validat"], _environment())


@pytest.mark.parametrize("changes", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_turned_off(changes: dict[str, str]) -> None:
    shown = _on_a_terminal(["validat"], _environment(**changes))
    assert "CLI605" in shown
    assert "\x1b" not in shown


def test_a_pipe_sees_no_colour() -> None:
    finished = subprocess.run(
        [*OFFLOAD, "validat"],
        capture_output=True,
        text=True,
        env=_environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    assert "\x1b" not in finished.stderr


@pytest.mark.parametrize("arguments", ["list op-classes", "--help", "list --help", "--version"])
def test_a_reader_that_goes_away_is_no_error_of_ours(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    finished = subprocess.run(
        [*OFFLOAD, *arguments.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert finished.stderr == b""
    assert finished.returncode == 128 + signal.SIGPIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "arguments",
    [
        "list op-classes",
        "list op-classes --format json",
        "validate policies --format sarif",
        "--help",
        "list --help",
        "--version",
        "codes CLI000",
    ],
)
def test_a_stdout_that_takes_no_data_is_one_finding(redirection: str, arguments: str) -> None:
    """A command that has nothing for stdout keeps its own answer."""
    finished = _in_a_shell(f"{arguments} {redirection}")
    writes_nothing = arguments.startswith("codes")
    assert finished.returncode == (2 if writes_nothing else 5)
    assert finished.stderr.startswith("CLI6" if writes_nothing else "CLI691 stdout cannot be written: ")
    assert "Traceback" not in finished.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_no_data_leaves_the_exit_code(redirection: str) -> None:
    assert _in_a_shell(f"codes CLI000 {redirection}").returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize(("redirection", "exit_code"), [("", 0), (">/dev/full", 5)])
def test_completions_are_written_or_said_not_to_be(redirection: str, exit_code: int) -> None:
    asked = "COMP_WORDS='offload va' COMP_CWORD=1 _OFFLOAD_COMPLETE=bash_complete"
    finished = _in_a_shell(redirection, before=asked)
    assert finished.returncode == exit_code
    assert ("validate" in finished.stdout) is (exit_code == 0)
    assert finished.stderr.startswith("CLI691 ") is (exit_code == 5)
    assert "Traceback" not in finished.stderr


def _in_a_shell(arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = f"{before} {shlex.join(OFFLOAD)} {arguments}"
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_character_that_stdout_cannot_carry_is_escaped(output: str) -> None:
    finished = subprocess.run(
        [*OFFLOAD, "list", "pläne", "--format", output],
        capture_output=True,
        env=_environment(PYTHONIOENCODING="ascii"),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2
    if output == "json":
        assert "pläne" in json.loads(finished.stdout)["diagnostics"][0]["message"]
    else:
        assert b"pl\\xe4ne" in finished.stderr


@pytest.mark.parametrize("what", sorted(catalog.CATALOGS))
def test_output_is_the_same_every_time(what: str) -> None:
    runs = {
        subprocess.run(
            [*OFFLOAD, "list", what, "--format", "json"],
            capture_output=True,
            env=_environment(PYTHONHASHSEED=seed),
            cwd=ROOT,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
