"""The program: finds the command, runs it, and turns whatever happens into one outcome.

    args -> command -> Outcome -> text | json | sarif | github -> exit code

Nothing else in the package exits, prints a traceback or chooses an exit code for an exception.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from offload_runtime.cli import emit
from offload_runtime.cli.outcome import EXIT_BUG, EXIT_INTERRUPTED, EXIT_USAGE, Outcome
from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.overrides import OVERRIDE_FILE

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "apply": "offload_runtime.cli.apply",
        "codes": "offload_runtime.cli.codes",
        "explain": "offload_runtime.cli.explain",
        "list": "offload_runtime.cli.catalog",
        "test": "offload_runtime.cli.policy_tests",
        "validate": "offload_runtime.cli.validate",
    }
)


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
    from importlib import metadata

    click.echo(f"offload {metadata.version('offload-runtime')}")
    ctx.exit()


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
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
      offload validate policies/balanced/policy.yaml
      offload apply balanced --model builtin:llama-tiny --steps 20 --set limits.budget=4MiB

    Exit codes: 0 ok, 1 findings, 2 usage, 3 unreadable input, 4 refused, 5 failed while running,
    70 a bug of ours.
    """


def main() -> None:
    """Run the command line on the process's arguments and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale without some character of a file's name must not turn a finding into a crash.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises, never exits.

    stdout carries data and stderr what is meant for people.
    """
    try:
        outcome = _outcome(args)
        if outcome is None:  # --help, --version: click has printed
            return 0
        # Findings about an override name `--set` as their file and its number as their line.
        sources = {OVERRIDE_FILE: "\n".join(_values(args, "--set"))}
        emit.emit(_command_name(args), outcome, requested_format(args), sources)
        return outcome.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`). Nothing more can be said, and flushing at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _outcome(args: Sequence[str]) -> Outcome | None:
    try:
        result = program.main(args=list(args), prog_name="offload", standalone_mode=False)
    except click.UsageError as error:
        return _usage_outcome(error)
    except OffloadError as error:
        return Outcome(diagnostics=error.diagnostics, exit_code=error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        interrupted = Diagnostic("CLI690", "error", "interrupted")
        return Outcome(diagnostics=(interrupted,), exit_code=EXIT_INTERRUPTED)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost boundary: a user never sees a traceback
        return _bug_outcome(error)
    return result if isinstance(result, Outcome) else None


def requested_format(args: Sequence[str]) -> str:
    """Return the last `--format` among the arguments, known or not; `text` where there is none.

    Read by hand, because an argument list that click refuses must be answered in that format too.
    """
    return (_values(args, "--format") or ["text"])[-1]


def _values(args: Sequence[str], option: str) -> list[str]:
    values = []
    for arg, following in zip(args, [*args[1:], None], strict=True):
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


def _usage_outcome(error: click.UsageError) -> Outcome:
    code, hint = "CLI601", None
    context = error.ctx
    if isinstance(error, click.MissingParameter):
        code = "CLI603"
    elif isinstance(error, click.NoSuchOption):
        code = "CLI602"
        if error.possibilities:
            hint = f"did you mean {_either(error.possibilities)}?"
    elif isinstance(error, click.BadParameter):
        code = "CLI604"
    elif context is not None and context.command is program:
        code = "CLI605"
        close = difflib.get_close_matches(_unknown_word(error), COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(sorted(COMMANDS))}"
    if hint is None and context is not None:
        hint = f"see `{context.command_path} --help`"
    message = _plain_sentence(error)
    return Outcome(
        diagnostics=(Diagnostic(code, "error", message, hint=hint),),
        exit_code=EXIT_USAGE,
        next=(f"{context.command_path if context else 'offload'} --help",),
    )


def _plain_sentence(error: click.UsageError) -> str:
    message = error.format_message().strip()
    # click appends its own suggestion, which stands in the hint here.
    message = message.split(" Did you mean ")[0].split(" (Possible options:")[0].rstrip(".")
    return message[:1].lower() + message[1:]


def _unknown_word(error: click.UsageError) -> str:
    quoted = error.format_message().split("'")
    return quoted[1] if len(quoted) > 2 else ""


def _either(names: Sequence[str]) -> str:
    return " or ".join(sorted(names))


def _bug_outcome(error: Exception) -> Outcome:
    """Report an exception that nobody foresaw in one line, or with its traceback where that is asked for."""
    if os.environ.get("OFFLOAD_DEBUG") == "1":
        traceback.print_exception(error)
    detail = " ".join(str(error).split())
    message = f"internal error: {type(error).__name__}" + (f": {detail}" if detail else "")
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
