"""Guarded streams on descriptors of this test: what is written whole, what fails, and who is told."""

from __future__ import annotations

import os
import threading

import pytest

from offload_runtime.cli.streams import Descriptor, UnwrittenError, raise_unwritten


def test_a_pipe_that_is_full_and_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data, read = b"x" * 300_000, bytearray()

    def drain() -> None:
        while len(read) < len(data):
            read.extend(os.read(reader, 65536))

    thread = threading.Thread(target=drain)
    thread.start()
    assert Descriptor(writer, raise_unwritten).write(data) == len(data)
    thread.join(timeout=30)
    os.close(reader)
    os.close(writer)
    assert bytes(read) == data


def test_a_failed_write_says_why_and_whether_its_reader_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(UnwrittenError) as gone:
        Descriptor(writer, raise_unwritten).write(b"x")
    assert gone.value.is_reader_gone
    os.close(writer)
    with pytest.raises(UnwrittenError, match="Bad file descriptor") as closed:
        Descriptor(writer, raise_unwritten).write(b"x")
    assert not closed.value.is_reader_gone


def test_a_failure_that_nobody_is_told_of_looks_like_a_write() -> None:
    failures: list[OSError] = []
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)
    assert Descriptor(writer, failures.append).write(b"abc") == 3
    assert len(failures) == 1
