"""Check skills: what a card, its SKILL.md and its evals say, against the files, code and commands that they name."""

from __future__ import annotations

from offload_runtime.card_checks.commands import CommandLookup
from offload_runtime.card_checks.grading import Assertion, OutsideGrader
from offload_runtime.card_checks.skill import Checker, Checks, SkillVerdict

__all__ = ["Assertion", "Checker", "Checks", "CommandLookup", "OutsideGrader", "SkillVerdict"]
