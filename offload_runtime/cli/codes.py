"""`offload codes`: what a diagnostic's code means, and how to cure it."""

from __future__ import annotations

import difflib
from typing import Any

import click

from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import Outcome
from offload_runtime.codes import CODES, CodeEntry
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.reporting.tables import Column, render_table


@click.command()
@click.argument("code", required=False)
@format_option()
def command(code: str | None) -> Outcome:
    """List the diagnostic codes, or explain one of them.

    \b
    Example:
      offload codes
      offload codes POL104
    """
    if code is None:
        rows = [[entry.code, entry.severity, entry.title] for entry in _entries()]
        table = render_table([Column("code"), Column("severity"), Column("title")], rows, indent="")
        return Outcome(data={"codes": [_data(entry) for entry in _entries()]}, text=table)
    entry = _find(code)
    return Outcome(data=_data(entry), text=_page(entry))


def _entries() -> list[CodeEntry]:
    return [CODES[code] for code in sorted(CODES)]


def _find(code: str) -> CodeEntry:
    entry = CODES.get(code.upper())
    if entry is not None:
        return entry
    close = difflib.get_close_matches(code.upper(), CODES, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else "`offload codes` lists them all"
    raise UsageError(Diagnostic("CLI606", "error", f"there is no code {code}", hint=hint))


def _data(entry: CodeEntry) -> dict[str, Any]:
    return {
        "code": entry.code,
        "severity": entry.severity,
        "title": entry.title,
        "explanation": entry.explanation,
        "cure": entry.cure,
        "bad_example": entry.bad_example,
        "good_example": entry.good_example,
        "message_example": entry.message_example,
    }


def _page(entry: CodeEntry) -> str:
    parts = [f"{entry.code} ({entry.severity}): {entry.title}", entry.explanation, f"cure: {entry.cure}"]
    examples = (("bad", entry.bad_example), ("good", entry.good_example), ("message", entry.message_example))
    for title, example in examples:
        if example:
            parts.append(f"{title}:\n" + "\n".join(f"  {line}" for line in example.strip().splitlines()))
    return "\n\n".join(parts)
