"""The process's own streams, where the shell closed them (`>&-`) or where they take no more data."""

from __future__ import annotations

import os
import sys
from typing import IO


def open_closed_streams() -> None:
    """Give a stream that the process was started without a descriptor of its own.

    The next file opened would get the number otherwise, and what was meant for stdout would be written into it.
    stdout is opened for reading, so that writing to it fails as on any closed file; stderr swallows what it gets.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - lives as long as the process


def discard(stream: IO[str]) -> None:
    """Let what ``stream`` still holds, and all that follows, go nowhere, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
