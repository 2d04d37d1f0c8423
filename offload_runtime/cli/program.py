"""The program: finds the command, runs it, and turns whatever happens into one outcome.

    args -> command -> Outcome -> text | json | sarif | github -> exit code

Nothing else in the package exits, prints a traceback or chooses an exit code for an exception.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from offload_runtime import __version__
from offload_runtime.cli.emit import emit
from offload_runtime.cli.outcome import EXIT_BUG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Outcome
from offload_runtime.cli.streams import UnwrittenError, discard, guard_streams, open_closed_streams
from offload_runtime.cli.usage import usage_outcome
from offload_runtime.errors import Diagnostic, OffloadError, named_error
from offload_runtime.overrides import OVERRIDE_FILE

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "advise": "offload_runtime.cli.advise",
        "apply": "offload_runtime.cli.apply",
        "bench": "offload_runtime.cli.bench",
        "codes": "offload_runtime.cli.codes",
        "compare": "offload_runtime.cli.compare",
        "diff": "offload_runtime.cli.diff",
        "docs": "offload_runtime.cli.docs",
        "explain": "offload_runtime.cli.explain",
        "export": "offload_runtime.cli.export",
        "facts": "offload_runtime.cli.facts",
        "init": "offload_runtime.cli.init",
        "list": "offload_runtime.cli.catalog",
        "plan": "offload_runtime.cli.plan",
        "skills": "offload_runtime.cli.skills",
        "test": "offload_runtime.cli.policy_tests",
        "validate": "offload_runtime.cli.validate",
    }
)


# What is refused where nobody said which hardware to plan for.
_NEEDS_HARDWARE = ("PLN421", "RUN524")


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is named.

    Each module of `COMMANDS` has one click command called `command`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command, or return None for a name that does not exist."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"offload {__version__}")
    ctx.exit()


@click.command(
    cls=LazyGroup,
    no_args_is_help=False,  # a usage error like any other, not a page of help on stderr
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def program() -> None:
    """CPU offloading for PyTorch training, by declarative policies.

    \b
    Example:
      offload validate balanced
      offload apply balanced --model builtin:llama-tiny --steps 20 --set limits.budget=4MiB

    Exit codes: 0 ok, 1 findings, 2 usage, 3 unreadable input, 4 refused, 5 failed while running,
    70 a bug of ours.
    """


def main() -> None:
    """Run the command line on the process's arguments and exit."""
    open_closed_streams()
    guard_streams()
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises, never exits.

    stdout carries data and stderr what is meant for people.
    """
    output_format = requested_format(args)
    try:
        try:
            return _answer(args, _outcome(args), output_format)
        except UnwrittenError:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost boundary: a user never sees a traceback
            return _answer(args, _bug(error), "json" if output_format == "json" else "text")
    except UnwrittenError as error:
        return _unwritten(error)
    except SystemExit as asked:  # click ends the process itself where a shell asks it for completions
        return asked.code if isinstance(asked.code, int) else EXIT_OK


def _outcome(args: Sequence[str]) -> Outcome | None:
    """Run the command; None where click itself has answered, as for `--help`."""
    try:
        result = program.main(args=list(args), prog_name="offload", standalone_mode=False)
    except click.UsageError as error:
        return usage_outcome(error, COMMANDS)
    except OffloadError as error:
        return Outcome(
            diagnostics=error.diagnostics, exit_code=error.exit_code, next=_with_hardware(args, error)
        )
    except (KeyboardInterrupt, click.Abort):
        interrupted = Diagnostic("CLI690", "error", "interrupted")
        return Outcome(diagnostics=(interrupted,), exit_code=EXIT_INTERRUPTED)
    return result if isinstance(result, Outcome) else None


def _with_hardware(args: Sequence[str], error: OffloadError) -> tuple[str, ...]:
    """Return the same command for a profile, where it was refused for want of one: which one is not known here."""
    lacks = any(found.code in _NEEDS_HARDWARE for found in error.diagnostics)
    words = ["offload", *args, "--hardware", "HARDWARE"]
    following = ("offload list hardware", shlex.join(words))
    return following if lacks and not _values(args, "--hardware") else ()


def _answer(args: Sequence[str], outcome: Outcome | None, output_format: str) -> int:
    if outcome is None:
        return EXIT_OK
    # Findings about an override name `--set` as their file and its number as their line.
    sources = {OVERRIDE_FILE: "\n".join(_values(args, "--set"))}
    emit(_command_name(args), outcome, output_format, sources)
    sys.stdout.flush()
    return outcome.exit_code


def _unwritten(error: UnwrittenError) -> int:
    """Say on stderr that stdout took no data; nothing where its reader went away (`| head`)."""
    discard(sys.stdout)  # what it holds still must not fail again when it is flushed at exit
    if error.is_reader_gone:
        return 128 + signal.SIGPIPE
    message = f"stdout cannot be written: {error.reason}"
    hint = "make room on the disk, or send stdout where it can be written"
    emit("", Outcome(diagnostics=(Diagnostic("CLI691", "error", message, hint=hint),)), "text", {})
    return EXIT_FAILED


def requested_format(args: Sequence[str]) -> str:
    """Return the last `--format` among the arguments, known or not; `text` where there is none.

    Read by hand, because an argument list that click refuses must be answered in that format too.
    """
    return (_values(args, "--format") or ["text"])[-1]


def _values(args: Sequence[str], option: str) -> list[str]:
    values = []
    for arg, following in itertools.zip_longest(args, args[1:]):
        if arg == "--":
            break
        if arg.startswith(f"{option}="):
            values.append(arg.removeprefix(f"{option}="))
        elif arg == option and following is not None:
            values.append(following)
    return values


def _command_name(args: Sequence[str]) -> str:
    """Return the first word that is no option: the group itself has no option that takes a value."""
    return next((arg for arg in args if not arg.startswith("-")), "")


def _bug(error: Exception) -> Outcome:
    """Report an exception that nobody foresaw in one line, or with its traceback where that is asked for."""
    if os.environ.get("OFFLOAD_DEBUG") == "1":
        traceback.print_exception(error)
    message = f"internal error: {named_error(error)}"
    return Outcome(
        diagnostics=(
            Diagnostic(
                "CLI699",
                "error",
                message,
                hint="this is a bug in offload-runtime: please report it with the command and the "
                "traceback that OFFLOAD_DEBUG=1 prints",
            ),
        ),
        exit_code=EXIT_BUG,
    )
