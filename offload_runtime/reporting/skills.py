"""Skills and what checking them found, as text and as data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from offload_runtime.card_checks import SkillVerdict
from offload_runtime.document import Document
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.skills_install import InstalledSkill

__all__ = ["card_data", "render_installed", "render_skills", "render_verdict", "verdict_data"]


def render_skills(entries: Sequence[Mapping[str, str]]) -> str:
    """Return a table of skills: name and summary."""
    cells = [(entry["name"], entry["summary"]) for entry in entries]
    return render_table((Column("skill"), Column("summary")), cells, indent="")


def card_data(document: Document) -> Any:
    """Return a card as plain data; None where it could not be read whole."""
    return None if any(finding.is_error for finding in document.diagnostics) else document.data


def verdict_data(verdict: SkillVerdict) -> dict[str, Any]:
    """Return a verdict as plain data, without its findings, which stand beside it."""
    return {
        "name": verdict.name,
        "file": verdict.file,
        "ok": verdict.ok,
        "checked": dataclasses.asdict(verdict.checks),
        "not_checked": list(verdict.not_checked),
    }


def render_installed(installed: Sequence[InstalledSkill]) -> str:
    """Return a line for each skill: its folder, and what became of its files."""
    return "\n".join(
        f"{skill.folder}: {_counted(skill.num_written, 'file')} written, {skill.num_unchanged} unchanged"
        for skill in installed
    )


def render_verdict(verdict: SkillVerdict) -> str:
    """Return one line: the card's file, whether it holds, what was checked and what was not."""
    counts = Counter(finding.severity for finding in verdict.diagnostics)
    found = [_counted(counts[word], word) for word in ("error", "warning", "note") if counts[word]]
    checked = [
        _counted(number, name.removesuffix("s"))
        for name, number in dataclasses.asdict(verdict.checks).items()
        if number
    ]
    state = ["ok"] if verdict.ok else []
    words = [*state, *found, *([f"checked {', '.join(checked)}"] if checked else [])]
    left = [f"not checked: {text}" for text in verdict.not_checked]
    return f"{verdict.file}: {'; '.join([', '.join(words), *left])}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
