from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from offload_runtime.cli import run


@dataclass(frozen=True)
class Finished:
    """What one command left behind: its exit code, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Parse stdout as the one JSON document that it must be."""
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed


Offload = Callable[..., Finished]


def facts(*texts: str) -> list[str]:
    """Give each `name=value` as a `--fact`."""
    return [word for text in texts for word in ("--fact", text)]


@pytest.fixture
def offload(capsys: pytest.CaptureFixture[str]) -> Offload:
    """Run a command in this process and return what it left behind."""

    def call(*args: str) -> Finished:
        capsys.readouterr()
        exit_code = run(args)
        captured = capsys.readouterr()
        return Finished(exit_code, captured.out, captured.err)

    return call
