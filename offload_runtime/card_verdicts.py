"""Skill cards against facts: which apply, which do not, and on which unknown facts the rest hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offload_runtime.card import Card, Condition
from offload_runtime.predicates import Scalar, comparisons, evaluate

__all__ = ["CardVerdict", "ConditionVerdict", "judge_card"]

Part = Literal["applies_to", "enable_when", "avoid_when", "required", "conditional", "incompatible"]


@dataclass(frozen=True, slots=True)
class ConditionVerdict:
    """Whether one condition holds; None where that hangs on the facts ``missing``, or no fact can say it.

    ``has_predicate`` is False for a condition in words alone, which is for the reader to judge.
    """

    part: Part
    text: str
    holds: bool | None
    missing: tuple[str, ...]
    has_predicate: bool


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card applies: True, False, or None where that hangs on the facts ``missing``."""

    card: Card
    applies: bool | None
    conditions: tuple[ConditionVerdict, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that would settle it, sorted; none where it is settled."""
        if self.applies is not None:
            return ()
        open_parts = ("applies_to", "enable_when", "avoid_when")
        return tuple(sorted({name for c in self.conditions if c.part in open_parts for name in c.missing}))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Texts of the conditions that decided."""
        if self.applies is None:
            return ()
        if self.applies:
            return self._texts("enable_when", True)
        avoided = self._texts("avoid_when", True)
        elsewhere = self._texts("applies_to", False)
        return avoided or elsewhere or tuple(f"not so: {text}" for text in self._texts("enable_when", False))

    @property
    def cautions(self) -> tuple[str, ...]:
        """Texts of what to mind that holds here: conditional and incompatible settings."""
        return self._texts("incompatible", True) + self._texts("conditional", True)

    def _texts(self, part: Part, holds: bool) -> tuple[str, ...]:
        return tuple(c.text for c in self.conditions if c.part == part and c.holds is holds)


def judge_card(card: Card, facts: Mapping[str, Scalar]) -> CardVerdict:
    """Evaluate every condition of ``card`` on ``facts``.

    A card applies where one of enable_when holds and nothing of avoid_when; it does not where something of avoid_when
    holds, nothing of enable_when can, or it is for something else. Between the two it hangs on facts.
    """
    listed: tuple[tuple[Part, tuple[Condition, ...]], ...] = (
        ("applies_to", card.applies_to),
        ("enable_when", card.enable_when),
        ("avoid_when", card.avoid_when),
        ("required", card.interactions.required),
        ("conditional", card.interactions.conditional),
        ("incompatible", card.interactions.incompatible),
    )
    verdicts = tuple(_judge(part, condition, facts) for part, members in listed for condition in members)
    return CardVerdict(card, _applies(verdicts), verdicts)


def _applies(verdicts: tuple[ConditionVerdict, ...]) -> bool | None:
    def found(part: Part) -> list[bool | None]:
        return [verdict.holds for verdict in verdicts if verdict.part == part and verdict.has_predicate]

    enabled = found("enable_when")
    if True in found("avoid_when") or False in found("applies_to"):
        return False
    if True in enabled:
        return True
    return False if enabled and None not in enabled else None


def _judge(part: Part, condition: Condition, facts: Mapping[str, Scalar]) -> ConditionVerdict:
    predicate = condition.when
    if predicate is None:
        return ConditionVerdict(part, condition.text, None, (), has_predicate=False)
    holds = evaluate(predicate, facts)
    named = dict.fromkeys(comparison.fact for comparison in comparisons(predicate))
    missing = tuple(name for name in named if name not in facts) if holds is None else ()
    return ConditionVerdict(part, condition.text, holds, missing, has_predicate=True)
