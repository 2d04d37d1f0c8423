"""A run that offloads: whether it is slow by that, which checks are open, and what those that are done have found.

A later check means nothing before an earlier one is done, so that the order is part of the advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offload_runtime.diagnosis_table import CHECKS, FINDINGS, NORMAL, SLOW, Check
from offload_runtime.fact_sheet import FactSheet, format_fact
from offload_runtime.facts import FACTS
from offload_runtime.predicates import comparisons, evaluate

__all__ = ["DIAGNOSIS_CARD", "Diagnosis", "Found", "diagnose", "found_in", "is_slow", "open_checks"]

DIAGNOSIS_CARD = "diagnose-offload-overhead"
_MEASURED = ("paired_baseline", "warm_steps_only")
_MECHANISM_OF = {"deepspeed": "zero_offload"}
_NEXT = (
    "None of the checks explains it. Compare one warm trace of each side, with and without offloading: the rows that "
    "grew (collectives, the data loader, kernels that became more, graph breaks) are where to look. Where two things "
    "are offloaded, measure three sides. Offload no more before that is known"
)


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a check has found: the facts that say so, and the fixes, each before the next."""

    finding: str
    because: str
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether offloading makes a run slow (``diagnose``) or does not (``not_slow``), in words and as findings.

    ``missing`` are the facts that open checks lead to.
    """

    verdict: Literal["diagnose", "not_slow"]
    summary: str
    missing: tuple[str, ...]
    findings: tuple[Found, ...] = ()


def is_slow(sheet: FactSheet) -> bool:
    """Tell whether offloading is on and the step is known to take longer by more than offloading normally costs."""
    slowdown = _slowdown(sheet)
    return slowdown is not None and slowdown >= SLOW


def diagnose(sheet: FactSheet) -> Diagnosis | None:
    """Return what is to be said of a slowdown by offloading; None where none is known."""
    slowdown = _slowdown(sheet)
    if slowdown is None:
        return None
    if slowdown < SLOW:
        return _not_slow(sheet, slowdown)
    todo, found = open_checks(sheet), found_in(sheet)
    missing = tuple(name for check in todo for name in check.facts if sheet.get(name) is None)
    parts = [
        f"Diagnose why a step takes {slowdown:.4g} times as long as without offloading ({DIAGNOSIS_CARD})."
    ]
    if todo:
        parts.append(f"In this order: {'; then '.join(check.name for check in todo)}.")
    if found:
        so_far = " so far" if todo else ""
        parts.append(f"Found{so_far}: {'; '.join(f'{each.finding} ({each.because})' for each in found)}.")
    elif not todo:
        parts.append(f"{_NEXT}.")
    return Diagnosis("diagnose", " ".join(parts), missing, found)


def open_checks(sheet: FactSheet) -> tuple[Check, ...]:
    """Return the checks that are still to do, in order; one that was answered with no is still to do."""
    return tuple(check for check in CHECKS if _is_open(check, sheet))


def found_in(sheet: FactSheet) -> tuple[Found, ...]:
    """Return what the facts show, in the order in which it is fixed, with the fixes for the system that offloads."""
    facts, system = sheet.values, _system(sheet)
    return tuple(
        Found(
            finding.name,
            ", ".join(_known(sheet, each.fact) for each in comparisons(finding.sign)),
            finding.fixes_for(system),
        )
        for finding in FINDINGS
        if evaluate(finding.sign, facts) is True
    )


def _is_open(check: Check, sheet: FactSheet) -> bool:
    facts = sheet.values
    if check.only_for is not None and evaluate(check.only_for, facts) is not True:
        return False
    if any(evaluate(settled, facts) is True for settled in check.settled_by):
        return False
    return any(
        sheet.get(name) is None or (name in _MEASURED and sheet.get(name) is False) for name in check.facts
    )


def _not_slow(sheet: FactSheet, slowdown: float) -> Diagnosis:
    """Say that what was measured is no slowdown to diagnose, as far as it was measured well."""
    open_ones = tuple(name for name in _MEASURED if sheet.get(name) is not True)
    measured = f"a step takes {slowdown:.4g} times as long as without offloading"
    if slowdown < NORMAL:
        summary = f"Offloading is not the cause of a slow step: {measured}, and the medians are close. Look elsewhere."
    else:
        summary = f"This is the normal price of offloading: {measured}. Take it, or offload less."
    if open_ones:
        summary += f" That holds if both were measured in a pair and warm ({', '.join(open_ones)})."
    return Diagnosis("not_slow", summary, tuple(name for name in open_ones if sheet.get(name) is None))


def _slowdown(sheet: FactSheet) -> float | None:
    return sheet.number("slowdown") if sheet.get("offload_enabled") is True else None


def _system(sheet: FactSheet) -> str | None:
    """Return what offloads: the mechanism that is known, or that of the framework."""
    mechanism = sheet.get("offload_mechanism")
    if mechanism not in (None, "none", "unknown"):
        return str(mechanism)
    framework = sheet.get("framework")
    if framework == "deepspeed" and sheet.get("offload_device") == "nvme":
        return "nvme"
    return None if framework is None else _MECHANISM_OF.get(str(framework), str(framework))


def _known(sheet: FactSheet, name: str) -> str:
    value = sheet.get(name)
    return name if value is None else f"{name} {format_fact(FACTS[name], value)}"
