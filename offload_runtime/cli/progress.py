"""Progress on stderr: bars where a person is watching, else a line now and then of what takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offload_runtime.cli.emit import use_color

Advance = Callable[[str, int, int], None]

LINE_INTERVAL_S = 10.0


@contextmanager
def shown_progress() -> Iterator[Advance]:
    """Yield `advance(phase, done, total)`, which moves one bar for each phase.

    The bars are drawn on stderr and vanish at the end, so that what remains is the result. They need a
    terminal on stderr; without one rich is never imported, and a command that takes long says every ten
    seconds or more how far it is, so that whoever reads its log can tell it from one that hangs.
    """
    if not sys.stderr.isatty():
        yield _lines()
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


def _lines() -> Advance:
    """Return an ``advance`` that writes a line, at most one in `LINE_INTERVAL_S`; none before that has passed."""
    started_s = written_s = time.monotonic()

    def advance(phase: str, done: int, total: int) -> None:
        nonlocal written_s
        now_s = time.monotonic()
        if now_s - written_s >= LINE_INTERVAL_S:
            written_s = now_s
            sys.stderr.write(f"{phase}: {done} of {total}, {now_s - started_s:.0f} s\n")
            sys.stderr.flush()

    return advance
