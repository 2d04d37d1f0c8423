"""``OFFLOAD_REPORT``: the report of a run whose code cannot ask for it, written when the process ends.

    OFFLOAD_POLICY=balanced OFFLOAD_REPORT=report.json python train.py

A path ending in ``.json`` gets one JSON document a session, anything else text; ``-`` is stderr.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import sys
from pathlib import Path

from offload_runtime.record import Report
from offload_runtime.runtime.model_report import nothing_captured, report_of_session
from offload_runtime.runtime.session import living_sessions

__all__ = ["render_reports", "report_at_exit"]

_registered: list[str] = []


def report_at_exit() -> None:
    """Write the reports of this process at its end, if ``OFFLOAD_REPORT`` asks for them; call as often as you like."""
    target = os.environ.get("OFFLOAD_REPORT")
    if target and not _registered:
        _registered.append(target)
        atexit.register(_write, target, os.getpid())


def _write(target: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked worker: the report is its parent's
    reports = [report_of_session(session) for session in living_sessions() if session.graphs]
    text = render_reports(reports, as_json=target.endswith(".json"))
    if target == "-":
        sys.stderr.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def render_reports(reports: list[Report], *, as_json: bool) -> str:
    """Return the reports as text, or as one line of JSON each; where there are none, the finding that says so."""
    if as_json:
        lines: list[dict[str, object]] = [dataclasses.asdict(report) for report in reports]
        lines = lines or [{"graphs": [], "diagnostics": [dataclasses.asdict(nothing_captured())]}]
        return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    return "".join(f"{report}\n" for report in reports) or f"{nothing_captured()}\n"
