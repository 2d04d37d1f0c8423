"""Skill cards against facts: which apply, which do not, and on which unknown facts the rest hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offload_runtime.card import Card, Condition
from offload_runtime.predicates import Scalar, comparisons, evaluate

__all__ = ["CardVerdict", "ConditionVerdict", "Interaction", "InteractionLabel", "judge_card"]

Part = Literal[
    "applies_to", "enable_when", "avoid_when", "required", "permitted", "conditional", "incompatible"
]
InteractionLabel = Literal["required (missing)", "required (unknown)", "refused", "mind", "allowed"]


@dataclass(frozen=True, slots=True)
class ConditionVerdict:
    """Whether one condition holds; None where that hangs on the facts ``missing``, or no fact can say it.

    ``has_predicate`` is False for a condition in words alone, which is for the reader to judge. ``is_asked`` tells
    whether the run is one that an interaction is about (its ``given``); None where that is not known.
    """

    part: Part
    text: str
    holds: bool | None
    missing: tuple[str, ...]
    has_predicate: bool
    is_asked: bool | None = True
    has_given: bool = False


@dataclass(frozen=True, slots=True)
class Interaction:
    """How a mechanism goes together with a setting of this run; ``missing`` are facts that would settle it."""

    label: InteractionLabel
    text: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card applies: True, False, or None where that hangs on the facts ``missing``."""

    card: Card
    applies: bool | None
    conditions: tuple[ConditionVerdict, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that would settle it, sorted; none where it is settled.

        Where it is not known whether the run is one that the card is for, that comes first and alone.
        """
        if self.applies is not None:
            return ()
        gate = {name for c in self.conditions if c.part == "applies_to" for name in c.missing}
        open_parts = ("enable_when", "avoid_when")
        return tuple(
            sorted(gate or {name for c in self.conditions if c.part in open_parts for name in c.missing})
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Texts of the conditions that decided."""
        if self.applies is None:
            return ()
        if self.applies:
            return self._texts("enable_when", True)
        avoided = self._texts("avoid_when", True)
        elsewhere = tuple(f"it is for: {text}" for text in self._texts("applies_to", False))
        return avoided or elsewhere or tuple(f"not so: {text}" for text in self._texts("enable_when", False))

    @property
    def interactions(self) -> tuple[Interaction, ...]:
        """What goes, does not go or has to go together with the settings of this run, the gravest first."""
        asked = [c for c in self.conditions if c.has_predicate and c.is_asked is True]
        required = [c for c in asked if c.part == "required"]
        return (
            *(Interaction("required (missing)", c.text) for c in required if c.holds is False),
            *(
                Interaction("required (unknown)", c.text, c.missing)
                for c in required
                if c.holds is None and c.has_given
            ),
            *(Interaction("refused", text) for text in self._texts("incompatible", True)),
            *(Interaction("mind", text) for text in self._texts("conditional", True)),
            *(Interaction("allowed", text) for text in self._texts("permitted", True)),
        )

    def _texts(self, part: Part, holds: bool) -> tuple[str, ...]:
        return tuple(c.text for c in self.conditions if c.part == part and c.holds is holds and c.is_asked)


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
        ("permitted", card.interactions.permitted),
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
    is_asked = True if condition.given is None else evaluate(condition.given, facts)
    named = dict.fromkeys(comparison.fact for comparison in comparisons(predicate))
    missing = tuple(name for name in named if name not in facts) if holds is None else ()
    has_given = condition.given is not None
    return ConditionVerdict(part, condition.text, holds, missing, True, is_asked, has_given)
