"""What goes wrong, as values: diagnostics with a stable code, and one exception per exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Span:
    """Say where a value was written.

    ``line`` and ``column`` are 1-based and count characters; both are None for a value that has no text
    behind it (a policy given as a dict).
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file or "<policy>"]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)


NOWHERE = Span()


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """State one finding: what (``message``), where, and the cure (``hint``).

    ``path`` is the dotted path in the document, such as ``activations.rules[0].match.op``.
    ``code`` is a key of :data:`offload_runtime.codes.CODES`.
    """

    code: str
    severity: Severity
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
    hint: str | None = None

    @classmethod
    def at(
        cls,
        span: Span | None,
        code: str,
        message: str,
        *,
        severity: Severity = "error",
        path: str | None = None,
        hint: str | None = None,
    ) -> Diagnostic:
        """Build a diagnostic that points at ``span``."""
        span = span or NOWHERE
        return cls(code, severity, message, span.file, span.line, span.column, path or None, hint)

    @property
    def is_error(self) -> bool:
        """Tell whether this finding stops the command."""
        return self.severity == "error"

    def __str__(self) -> str:
        where = f"{Span(self.file, self.line, self.column)}: " if self.file or self.line else ""
        hint = f" ({self.hint})" if self.hint else ""
        kind = "" if self.severity == "error" else f"{self.severity}: "
        return f"{where}{self.code} {kind}{self.message}{hint}"


def error_text(error: BaseException) -> str:
    """Return what an exception of other code says, in one line; empty where it says nothing.

    Its own ``__str__`` may raise: then the line says so. What no text can hold is escaped.
    """
    return _one_line(error, str)


def named_error(error: BaseException) -> str:
    """Return an exception of other code as ``ValueError: what it says``, or its name alone where it says nothing."""
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def value_text(value: object) -> str:
    """Return the ``repr`` of a value of other code in one line; its own ``__repr__`` may raise."""
    return _one_line(value, repr)


def _one_line(value: object, write: Callable[[Any], str]) -> str:
    try:
        text = write(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever other code raises while it says what it is
        return f"(a {type(value).__name__} that cannot be written: its text raised {type(error).__name__})"
    return escaped(" ".join(text.split()))


def escaped(text: str) -> str:
    """Return ``text`` with lone surrogates, which no encoding has, as escapes: ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def sorted_diagnostics(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Order findings by place, then code, without repeats; those without a place come first."""
    return tuple(
        sorted(
            dict.fromkeys(diagnostics),
            key=lambda d: (d.file or "", d.line or 0, d.column or 0, d.code, d.message),
        )
    )


class OffloadError(Exception):
    """Carry diagnostics to whoever shows them; each subclass is one exit code of the command line."""

    exit_code: ClassVar[int] = 70

    def __init__(self, *diagnostics: Diagnostic) -> None:
        if not diagnostics:
            raise ValueError(f"{type(self).__name__} needs at least one diagnostic")
        self.diagnostics = diagnostics
        super().__init__(*diagnostics)

    def __str__(self) -> str:
        return "\n".join(str(d) for d in self.diagnostics)


class PolicyError(OffloadError):
    """A policy, policy test or card was read, and something in it is wrong."""

    exit_code: ClassVar[int] = 1


class UsageError(OffloadError):
    """The command or call was put wrongly."""

    exit_code: ClassVar[int] = 2


class UnreadableError(OffloadError):
    """An input cannot be read or parsed."""

    exit_code: ClassVar[int] = 3


class RefusedError(OffloadError):
    """What was asked is unsafe, unsupported or infeasible here; the hint says what would cure it."""

    exit_code: ClassVar[int] = 4


class RunError(OffloadError):
    """Something failed while running: out of memory, a broken transfer, a crash."""

    exit_code: ClassVar[int] = 5
