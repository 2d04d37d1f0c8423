"""Links inside the repository: every file that a page points at exists, and every anchor in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

from offload_runtime.docgen.markdown import anchors, links

__all__ = ["BrokenLink", "broken_links", "linked_pages"]


@dataclass(frozen=True)
class BrokenLink:
    """A link that leads nowhere: the page, the line, the link, and why."""

    page: str
    line: int
    target: str
    reason: str


def linked_pages(root: Path, generated: Mapping[str, str]) -> Mapping[str, str]:
    """Return all pages whose links are checked: those at the root, those of docs, and ``generated`` as they will be."""
    files = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *root.glob("llms.txt")]
    found = {path.relative_to(root).as_posix(): path for path in sorted(files)}
    return {name: path.read_text("utf-8") for name, path in found.items()} | dict(generated)


def broken_links(root: Path, pages: Mapping[str, str], checked: Iterable[str]) -> Iterator[BrokenLink]:
    """Yield the links of ``checked`` pages that lead nowhere inside the repository; others are not looked at."""
    known = {page: anchors(text) for page, text in pages.items() if page.endswith(".md")}
    for page in checked:
        for link in links(pages[page]):
            path, _, anchor = link.target.partition("#")
            if "://" in path or path.startswith("mailto:"):
                continue
            there = page if not path else normpath(str(PurePosixPath(page).parent / unquote(path)))
            if there not in pages and not (root / there).exists():
                yield BrokenLink(page, link.line, link.target, f"there is no {there}")
            elif anchor and there in known and anchor not in known[there]:
                yield BrokenLink(page, link.line, link.target, f"{there} has no heading #{anchor}")
