"""The process's own streams, where the shell closed them (`>&-`) or where they take no more data."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable
from typing import IO, TextIO

STDOUT, STDERR = 1, 2


class UnwrittenError(Exception):
    """stdout took no data. No OSError, so that nobody who writes takes it for one of a file of his own.

    ``reason`` is what the system says; ``is_reader_gone``: the other end of a pipe was closed (`| head`).
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or "it takes no data")
        self.reason = str(self)
        self.is_reader_gone = isinstance(error, BrokenPipeError)


class Descriptor(io.RawIOBase):
    """A file descriptor that is written whole; what a failure means is for ``on_failure`` to say."""

    def __init__(self, number: int, on_failure: Callable[[OSError], None]) -> None:
        self._number = number
        self._on_failure = on_failure

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: object) -> int:
        rest = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever a buffer hands down
        num_bytes = len(rest)
        try:
            while rest:
                rest = rest[self._write_some(rest) :]
        except OSError as error:
            self._on_failure(error)
        return num_bytes

    def _write_some(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                select.select([], [self._number], [])  # a pipe that the shell made non-blocking, and is full


def guard_streams() -> None:
    """Put streams in place of the process's own whose failed writes are known as such wherever they happen.

    A failed write to stdout raises UnwrittenError, also out of click's help and out of completions; one to stderr is
    passed over: there is nobody left to tell. Characters that a locale lacks, as in a file's name, are escaped.
    """
    sys.stdout = _guarded(sys.stdout, STDOUT, raise_unwritten)
    sys.stderr = _guarded(sys.stderr, STDERR, lambda _error: None)


def raise_unwritten(error: OSError) -> None:
    """Raise UnwrittenError for a failed write."""
    raise UnwrittenError(error) from error


def _guarded(stream: TextIO, number: int, on_failure: Callable[[OSError], None]) -> TextIO:
    raw = Descriptor(number, on_failure)
    buffered = io.BufferedWriter(raw)
    # Lines of stderr, and of a terminal, are seen as they are written.
    return io.TextIOWrapper(
        buffered,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=number == STDERR or raw.isatty(),
    )


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
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False)  # noqa: SIM115 - lives as long as the process


def discard(stream: IO[str]) -> None:
    """Let what ``stream`` still holds, and all that follows, go nowhere, so that flushing it at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
