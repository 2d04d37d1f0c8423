"""A run that offloads: whether it is slow by that, which checks are open, and what those that are done have found.

A later check means nothing before an earlier one is done, so that the order is part of the advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offload_runtime.diagnosed_run import (
    is_unnamed,
    known_fact,
    may_move_two,
    may_use_disk,
    moves_activations_alone,
    of_the_run,
    step_that_does_not_count,
    with_mechanism,
)
from offload_runtime.diagnosis_fixes import BELOW_STAGE_3, PRICE_UNLESS, PRICES
from offload_runtime.diagnosis_rows import Check
from offload_runtime.diagnosis_table import (
    CHECKS,
    FINDINGS,
    FITS,
    NORMAL,
    SIGNS,
    SLOW,
)
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.offload_mechanisms import MECHANISMS, mechanisms_possible
from offload_runtime.predicates import Predicate, comparisons, evaluate

__all__ = [
    "DIAGNOSIS_CARD",
    "PRICE_CARD",
    "Diagnosis",
    "Found",
    "diagnose",
    "found_in",
    "is_slow",
    "is_to_be_fixed_now",
    "open_checks",
]

DIAGNOSIS_CARD = "diagnose-offload-overhead"
_MEASURED_AS = {"paired_baseline": "in a pair", "warm_steps_only": "warm"}
_MEASURED = tuple(_MEASURED_AS)
PRICE_CARD = "offload-optimizer-state"
_NEXT = (
    "None of the checks explains it. Compare one warm trace of each side, with and without offloading: the rows that "
    "grew (collectives, the data loader, kernels that became more, graph breaks) are where to look. {}Offload "
    "no more before that is known."
)
_THREE_SIDES = "Where two things are offloaded, measure three sides. "
_CHECKED = {name for check in CHECKS for name in check.facts}
_FINDINGS = {finding.name: finding for finding in FINDINGS}


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a check has found: the facts that say so, and the fixes, each before the next."""

    finding: str
    because: str
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether offloading makes a run slow (``diagnose``) or does not (``not_slow``), in words and as findings.

    ``missing`` are the facts that open checks lead to. ``unknown``: the facts about it contradict each other.
    """

    verdict: Literal["diagnose", "not_slow", "unknown"]
    summary: str
    missing: tuple[str, ...]
    findings: tuple[Found, ...] = ()


def is_slow(sheet: FactSheet) -> bool:
    """Tell whether offloading is on and known to cost more than it normally does, by the slowdown or else by a sign."""
    slowdown = _slowdown(sheet)
    return bool(_signs(of_the_run(sheet))) if slowdown is None else slowdown >= SLOW


def is_to_be_fixed_now(sheet: FactSheet) -> bool:
    """Tell whether something was found whose fix no open check comes before."""
    found = found_in(sheet)
    return bool(found) and not _checks_before(found[0], sheet)


def diagnose(sheet: FactSheet) -> Diagnosis | None:
    """Return what is to be said of a slowdown by offloading; None where neither it nor a sign of it is known."""
    ignored = step_that_does_not_count(sheet)
    sheet = of_the_run(sheet)
    contradiction = _contradiction(sheet)
    if contradiction is not None:
        return Diagnosis("unknown", contradiction, ())
    slowdown = _slowdown(sheet)
    if not is_slow(sheet):
        return None if slowdown is None else _not_slow(sheet, slowdown)
    todo, found = open_checks(sheet), found_in(sheet)
    if found and found[0].finding == FITS:
        fix = found[0].fixes[0]
        summary = f"It fits without offloading: {fix}; then time it again. Nothing has to be diagnosed."
        return Diagnosis("diagnose", summary, (), found)
    parts = [_question(sheet, slowdown)]
    if found:
        so_far = " so far" if todo else ""
        parts.append(f"Found{so_far}: {'; '.join(f'{each.finding} ({each.because})' for each in found)}.")
    parts += [ignored] if ignored is not None else []
    if slowdown is not None and sheet.get("fits") is None and sheet.get("out_of_memory") is not True:
        parts.append("Does it fit without offloading (fits)? Then take it off.")
    price = _price(sheet)
    if price is not None:
        parts.append(price)
    if is_unnamed(sheet):
        parts.append("Name what offloads (offload_mechanism): the fixes hang on it.")
    parts += _what_to_do(found, todo, sheet)
    return Diagnosis("diagnose", " ".join(parts), _missing(sheet, todo), found)


def _what_to_do(found: tuple[Found, ...], todo: tuple[Check, ...], sheet: FactSheet) -> list[str]:
    """Return what is done next: the fix that no open check comes before, else the checks, in order."""
    if not found:
        explained = _NEXT.format(_THREE_SIDES if may_move_two(sheet) else "")
        return [f"In this order: {_in_order(todo, sheet)}." if todo else explained]
    before, fix = _checks_before(found[0], sheet), found[0].fixes[0]
    if before:
        parts = [f"Before the first fix, in this order: {_in_order(before, sheet)}."]
    elif todo and _FINDINGS[found[0].finding].settles_first:
        parts = [
            f"Settle this first, as it changes what the other checks show: {fix}; then measure the pair again."
        ]
    else:
        parts = [f"Apply the first fix, {fix}; then measure the pair again."]
    after = tuple(check for check in todo if check not in before)
    return [*parts, f"Open still: {_in_order(after, sheet)}."] if after else parts


def _checks_before(found: Found, sheet: FactSheet) -> tuple[Check, ...]:
    """Return the open checks that come before the fix of what was found.

    These are whether it was measured well, and those that may still find what is fixed before it; none where it is
    settled first.
    """
    finding = _FINDINGS[found.finding]
    if finding.settles_first or finding.name == FITS:
        return ()
    facts = with_mechanism(of_the_run(sheet))
    earlier = FINDINGS[: FINDINGS.index(finding)]
    possible = [each.sign for each in earlier if each.may_be_in(facts)]
    hang_on = {*_MEASURED, *(each.fact for sign in possible for each in comparisons(sign))}
    return tuple(
        check
        for check in open_checks(sheet)
        if _is_sure(check, sheet)
        and any(name in hang_on and (name in _MEASURED or name not in facts) for name in check.facts)
    )


def open_checks(sheet: FactSheet) -> tuple[Check, ...]:
    """Return the checks that are still to do, in order; one that was answered with no is still to do."""
    sheet = of_the_run(sheet)
    return tuple(check for check in CHECKS if _is_open(check, sheet))


def found_in(sheet: FactSheet) -> tuple[Found, ...]:
    """Return what the facts show, in the order in which it is fixed, with the fixes for what offloads.

    A symptom has no fixes that a finding before has named.
    """
    sheet = of_the_run(sheet)
    facts = with_mechanism(sheet)
    names = [mechanism.name for mechanism in mechanisms_possible(sheet.values)]
    named: dict[str, str] = {}
    found = []
    for finding in FINDINGS:
        if not finding.is_in(facts):
            continue
        fixes = finding.fixes_for(names, facts)
        if finding.is_symptom:
            fixes = tuple(fix for fix in fixes if fix not in named) or (f"as for: {named[fixes[0]]}",)
        named = dict.fromkeys(fixes, finding.name) | named
        because = ", ".join(_all_known(sheet, finding.sign))
        found.append(Found(finding.name, because, fixes))
    return tuple(found)


def _is_open(check: Check, sheet: FactSheet) -> bool:
    facts = sheet.values
    if not _is_made(check, sheet):
        return False
    if any(evaluate(settled, facts) is True for settled in check.settled_by):
        return False
    return any(
        sheet.get(name) is None or (name in _MEASURED and sheet.get(name) is False) for name in check.facts
    )


def _is_made(check: Check, sheet: FactSheet) -> bool:
    """Tell whether a check is one of this run, or may be one."""
    applies = True if check.only_for is None else evaluate(check.only_for, sheet.values)
    if applies is not None or check.not_for is None:
        return applies is True
    return evaluate(check.not_for, sheet.values) is not True


def _in_order(checks: tuple[Check, ...], sheet: FactSheet) -> str:
    return "; then ".join(_in_words(check, sheet) for check in checks)


def _question(sheet: FactSheet, slowdown: float | None) -> str:
    if slowdown is not None:
        what = f"why a step takes {slowdown:.4g} times as long as without offloading"
    else:
        signs = dict.fromkeys(each.fact for sign in _signs(sheet) for each in comparisons(sign))
        known = [known_fact(sheet, name) for name in signs if name in _CHECKED]
        what = f"what a step that offloads waits for, {', '.join(known)}"
    return f"Diagnose {what} ({DIAGNOSIS_CARD})."


def _missing(sheet: FactSheet, todo: tuple[Check, ...]) -> tuple[str, ...]:
    """Return the unknown facts that the diagnosis and its fixes hang on: what offloads, the checks, what is off."""
    names = ["offload_mechanism"] if is_unnamed(sheet) else []
    names += [name for check in todo for name in check.facts if sheet.get(name) is None]
    if _slowdown(sheet) is None:
        names.append("slowdown")
    if may_use_disk(sheet) and not is_unnamed(sheet):
        names.append("offload_mechanism")
    possible = mechanisms_possible(sheet.values) or (MECHANISMS["zero_offload"],)
    names += [name for mechanism in possible for name in mechanism.asks]
    # Where it fits without, it is taken off.
    names += ["fits"] if sheet.get("out_of_memory") is not True else []
    # Nothing of the optimizer's state is off, or all of it: below ZeRO-3 there is no share.
    is_off = sheet.get("optimizer_offload") is False or evaluate(BELOW_STAGE_3, sheet.values) is True
    return tuple(
        dict.fromkeys(
            name
            for name in names
            if sheet.get(name) in (None, "unknown") and not (is_off and name == "offload_fraction")
        )
    )


def _not_slow(sheet: FactSheet, slowdown: float) -> Diagnosis:
    """Say that what was measured is no slowdown to diagnose, and what slows the step whatever it offloads."""
    summary, missing = _no_slowdown(sheet, slowdown)
    others = tuple(found for found in found_in(sheet) if _FINDINGS[found.finding].slows_any_run)
    if others:
        named = "; ".join(f"{each.finding} ({each.because})" for each in others)
        summary += f" Found, and slow with or without offloading: {named}. First fix: {others[0].fixes[0]}."
    return Diagnosis("not_slow", summary, missing, others)


def _no_slowdown(sheet: FactSheet, slowdown: float) -> tuple[str, tuple[str, ...]]:
    """Say what the ratio means, as far as it was measured well, with the facts that say whether it was."""
    open_ones = tuple(name for name in _MEASURED if sheet.get(name) is not True)
    wrong = " and ".join(_MEASURED_AS[name] for name in open_ones if sheet.get(name) is False)
    if wrong and slowdown < NORMAL:
        summary = (
            f"The ratio of {slowdown:.4g} does not count yet: it was not measured {wrong}. Measure it so, and give it "
            "again."
        )
        return summary, tuple(name for name in open_ones if sheet.get(name) is None)
    measured = f"a step takes {slowdown:.4g} times as long as without offloading"
    if slowdown < 1 / NORMAL:
        summary = f"The step is faster with offloading: {measured}."
        if slowdown > 0:
            summary += (
                " slowdown is the step with offloading over that without; if it was taken the other way round, give "
                f"--fact slowdown={1 / slowdown:.4g}."
            )
    elif slowdown < NORMAL:
        summary = f"Offloading is not the cause of a slow step: {measured}, and the medians are close. Look elsewhere."
    elif sheet.get("optimizer_offload") is True:
        summary = (
            f"This is little for the optimizer's state on the host: {measured}. What that cost elsewhere, by share: "
            f"offload skills show {PRICE_CARD}. Take it, or offload less."
        )
    else:
        summary = f"This is the normal price of offloading: {measured}. Take it, or offload less."
        if not moves_activations_alone(sheet):
            summary += f" Optimizer state on the host costs more: offload skills show {PRICE_CARD}."
    if open_ones:
        summary += f" That holds if both were measured in a pair and warm ({', '.join(open_ones)})."
    return summary, tuple(name for name in open_ones if sheet.get(name) is None)


def _price(sheet: FactSheet) -> str | None:
    """Point to what optimizer offload costs where nothing is wrong; the numbers stand in its skill alone."""
    moving = [each for each in mechanisms_possible(sheet.values) if "optimizer_state" in each.moves]
    is_whole = bool(moving) and all("gradients" in each.moves for each in moving)
    is_off = True if is_whole else sheet.get("optimizer_offload")
    if is_off is False or (is_off is None and (not moving or is_unnamed(sheet))):
        return None
    if evaluate(PRICE_UNLESS, sheet.values) is True:
        return None
    has_no_share = evaluate(BELOW_STAGE_3, sheet.values) is True or [each.name for each in moving] == ["nvme"]
    share = 1.0 if is_whole or has_no_share else sheet.number("offload_fraction")
    at = "the share that is offloaded (offload_fraction)" if share is None else f"offload_fraction {share:g}"
    prices = [price.text_for(sheet.values) for each in moving for price in PRICES.get(each.name, ())]
    less = "; ".join(price for price in prices if price is not None) or "lower the share if that is all it is"
    where = (
        "The optimizer's state is on the host, and this"
        if is_off
        else "If the optimizer's state is on the host (optimizer_offload), this"
    )
    published = f"compare with the published times at {at}, offload skills show {PRICE_CARD}"
    return f"{where} may be its price: {published}; {less}."


def _contradiction(sheet: FactSheet) -> str | None:
    """Name what says that nothing is offloaded beside a slowdown by offloading; None where nothing does."""
    slowdown = sheet.number("slowdown")
    if slowdown is None or slowdown < NORMAL or sheet.get("offload_enabled") is not False:
        return None
    fact = "offload_mechanism" if sheet.get("offload_mechanism") == "none" else "offload_enabled"
    return (
        f"{known_fact(sheet, fact)} says that nothing is offloaded, and slowdown {slowdown:.4g} is a step with "
        "offloading over one without: one of the two is wrong. If something is offloaded, name it (offload_mechanism); "
        "if nothing is, offloading does not make the step slow, and slowdown is not this ratio."
    )


def _signs(sheet: FactSheet) -> tuple[Predicate, ...]:
    if sheet.get("offload_enabled") is not True:
        return ()
    return tuple(sign for sign in SIGNS if evaluate(sign, sheet.values) is True)


def _is_sure(check: Check, sheet: FactSheet) -> bool:
    """Tell whether the check is one of this run, and not only of what it may use."""
    return check.only_for is None or evaluate(check.only_for, sheet.values) is True


def _in_words(check: Check, sheet: FactSheet) -> str:
    name = check.name if _is_sure(check, sheet) else f"{check.name}, if one is used"
    unknown = [fact for fact in check.facts if sheet.get(fact) is None]
    return f"{name} ({', '.join(unknown)} open)" if 0 < len(unknown) < len(check.facts) else name


def _slowdown(sheet: FactSheet) -> float | None:
    return sheet.number("slowdown") if sheet.get("offload_enabled") is True else None


def _all_known(sheet: FactSheet, sign: Predicate) -> tuple[str, ...]:
    """Return the facts that a sign compares and that are known, each once, with their values."""
    names = dict.fromkeys(each.fact for each in comparisons(sign))
    return tuple(known_fact(sheet, name) for name in names if sheet.get(name) is not None)
