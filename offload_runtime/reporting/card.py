"""A skill card as Markdown, for people and agents; the data that programs read is the card itself."""

from __future__ import annotations

from collections.abc import Iterator

from offload_runtime.card import Card, Condition
from offload_runtime.predicate_text import predicate_text

__all__ = ["render_card"]


def render_card(card: Card) -> str:
    """Return the card as Markdown: what it is for, when to use it and when not, failures, limits, and what follows."""
    sections = {
        "Applies to": _conditions(card.applies_to),
        "Enable when": _conditions(card.enable_when),
        "Avoid when": _conditions(card.avoid_when),
        **{
            f"Interactions: {kind}": _conditions(getattr(card.interactions, kind))
            for kind in ("required", "permitted", "conditional", "incompatible")
        },
        "Effects": [
            f"**{name}**: {found.effect} ({found.confidence} confidence). {found.rationale}"
            for name, found in card.training_dimensions.items()
        ],
        "Measured results": [
            f"{result.text} **{result.figure.value:g} {result.figure.unit}**"
            for result in card.measured_results
        ],
        "Failure modes": [f"`{mode.error}` {mode.cause} Fix: {mode.fix}" for mode in card.failure_modes],
        "Known limitations": card.known_limitations,
        "Follow up": [
            found.text if found.command is None else f"{found.text} `{found.command}`"
            for found in card.follow_up_validation
        ],
    }
    parts = [f"# {card.title}", card.summary]
    if card.next_command is not None:
        parts.append(f"Start with `{card.next_command}`.")
    parts += [
        "\n".join((f"## {title}", "", *(f"- {line}" for line in lines)))
        for title, lines in sections.items()
        if lines
    ]
    return "\n\n".join(parts)


def _conditions(conditions: tuple[Condition, ...]) -> list[str]:
    return list(_lines(conditions))


def _lines(conditions: tuple[Condition, ...]) -> Iterator[str]:
    for condition in conditions:
        facts = "" if condition.when is None else f" ({predicate_text(condition.when)})"
        yield f"{condition.text}{facts}"
