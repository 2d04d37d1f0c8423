"""The decision table of a skill, written from the conditions of the cards beside it.

It stands in SKILL.md between two marks, and is never edited by hand::

    <!-- generated: decision-table -->

    | condition | facts | decision |
    ...
    <!-- end -->
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from offload_runtime.card import CARD_FILE, Card, Condition
from offload_runtime.card_reading import read_card
from offload_runtime.errors import Span, UnreadableError
from offload_runtime.findings import Findings
from offload_runtime.predicate_text import predicate_text
from offload_runtime.predicates import Predicate
from offload_runtime.strict_yaml import read_yaml_file

__all__ = ["DECISION_TABLE", "check_decision_table", "decision_table", "with_decision_table"]

DECISION_TABLE, _END = "<!-- generated: decision-table -->\n", "<!-- end -->"
_HEAD = "| condition | facts | decision |\n|---|---|---|\n"


def decision_table(cards: Iterable[Card], reader: str) -> str:
    """Return the table of every card but that of ``reader``, the skill it stands in: first what speaks for a skill.

    Conditions that say the same of several skills share a row; those without a predicate have none.
    """
    others = [card for card in sorted(cards, key=lambda card: card.name) if card.name != reader]
    enable = [(card.name, condition) for card in others for condition in card.enable_when]
    avoid = [(card.name, condition) for card in others for condition in card.avoid_when]
    return _HEAD + "".join([*_rows(enable, "use"), *_rows(avoid, "not")])


def _rows(conditions: Iterable[tuple[str, Condition]], verb: str) -> Iterator[str]:
    rows: dict[Predicate, tuple[str, list[str]]] = {}
    for name, condition in conditions:
        if condition.when is not None:
            rows.setdefault(condition.when, (condition.text, []))[1].append(name)
    for predicate, (text, names) in rows.items():
        yield f"| {text} | {predicate_text(predicate)} | {verb} {', '.join(names)} |\n"


def with_decision_table(text: str, cards: Iterable[Card], reader: str) -> str:
    """Return the text of a SKILL.md with the table between its marks as it should be; as it is without marks."""
    before, begin, rest = text.partition(DECISION_TABLE)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}\n{decision_table(cards, reader)}\n{end}{after}" if begin and end else text


def check_decision_table(folder: Path, label: str, findings: Findings) -> None:
    """Find a table in ``folder``/SKILL.md, which findings call ``label``, that the cards beside it do not give."""
    file = folder / "SKILL.md"
    text = file.read_text("utf-8") if file.is_file() else ""
    if DECISION_TABLE not in text or text == with_decision_table(text, _cards_beside(folder), folder.name):
        return
    line = text[: text.index(DECISION_TABLE)].count("\n") + 1
    message = "the decision table is not what the cards say"
    findings.add(Span(label, line, 1), "CRD404", message, "run `offload docs build`, which writes it")


def _cards_beside(folder: Path) -> Iterator[Card]:
    """Yield the cards of the skills in the same place; one that cannot be read has findings of its own."""
    for path in sorted(folder.resolve().parent.glob(f"*/{CARD_FILE}")):
        try:
            card = read_card(read_yaml_file(path)).card
        except UnreadableError:
            continue
        if card is not None:
            yield card
