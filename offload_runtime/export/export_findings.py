"""What is found while a policy is exported: refusals and notes, each at its clause where the policy has one."""

from __future__ import annotations

from collections.abc import Sequence

from offload_runtime.errors import Diagnostic, Span
from offload_runtime.export.target import Target
from offload_runtime.policy import Policy

__all__ = ["ExportFindings"]


class ExportFindings:
    """Refusals and notes about handing ``policy`` to ``target``, in the order in which they were found."""

    def __init__(self, target: Target, policy: Policy) -> None:
        self.target = target
        self.policy = policy
        self.refusals: list[Diagnostic] = []
        self.notes: list[Diagnostic] = []

    def refuse(self, where: Span | None, code: str, message: str, hint: str, path: str | None = None) -> None:
        """Add a refusal; with one nothing is written."""
        message = f"{self.target.name}: {message}" if code != "EXP901" else message
        self.refusals.append(Diagnostic.at(where, code, message, path=path, hint=hint))

    def note(
        self, where: Span | None, code: str, message: str, path: str | None = None, hint: str | None = None
    ) -> None:
        """Add a note."""
        message = f"{self.target.name}: {message}"
        self.notes.append(Diagnostic.at(where, code, message, severity="note", path=path, hint=hint))

    def span_of(self, paths: Sequence[str]) -> tuple[Span | None, str | None]:
        """Return the place and the name of the first of ``paths`` that the policy gives."""
        for path in paths:
            span = self.policy.span_of(path)
            if span is not None:
                return span, path
        return None, None
