"""Folders on the command line: which files in them a command is about."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator


def files_named(references: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """Replace each folder by the files in and below it that have one of `names`, sorted.

    Folders whose name begins with a dot are left out. A folder with no such file stays as it is, for the
    command to refuse by name. Each file comes once, where it was first named.
    """
    found: dict[str, None] = {}
    for reference in references:
        inside = sorted(_below(reference, names)) if os.path.isdir(reference) else []
        found.update(dict.fromkeys(inside or [reference]))
    return tuple(found)


def _below(folder: str, names: tuple[str, ...]) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name in names:
                yield os.path.normpath(os.path.join(parent, name))
