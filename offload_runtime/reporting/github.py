"""GitHub Actions annotations: one workflow command for each diagnostic.

    ::error file=policy.yaml,line=3,col=5,title=POL104::message

Source: GitHub's "Workflow commands for GitHub Actions", and `toCommandValue` of actions/toolkit for escapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from offload_runtime.errors import Diagnostic
from offload_runtime.overrides import OVERRIDE_FILE

_LEVELS = MappingProxyType({"error": "error", "warning": "warning", "note": "notice"})


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """Return one annotation a line; an empty text for no diagnostics."""
    return "\n".join(_annotation(diagnostic) for diagnostic in diagnostics)


def _annotation(diagnostic: Diagnostic) -> str:
    properties: dict[str, str | int | None] = {"title": diagnostic.code}
    if diagnostic.file != OVERRIDE_FILE:  # an override stands in no file that could be annotated
        place = {"file": diagnostic.file, "line": diagnostic.line, "col": diagnostic.column}
        properties = {**place, **properties}
    listed = ",".join(
        f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None
    )
    message = diagnostic.message if diagnostic.hint is None else f"{diagnostic.message}\n{diagnostic.hint}"
    return f"::{_LEVELS[diagnostic.severity]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
