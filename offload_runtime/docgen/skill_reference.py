"""The skill cards, laid out for readers: conditions in words and as they are evaluated, figures, evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offload_runtime.card import (
    Assumption,
    Card,
    Condition,
    Evidence,
    Expression,
    FailureMode,
    Figure,
    FileEvidence,
    SourceEvidence,
    SymbolEvidence,
)
from offload_runtime.predicate_text import predicate_text

__all__ = ["SkillReference", "describe_evidence", "describe_figure", "read_skills"]

_OPERATIONS = {
    "pointer": "{0}",
    "ratio": "{0} / {1}",
    "difference": "{0} - {1}",
    "reduction": "1 - {0} / {1}",
}


@dataclass(frozen=True)
class SkillReference:
    """One card for its page. ``folder`` is that of the skill, None for the card of the package itself.

    ``conditions`` are groups of (title, [(words, predicate or empty)]); ``results``, ``claims`` and ``failures`` are
    rows of tables.
    """

    card: Card
    file: str
    folder: str | None
    conditions: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    results: tuple[tuple[str, str, str], ...]
    claims: tuple[tuple[str, str, str], ...]
    failures: tuple[tuple[str, str, str, str, str], ...]


def read_skills(cards: Mapping[str, Card]) -> tuple[SkillReference, ...]:
    """Lay out the cards (file from the root -> card)."""
    return tuple(_reference(file, card) for file, card in cards.items())


def _reference(file: str, card: Card) -> SkillReference:
    folder = file.rpartition("/")[0]
    return SkillReference(
        card=card,
        file=file,
        folder=folder or None,
        conditions=tuple(_groups(card)),
        results=tuple(
            (result.text, describe_figure(result.figure), describe_evidence(result.evidence))
            for result in card.measured_results
        ),
        claims=tuple(
            (claim.text, claim.status.replace("_", " "), describe_evidence(claim.evidence))
            for claim in card.claims
        ),
        failures=tuple(_failure(mode) for mode in card.failure_modes),
    )


def _groups(card: Card) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    groups = {
        "Applies to": card.applies_to,
        "Use it when": card.enable_when,
        "Leave it when": card.avoid_when,
        "Needs": card.interactions.required,
        "Goes together with": card.interactions.permitted,
        "Depends on": card.interactions.conditional,
        "Excludes": card.interactions.incompatible,
    }
    for title, conditions in groups.items():
        if conditions:
            yield title, tuple(map(_condition, conditions))


def _condition(condition: Condition) -> tuple[str, str]:
    if condition.when is None:
        return condition.text, ""
    given = "" if condition.given is None else f"given {predicate_text(condition.given)}: "
    return condition.text, given + predicate_text(condition.when)


def _failure(mode: FailureMode) -> tuple[str, str, str, str, str]:
    known = f"test `{mode.test.rpartition('::')[2]}`" if mode.test else mode.source or ""
    return mode.error, mode.cause, mode.confirm, mode.fix, known


def describe_figure(figure: Figure) -> str:
    """Write a number with its unit, how often it was measured, and the range."""
    text = f"{figure.value:.15g} {figure.unit}"
    known = [f"n = {figure.num_samples}"] if figure.num_samples is not None else []
    if figure.spread is not None:
        known.append(f"{figure.spread.min:.15g} to {figure.spread.max:.15g}")
    return f"{text} ({', '.join(known)})" if known else text


def describe_evidence(evidence: Evidence) -> str:
    """Say how something is known: by which file and arithmetic, code and test, source, or why it is assumed."""
    match evidence:
        case FileEvidence():
            scale = "" if evidence.scale == 1 else f", × {evidence.scale:.6g}"
            return f"[{evidence.file.rpartition('/')[2]}](../../{evidence.file}): {_arithmetic(evidence.value)}{scale}"
        case SymbolEvidence():
            return f"`{evidence.symbol}`, held by `{evidence.test}`"
        case SourceEvidence():
            return evidence.source
        case Assumption():
            return f"not checked: {evidence.reason}"


def _arithmetic(expression: Expression) -> str:
    pointers = [f"`{pointer}`" for pointer in expression.pointers]
    form = _OPERATIONS.get(expression.operation, f"{expression.operation} of {{0}}")
    return form.format(*pointers)
