"""Pieces of Markdown: cells, code, anchors as GitHub makes them, and the headings and links of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Link", "alternatives", "anchors", "cell", "code", "code_fences", "links", "slug", "table"]

_FENCE = re.compile(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(.+?)\1(?!`)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
_HTML_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\">")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)(?: \"[^\"]*\")?\)")


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a page: where it leads, and the line (from 1) that it stands on."""

    target: str
    line: int


def cell(text: str) -> str:
    """Return ``text`` as one cell of a table: in one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return ``text`` as a code span; backticks inside get a longer fence."""
    runs = [len(run) for run in re.findall(r"`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def alternatives(words: Iterable[str]) -> str:
    """Join ``words`` as a choice: ``a``, ``b or c``, ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Lay out a table; columns from ``numbers_from`` on are flush right.

    Raises ValueError for a row that has not one cell per column.
    """
    marks = ["---:" if numbers_from is not None and at >= numbers_from else "---" for at in range(len(head))]
    lines = [list(head), marks]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(head)} columns, but a row of {len(row)} cells: {list(row)}")
        lines.append([cell(text) for text in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading: lower case, blanks as hyphens, other signs dropped."""
    text = _CODE_SPAN.sub(lambda span: span[2], heading)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> frozenset[str]:
    """Return every anchor of a page; a heading that comes again gets ``-1``, ``-2``."""
    text = _without_fences(text)
    seen: dict[str, int] = {}
    found = set(_HTML_ANCHOR.findall(text))
    for heading in _HEADING.findall(text):
        name = slug(heading)
        times = seen.get(name, 0)
        seen[name] = times + 1
        found.add(f"{name}-{times}" if times else name)
    return frozenset(found)


def links(text: str) -> Iterator[Link]:
    """Yield the links and pictures of a page, those in code left out."""
    text = _without_fences(text)
    text = _CODE_SPAN.sub(lambda span: re.sub(r"[^\n]", " ", span[0]), text)
    for match in _LINK.finditer(text):
        yield Link(match[1], text.count("\n", 0, match.start()) + 1)


def code_fences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language (empty where none is named) and the content of each fenced block."""
    for match in _FENCE.finditer(text):
        yield match[2].strip(), match[3]


def _without_fences(text: str) -> str:
    """Blank out fenced blocks; the number of lines stays."""
    return _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
