"""SARIF 2.1.0, the format in which code scanning services take findings.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from offload_runtime import __version__
from offload_runtime.codes import CODES
from offload_runtime.errors import Diagnostic
from offload_runtime.overrides import OVERRIDE_FILE

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = MappingProxyType({"error": "error", "warning": "warning", "note": "note"})


def render(diagnostics: Sequence[Diagnostic]) -> str:
    """Return one SARIF log with one run; its rules are the codes that occur.

    A finding in a file is a result. One in no file, as about an override, is a notification on how the tool was
    called: scanning services refuse a log with a result that has no location.
    """
    codes = sorted({diagnostic.code for diagnostic in diagnostics})
    driver = {"name": "offload", "version": __version__, "rules": [_rule(code) for code in codes]}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d, codes.index(d.code)) for d in diagnostics if _stands_in_a_file(d)],
    }
    elsewhere = [d for d in diagnostics if not _stands_in_a_file(d)]
    if elsewhere:
        notifications = [_notification(d, codes.index(d.code)) for d in elsewhere]
        usable = not any(diagnostic.is_error for diagnostic in elsewhere)
        run["invocations"] = [
            {"executionSuccessful": usable, "toolConfigurationNotifications": notifications}
        ]
    log = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2)


def _rule(code: str) -> dict[str, Any]:
    entry = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.explanation},
        "help": {"text": entry.cure},
    }


def _stands_in_a_file(diagnostic: Diagnostic) -> bool:
    return diagnostic.file is not None and diagnostic.file != OVERRIDE_FILE


def _result(diagnostic: Diagnostic, rule_index: int) -> dict[str, Any]:
    assert diagnostic.file is not None, "a finding in no file is a notification"
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(diagnostic.file)}}
    if diagnostic.line is not None:
        region = {"startLine": diagnostic.line}
        if diagnostic.column is not None:
            region["startColumn"] = diagnostic.column
        location["region"] = region
    return {
        "ruleId": diagnostic.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[diagnostic.severity],
        "message": _message(diagnostic),
        "locations": [{"physicalLocation": location}],
    }


def _notification(diagnostic: Diagnostic, rule_index: int) -> dict[str, Any]:
    return {
        "associatedRule": {"id": diagnostic.code, "index": rule_index},
        "level": _LEVELS[diagnostic.severity],
        "message": _message(diagnostic),
    }


def _message(diagnostic: Diagnostic) -> dict[str, str]:
    hint = "" if diagnostic.hint is None else f" ({diagnostic.hint})"
    return {"text": f"{diagnostic.message}{hint}"}


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))
