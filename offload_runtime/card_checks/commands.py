"""Commands of this project in a text: found here, and looked up by whoever knows the command line.

A command stands in a fenced block (a line that begins with ``offload`` or ``$ offload``) or in backticks. What stands
in backticks may be the mere name of a command; a line of a block is meant to be run as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["CommandLookup", "CommandMention", "commands_in", "fenced_blocks"]

# Says what is wrong with a command line, None where nothing is; the flag tells whether the line is whole.
CommandLookup = Callable[[str, bool], str | None]

_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"`(offload [^`]+)`")
_IN_BLOCK = re.compile(r"^[ \t]*(?:\$ )?(?:[A-Z][A-Z0-9_]*=\S+ )*(offload [a-z].*)$", re.MULTILINE)
_SHELL_WORDS = ("|", ">", ">>", "2>", "&&", "||", ";", "<", "&")


@dataclass(frozen=True, slots=True)
class CommandMention:
    """One command in a text; ``is_whole`` where it is meant to be run as it stands, ``line`` is 1-based."""

    text: str
    line: int
    is_whole: bool


def fenced_blocks(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield language, content and the line on which the content starts, of each fenced block."""
    for match in _FENCE.finditer(text):
        yield match.group(2).lower(), match.group(3), text.count("\n", 0, match.start(3)) + 1


def commands_in(text: str) -> tuple[CommandMention, ...]:
    """Return the commands of a Markdown text, in the order of their lines."""
    found = []
    for language, block, first_line in fenced_blocks(text):
        if language in ("", "console", "bash", "sh", "shell", "text"):
            for match in _IN_BLOCK.finditer(_joined(block)):
                line = first_line + block.count("\n", 0, match.start())
                found.append(CommandMention(_first_command(match.group(1)), line, is_whole=True))
    prose = _FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    for match in _INLINE.finditer(prose):
        line = prose.count("\n", 0, match.start()) + 1
        found.append(CommandMention(" ".join(match.group(1).split()), line, is_whole=False))
    return tuple(sorted(found, key=lambda mention: mention.line))


def _joined(block: str) -> str:
    """Join lines that a backslash continues; blanks keep every character's place."""
    return block.replace("\\\n", "  ")


def _first_command(line: str) -> str:
    """Return a shell line up to its first pipe, redirection or comment."""
    words = []
    for word in line.split():
        if word in _SHELL_WORDS or word.startswith("#"):
            break
        words.append(word.removesuffix(";"))
    return " ".join(words)
