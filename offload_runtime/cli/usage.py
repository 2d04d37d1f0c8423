"""Usage errors as findings: what click refused, with a code and a cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click

from offload_runtime.cli.outcome import EXIT_USAGE, Outcome
from offload_runtime.errors import Diagnostic

MAX_LISTED = 8
"""Options that are listed where one does not exist; those of a command with more are in its help."""


def usage_outcome(error: click.UsageError, commands: Iterable[str]) -> Outcome:
    """Return the finding behind `error`, with the closest name where there is one.

    `commands` are the names that the program has.
    """
    code, hint = "CLI601", None
    context = error.ctx
    if isinstance(error, click.MissingParameter):
        code = "CLI603"
    elif isinstance(error, click.NoSuchOption):
        code = "CLI602"
        hint = _options_of(context)
        if error.possibilities:
            hint = f"did you mean {_either(error.possibilities)}?"
    elif isinstance(error, click.BadParameter):
        code = "CLI604"
    elif context is not None and context.parent is None:
        code = "CLI605"
        close = difflib.get_close_matches(_unknown_word(error), commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(sorted(commands))}"
    if hint is None and context is not None:
        hint = f"see `{context.command_path} --help`"
    message = _plain_sentence(error)
    return Outcome(
        diagnostics=(Diagnostic(code, "error", message, hint=hint),),
        exit_code=EXIT_USAGE,
        next=(f"{context.command_path if context else 'offload'} --help",),
    )


def _plain_sentence(error: click.UsageError) -> str:
    message = " ".join(error.format_message().split())  # click breaks lists of choices into lines
    # click appends its own suggestion, which stands in the hint here.
    message = message.split(" Did you mean ")[0].split(" (Possible options:")[0].rstrip(".")
    return message[:1].lower() + message[1:]


def _unknown_word(error: click.UsageError) -> str:
    quoted = error.format_message().split("'")
    return quoted[1] if len(quoted) > 2 else ""


def _options_of(context: click.Context | None) -> str | None:
    """List the options of a command that has few: where none is spelled alike, one of them was meant."""
    if context is None:
        return None
    options = [param for param in context.command.params if isinstance(param, click.Option)]
    names = [max(option.opts, key=len) for option in options]
    return f"the options are {_either(names)}" if len(names) <= MAX_LISTED else None


def _either(names: Sequence[str]) -> str:
    return " or ".join(sorted(names))
