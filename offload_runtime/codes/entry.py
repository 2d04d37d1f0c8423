"""The row of the code table."""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.errors import Severity


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """One diagnostic code: what it means, and how it is cured.

    ``bad_example`` provokes it and ``good_example`` is the same without the fault, both in the form that the
    fault occurs in (YAML, a command, Python); None where an example would say nothing.
    """

    code: str
    severity: Severity
    title: str
    explanation: str
    cure: str
    bad_example: str | None = None
    good_example: str | None = None
