"""Plain aligned tables: the same text on a terminal, in a pipe and in a test.

Nothing is ever wrapped, truncated or coloured, so that a row is one line for `grep` and `awk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Column:
    """A column: its title, and the side on which its cells are flush."""

    title: str
    align: Align = "left"


def render_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Lay out `rows` under the titles of `columns`; an empty cell is shown as `-`.

    Raises ValueError for a row that has not one cell per column.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{len(columns)} columns, but a row of {len(row)} cells: {list(row)}")
    lines = [[column.title for column in columns], *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(indent + _line(line, columns, widths) for line in lines)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if column.align == "right" else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    return "  ".join(padded).rstrip()
