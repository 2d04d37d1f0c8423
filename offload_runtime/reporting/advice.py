"""Advice as text and as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from offload_runtime.advice import Advice, Step
from offload_runtime.advice_diagnosis import Found
from offload_runtime.advice_systems import SystemMechanism
from offload_runtime.card_verdicts import CardVerdict
from offload_runtime.diagnosis_table import FITS
from offload_runtime.fact_sheet import FactSheet, FactsResult, how_to_know
from offload_runtime.facts import FACTS, PROBED
from offload_runtime.reporting.facts import facts_data
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.reporting.why import render_section
from offload_runtime.state_facts import sharding_of
from offload_runtime.units import format_size_short

__all__ = ["advice_data", "render_advice"]

_WORDS = {True: "applies", False: "does not apply", None: "unknown"}
_MECHANISMS = {
    "activations": "activations",
    "optimizer_state": "optimizer state",
    "gradients": "gradients",
    "parameters": "parameters",
}


# Unknown facts that are listed unless all are asked for.
MAX_UNKNOWN = 6


def render_advice(
    advice: Advice,
    cards: Sequence[CardVerdict],
    sheet: FactSheet,
    *,
    is_planned: bool = False,
    all_unknown: bool = False,
) -> str:
    """Write the conclusion, the arithmetic, the order, the cards, and how to give what is missing.

    Of the unknown facts those that settle most come first; past ``MAX_UNKNOWN`` they are counted, unless
    ``all_unknown``. ``is_planned``: a model and hardware were given already.
    """
    parts = [advice.summary]
    if advice.findings:
        parts.append(_findings(advice.findings))
    if advice.mechanisms and advice.conclusion != "diagnose":
        parts.append(_system_mechanisms(advice.mechanisms))
    parts += list(_cures(advice))
    parts += [render_section(section) for section in advice.sections]
    if advice.order:
        parts.append("in which order\n" + "\n".join(_steps(advice.order)))
    parts.append(f"skill cards\n{_cards(cards)}")
    missing = _missing(advice, cards, everything=all_unknown)
    if missing:
        shown = missing if all_unknown else missing[: max(MAX_UNKNOWN, len(advice.missing))]
        columns = [Column("unknown fact"), Column("meaning"), Column("how to know it")]
        rows_missing = [(name, FACTS[name].summary, _way(name, sheet, is_planned)) for name in shown]
        more = len(missing) - len(shown)
        rest = f"\nand {more} more that settle less: --all" if more else ""
        parts.append(f"what hangs on unknown facts\n{render_table(columns, rows_missing)}{rest}")
    return "\n\n".join(parts)


def advice_data(
    advice: Advice, cards: Sequence[CardVerdict], result: FactsResult, *, is_planned: bool = False
) -> dict[str, Any]:
    """Return the advice as data, with the facts that it rests on."""
    return {
        "conclusion": advice.conclusion,
        "summary": advice.summary,
        "cures": dataclasses.asdict(advice.cures),
        "mechanisms": [dataclasses.asdict(mechanism) for mechanism in advice.mechanisms],
        "findings": [dataclasses.asdict(found) for found in advice.findings],
        "device_peak_bytes": advice.device_peak_bytes,
        "compile_first": advice.compile_first,
        "order": [dataclasses.asdict(step) for step in advice.order],
        "arithmetic": [dataclasses.asdict(section) for section in advice.sections],
        "cards": [_card_data(verdict) for verdict in cards],
        "missing": {name: _way(name, result.sheet, is_planned) for name in _missing(advice, cards)},
        **facts_data(result),
    }


def _way(name: str, sheet: FactSheet, is_planned: bool) -> str:
    """Say how a fact can be known or, where the model was planned on hardware for it, why that left it unknown."""
    fact = FACTS[name]
    if name in PROBED and is_planned:
        return f"run this on the machine without --hardware, or {_by_hand(name)}"
    if fact.source != "model" or not is_planned:
        return f"{how_to_know(fact)}{_or_no(name)}"
    if sheet.get("traceable") is False:
        why = "the model could not be traced"
    elif sharding_of(sheet) is None:
        why = "a plan is of one rank, and what the ranks share is not said (data_parallel, zero_stage)"
    elif sharding_of(sheet) != ("none", 1):
        why = "a plan is of one rank that shares with nobody, and this run shares its state"
    elif name in ("floor_bytes", "floor_fits"):
        why = "looked for only where the step does not fit"
    else:
        why = "planning the model on this hardware did not settle it"
    return f"{why}; {_by_hand(name)}"


def _by_hand(name: str) -> str:
    """Return the option that gives a fact: the general way ends in it."""
    return f"{how_to_know(FACTS[name]).rpartition(', or ')[2]}{_or_no(name)}"


def _or_no(name: str) -> str:
    """Return the other answer to a fact that is a question of yes or no; an example shows one of them."""
    fact = FACTS[name]
    return "" if fact.type != "boolean" else f" (or {str(not fact.example).lower()})"


def _findings(findings: Sequence[Found]) -> str:
    columns = [Column("finding"), Column("because"), Column("fix, in this order")]
    rows: list[tuple[str, str, str]] = []
    for found in findings:
        first, *others = found.fixes
        rows.append((found.finding, found.because, f"1. {first}"))
        rows += [(" ", " ", f"{number}. {fix}") for number, fix in enumerate(others, 2)]
    return f"what was found\n{render_table(columns, rows)}"


def _system_mechanisms(mechanisms: Sequence[SystemMechanism]) -> str:
    columns = [Column("mechanism"), Column("in this run"), Column("needs")]
    rows = [(each.name, each.state, each.needs or "nothing more") for each in mechanisms]
    return f"what the system that trains can offload\n{render_table(columns, rows)}"


def _cures(advice: Advice) -> Iterator[str]:
    """Yield what is enough by itself, then what is not; where a raised limit is enough already, so is nothing more."""
    enough = (
        "what would make it fit"
        if advice.conclusion == "refused"
        else "what would leave more room, without raising the limit"
    )
    lists = (
        (enough, advice.cures.enough),
        ("what lowers it, and is not enough alone", advice.cures.too_little),
    )
    for heading, items in lists:
        if items:
            yield f"{heading}\n" + "\n".join(f"  - {item}" for item in items)


def _steps(order: Sequence[Step]) -> Iterator[str]:
    for number, step in enumerate(order, 1):
        size = "" if step.num_bytes is None else f", {format_size_short(step.num_bytes)}"
        yield f"  {number}. {_MECHANISMS[step.mechanism]}{size}: {step.why}"
        yield f"     carried out by {step.carried_out_by}"


def _cards(cards: Sequence[CardVerdict]) -> str:
    columns = [Column("card"), Column("verdict"), Column("because")]
    rows: list[tuple[str, str, str]] = []
    for verdict in cards:
        reasons = list(verdict.reasons) or [
            f"it hangs on {', '.join(verdict.missing)}" if verdict.missing else ""
        ]
        rows.append((verdict.card.name, _WORDS[verdict.applies], reasons[0]))
        rows += [(" ", " ", reason) for reason in reasons[1:]]
        if verdict.applies:
            rows += [(" ", found.label, found.text) for found in verdict.interactions]
    return render_table(columns, rows)


def _card_data(verdict: CardVerdict) -> dict[str, Any]:
    return {
        "name": verdict.card.name,
        "title": verdict.card.title,
        "mechanism": verdict.card.mechanism,
        "applies": verdict.applies,
        "reasons": list(verdict.reasons),
        "interactions": [dataclasses.asdict(interaction) for interaction in verdict.interactions],
        "missing": list(verdict.missing),
        "conditions": [dataclasses.asdict(condition) for condition in verdict.conditions],
    }


def _missing(advice: Advice, cards: Sequence[CardVerdict], *, everything: bool = False) -> tuple[str, ...]:
    """Return the facts that something hangs on, those that settle most first.

    The conclusion's come first, then those of requirements, then those of cards: a fact counts for each condition that
    is open, in full where it is the only one that is missing there. A run that is to be diagnosed is asked for nothing
    that only a card hangs on which does not apply, unless ``everything`` is asked for.
    """
    if advice.findings and advice.findings[0].finding == FITS:
        return ()  # it is taken off, and nothing more has to be known
    if advice.conclusion in ("ask", "diagnose") and not everything:
        cards = [card for card in cards if card.applies is True]
    required = [name for card in cards for found in card.interactions for name in found.missing]
    weights: dict[str, float] = {}
    for card in cards:
        named = set(card.missing)
        for condition in card.conditions:
            for name in named.intersection(condition.missing):
                weights[name] = weights.get(name, 0.0) + 1 / len(condition.missing)
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return tuple(dict.fromkeys([*advice.missing, *required, *ranked]))
