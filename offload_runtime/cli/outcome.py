"""What a command hands back, and the one JSON document made from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offload_runtime.errors import Diagnostic

SCHEMA_VERSION = 1

EXIT_OK = 0
EXIT_FINDINGS = 1
EXIT_USAGE = 2
EXIT_UNREADABLE = 3
EXIT_FAILED = 5
EXIT_BUG = 70
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@dataclass(frozen=True)
class Outcome:
    """The result of one command, before any format is chosen.

    `text` is what a person reads on stdout; `data` the same facts for programs; `next` commands that
    make sense after this one. `diagnostics` go to stderr in the text format, or to stdout where they are
    the command's product (`diagnostics_are_output`).
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    exit_code: int = EXIT_OK
    next: tuple[str, ...] = ()
    diagnostics_are_output: bool = False

    @property
    def ok(self) -> bool:
        """Tell whether the exit code is 0."""
        return self.exit_code == EXIT_OK


def envelope(command: str, outcome: Outcome) -> dict[str, Any]:
    """Return the document that `--format json` prints, for successes and failures alike."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "ok": outcome.ok,
        "exit_code": outcome.exit_code,
        "data": dict(outcome.data),
        "diagnostics": [dataclasses.asdict(diagnostic) for diagnostic in outcome.diagnostics],
        "next": list(outcome.next),
    }


def to_json(command: str, outcome: Outcome) -> str:
    """Serialise the envelope in ASCII, which every stdout can carry.

    NaN and infinities, which JSON lacks, become null: a diverged loss is a finding that a program must be
    able to read, not a broken document.
    """
    return json.dumps(_finite(envelope(command, outcome)), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
