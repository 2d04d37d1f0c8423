"""Pages on disk against pages as they should be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Drift", "find_drift", "write_pages"]

DriftState = Literal["stale", "missing", "not generated"]
REFERENCE = "docs/reference"
MOST_DIFF_LINES = 12


@dataclass(frozen=True)
class Drift:
    """One page that is not as it should be; ``diff`` shows the first differences, from the disk to what is right."""

    page: str
    state: DriftState
    diff: str = ""


def find_drift(root: Path, pages: Mapping[str, str], pictures: Iterable[str] = ()) -> tuple[Drift, ...]:
    """Compare ``pages`` (path from the root -> text) with the disk, and look for files that nobody generates."""
    found = []
    for page, text in sorted(pages.items()):
        path = root / page
        if not path.is_file():
            found.append(Drift(page, "missing"))
            continue
        there = path.read_text("utf-8")
        if there != text:
            found.append(Drift(page, "stale", _short_diff(there, text)))
    known = {*pages, *pictures}
    found += [Drift(page, "not generated") for page in _reference_files(root) if page not in known]
    return tuple(found)


def write_pages(root: Path, pages: Mapping[str, str], pictures: Iterable[str] = ()) -> tuple[Drift, ...]:
    """Write what has drifted, and remove from the reference what nobody generates; return what was done."""
    drifts = find_drift(root, pages, pictures)
    for drift in drifts:
        path = root / drift.page
        if drift.state == "not generated":
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[drift.page], encoding="utf-8")
    return drifts


def _reference_files(root: Path) -> Iterator[str]:
    folder = root / REFERENCE
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            yield path.relative_to(root).as_posix()


def _short_diff(there: str, right: str) -> str:
    lines = [
        line
        for line in difflib.unified_diff(there.splitlines(), right.splitlines(), lineterm="", n=0)
        if not line.startswith(("---", "+++"))
    ]
    shown = lines[:MOST_DIFF_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more lines")
    return "\n".join(shown)
