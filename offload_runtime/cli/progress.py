"""Progress on stderr, where a person is watching; nothing at all otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offload_runtime.cli.emit import use_color

Advance = Callable[[str, int, int], None]


@contextmanager
def shown_progress() -> Iterator[Advance]:
    """Yield `advance(phase, done, total)`, which moves one bar for each phase.

    The bars are drawn on stderr and vanish at the end, so that what remains is the result. They need a
    terminal on stderr; without one every call does nothing, and rich is never imported.
    """
    if not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not use_color(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:

        def advance(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=total)
            progress.update(tasks[phase], completed=done, total=total)

        yield advance
