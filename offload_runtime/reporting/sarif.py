"""SARIF 2.1.0, the format in which code scanning services take findings.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from offload_runtime.codes import CODES
from offload_runtime.errors import Diagnostic
from offload_runtime.overrides import OVERRIDE_FILE

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = MappingProxyType({"error": "error", "warning": "warning", "note": "note"})


def render(diagnostics: Sequence[Diagnostic]) -> str:
    """Return one SARIF log with one run; its rules are the codes that occur."""
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    run = {
        "tool": {"driver": {"name": "offload", "rules": [_rule(code) for code in codes]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(diagnostic, codes.index(diagnostic.code)) for diagnostic in diagnostics],
    }
    log = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


def _rule(code: str) -> dict[str, Any]:
    entry = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.explanation},
        "help": {"text": entry.cure},
    }


def _result(diagnostic: Diagnostic, rule_index: int) -> dict[str, Any]:
    message = diagnostic.message if diagnostic.hint is None else f"{diagnostic.message} ({diagnostic.hint})"
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": message},
    }
    # An override stands in no file that a scanning service could show.
    if diagnostic.file is not None and diagnostic.file != OVERRIDE_FILE:
        location: dict[str, Any] = {"artifactLocation": {"uri": _uri(diagnostic.file)}}
        if diagnostic.line is not None:
            region = {"startLine": diagnostic.line}
            if diagnostic.column is not None:
                region["startColumn"] = diagnostic.column
            location["region"] = region
        result["locations"] = [{"physicalLocation": location}]
    return result


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
