"""The commands, from click's own tree: usage, arguments, options, help and examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

__all__ = ["CommandReference", "Option", "read_commands"]

_PREFORMATTED = "\b"


@dataclass(frozen=True)
class Option:
    """One option: how it is spelled, what it takes (empty for a flag), its default, and its help."""

    spelling: str
    takes: str
    default: str | None
    required: bool
    repeatable: bool
    help: str


@dataclass(frozen=True)
class CommandReference:
    """One command as its ``--help`` has it; ``examples`` are the lines below *Example:*."""

    name: str
    usage: str
    summary: str
    paragraphs: tuple[str, ...]
    examples: str
    options: tuple[Option, ...]


def read_commands(program: click.Group) -> tuple[CommandReference, ...]:
    """Return every command of ``program``, those inside groups under their whole names, in alphabetical order."""
    context = click.Context(program, info_name="offload")
    return tuple(_read(program, context))


def _read(group: click.Group, context: click.Context) -> Iterator[CommandReference]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, parent=context, info_name=name)
        yield _reference(command, inner)
        if isinstance(command, click.Group):
            yield from _read(command, inner)


def _reference(command: click.Command, context: click.Context) -> CommandReference:
    path = context.command_path
    paragraphs, examples = _split_help(command.help or "")
    return CommandReference(
        name=path,
        usage=" ".join([path, *command.collect_usage_pieces(context)]),
        summary=command.get_short_help_str(limit=200),
        paragraphs=paragraphs,
        examples=examples,
        options=tuple(
            _option(option)
            for option in command.params
            if isinstance(option, click.Option) and not option.hidden
        ),
    )


def _split_help(text: str) -> tuple[tuple[str, ...], str]:
    """Return the paragraphs of a help text, and the lines of its example."""
    paragraphs, examples = [], ""
    for block in re.split(r"\n{2,}", inspect.cleandoc(text)):
        lines = block.split("\n")
        if lines[0].strip() != _PREFORMATTED:
            paragraphs.append(" ".join(line.strip() for line in lines))
        elif lines[1:2] == ["Example:"]:
            examples = inspect.cleandoc("\n".join(["", *lines[2:]]))
        else:
            paragraphs.append("\n".join(["```text", *lines[1:], "```"]))
    return tuple(paragraphs), examples


def _option(option: click.Option) -> Option:
    spelling = " / ".join(filter(None, (", ".join(option.opts), ", ".join(option.secondary_opts))))
    default = option.default if option.show_default else None
    return Option(
        spelling=spelling,
        takes="" if option.is_flag or option.count else _takes(option),
        default=None if default is None or callable(default) else str(default),
        required=option.required,
        repeatable=option.multiple,
        help=option.help or "",
    )


def _takes(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.upper()
