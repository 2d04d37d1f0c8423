"""Gather findings while reading, instead of stopping at the first."""

from __future__ import annotations

from dataclasses import dataclass, field

from offload_runtime.document import Node
from offload_runtime.errors import (
    Diagnostic,
    OffloadError,
    PolicyError,
    Severity,
    Span,
    UnreadableError,
    sorted_diagnostics,
)

READING_FAMILY = "YAML"


@dataclass(slots=True)
class Findings:
    """A growing list of diagnostics."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(
        self,
        where: Node | Span,
        code: str,
        message: str,
        hint: str | None = None,
        *,
        path: str | None = None,
        severity: Severity = "error",
    ) -> None:
        """Add a finding at a node (with its path) or a span."""
        span = where if isinstance(where, Span) else where.span
        path = path if path is not None or isinstance(where, Span) else where.path
        self.diagnostics.append(Diagnostic.at(span, code, message, severity=severity, path=path, hint=hint))

    @property
    def num_errors(self) -> int:
        """Return how many of the findings stop the command."""
        return sum(diagnostic.is_error for diagnostic in self.diagnostics)


def raise_errors(diagnostics: tuple[Diagnostic, ...]) -> None:
    """Raise when there are errors: UnreadableError when one of them is about reading, else PolicyError."""
    errors = [diagnostic for diagnostic in sorted_diagnostics(diagnostics) if diagnostic.is_error]
    if errors:
        unreadable = any(error.code.startswith(READING_FAMILY) for error in errors)
        kind: type[OffloadError] = UnreadableError if unreadable else PolicyError
        raise kind(*errors)
