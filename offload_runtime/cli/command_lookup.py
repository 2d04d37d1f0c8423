"""Look a command line up, without running it: whether the command, its options and its words exist."""

from __future__ import annotations

import shlex

import click

from offload_runtime.cli.program import COMMANDS, program
from offload_runtime.shape import did_you_mean

__all__ = ["command_problem"]


def command_problem(line: str, is_whole: bool = True) -> str | None:
    """Say what is wrong with a line such as ``offload plan POLICY --model MODEL``; None where nothing is.

    Words in capitals stand for a value. A line that is not ``is_whole`` may leave out what the command requires,
    and write what is optional in brackets.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        return f"it cannot be split into words: {error}"
    if not is_whole:
        words = [word.strip("[]") for word in words]
    words = words[1:]
    if not words:
        return None
    if not words[0].startswith("-") and words[0] not in COMMANDS and not _is_placeholder(words[0]):
        return f"there is no command {words[0]!r}{_close(words[0], list(COMMANDS))}"
    return _problem(program, click.Context(program, info_name="offload"), words, is_whole)


def _problem(command: click.Command, context: click.Context, words: list[str], is_whole: bool) -> str | None:
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None:
            names = command.list_commands(context)
            return None if _is_placeholder(words[0]) else f"there is no {words[0]!r}{_close(words[0], names)}"
        return _problem(inner, click.Context(inner, parent=context, info_name=words[0]), words[1:], is_whole)
    try:
        values, rest, order = command.make_parser(context).parse_args(list(words))
    except click.NoSuchOption as error:
        return f"there is no option {error.option_name}{_close(error.option_name, _options(command))}"
    except click.UsageError as error:
        return error.format_message().split("\n")[0].rstrip(".")
    if rest:
        return f"there is one word too many: {rest[0]!r}"
    if any(isinstance(option, click.Option) and option.is_eager for option in order):
        return None  # --help and --version need nothing else
    for parameter in command.params:
        problem = _parameter_problem(parameter, values.get(parameter.name or ""), is_whole)
        if problem is not None:
            return problem
    return None


def _parameter_problem(parameter: click.Parameter, given: object, is_whole: bool) -> str | None:
    name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
    values = [
        value for value in (given if isinstance(given, list | tuple) else [given]) if isinstance(value, str)
    ]
    if parameter.required and is_whole and not values:
        return f"{name} is missing"
    if isinstance(parameter.type, click.Choice):
        choices = [str(choice) for choice in parameter.type.choices]
        wrong = [value for value in values if value not in choices and not _is_placeholder(value)]
        if wrong:
            return f"{name} is one of {', '.join(choices)}, not {wrong[0]!r}"
    return None


def _options(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if name.startswith("-")]


def _is_placeholder(word: str) -> bool:
    """Tell whether a word stands for a value: MODEL, NAME..., A|B."""
    letters = [character for character in word if character.isalpha()]
    return word == "..." or (bool(letters) and all(character.isupper() for character in letters))


def _close(word: str, names: list[str]) -> str:
    hint = did_you_mean(word, names)
    return f"; {hint}" if hint else ""
