"""Code blocks of the pages written by hand, and what each kind of block promises.

python   runs; where the first line is ``# NAME.py`` it is a file that a command below it runs
yaml     is a valid file, which the commands of its page find under the name in its first line
console  ``$ offload ...`` runs and prints what follows; ``...`` stands for any text
sh       names only commands, options and make targets that exist
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from offload_runtime.cli.program import program
from offload_runtime.docgen.markdown import code_fences

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("getting-started", "how-it-works", "tuning", "recipes", "limits")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: str
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """The name in the first line, if it is a comment with one."""
        named = re.match(r"# ([\w-]+\.(?:py|yaml))\n", self.text)
        return named[1] if named else None


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all guides in one of ``languages``; in any, where none is given."""
    found = [
        Block(page, language, text)
        for page in GUIDES
        for language, text in code_fences((DOCS / f"{page}.md").read_text("utf-8"))
    ]
    return [block for block in found if not languages or block.language in languages]


def write_files(page: str, folder: Path) -> None:
    """Write the files that the blocks of a page are."""
    for block in blocks("yaml", "python"):
        if block.page == page and block.file_name is not None:
            (folder / block.file_name).write_text(block.text, encoding="utf-8")


def command_lines(block: Block) -> Iterator[str]:
    """Yield the commands of a block, joined where a line ends in a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    yield from (line for line in lines if line.strip())


def check_command(line: str) -> None:
    """Let click read ``offload ...`` without running it; raises click.UsageError for what does not exist."""
    words = shlex.split(line, comments=True)
    context = click.Context(program, info_name="offload")
    command: click.Command = program
    args = words[1:]
    while isinstance(command, click.Group):
        name = args.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command, context = found, click.Context(found, parent=context, info_name=name)
    with command.make_context(context.info_name, args, parent=context.parent):
        pass


def expected_output(shown: str) -> re.Pattern[str]:
    """Return the pattern of what a console block shows: ``...`` is any text; alone in a line, lines."""
    parts = [
        re.escape(part).replace(r"\.\.\.", "[^\n]*")
        for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    ]
    return re.compile("(?s:.*)".join(parts))
