"""The shipped skills rest on what they name: change one number, function or test, and the right card is named."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.card import Card, Expression, Figure, FileEvidence, SymbolEvidence
from offload_runtime.card_checks.anchors import named_tests
from offload_runtime.card_checks.numbers import ResultFiles, check_numbers
from offload_runtime.card_checks.symbols import Sources, split_reference
from offload_runtime.card_reading import read_card
from offload_runtime.findings import Findings
from offload_runtime.skills_catalog import list_skills, package_card
from offload_runtime.strict_yaml import read_yaml_file

ROOT = Path(__file__).parent.parent


def cards() -> Iterator[Card]:
    for skill in (package_card(), *list_skills()):
        card = read_card(read_yaml_file(skill.card, file=skill.file_label("card.yaml"))).card
        assert card is not None, f"{skill.card} has a shape that is not a card's"
        yield card


CARDS = tuple(cards())
FIGURES = [(card, figure, evidence) for card in CARDS for figure, evidence in card.figures()]
SYMBOLS = sorted(
    {
        claim.evidence.symbol
        for card in CARDS
        for claim in card.claims
        if isinstance(claim.evidence, SymbolEvidence)
    }
)
TESTS = sorted({test for card in CARDS for test, _ in named_tests(card)})


class ChangedFiles(ResultFiles):
    """The result files, with other numbers where a pointer leads in one of them."""

    def __init__(self, file: str, pointers: tuple[str, ...]) -> None:
        super().__init__(ROOT)
        self.file, self.pointers = file, pointers

    def read(self, file: str) -> Any:
        data = copy.deepcopy(super().read(file))
        for pointer in self.pointers if file == self.file else ():
            *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
            holder = data
            for part in parents:
                holder = holder[int(part) if isinstance(holder, list) else part]
            key = int(last) if isinstance(holder, list) else last
            holder[key] = changed(holder[key])
        return data


def changed(value: Any) -> Any:
    """Another number, or a list of one more that are all other numbers."""
    if isinstance(value, dict):
        return {**value, "one more": 1}
    if isinstance(value, list):
        return [*map(changed, value), 1e9] if all(isinstance(v, int | float) for v in value) else [*value, 1]
    return value * 3 + 1e7


def expressions(evidence: FileEvidence) -> list[Expression]:
    """What a figure rests on; of two pointers the first, since changing both may leave their ratio."""
    named = [evidence.value, evidence.num_samples, evidence.min, evidence.max]
    return [expression for expression in named if expression is not None]


@pytest.mark.parametrize(
    ("card", "figure", "evidence"), FIGURES, ids=[f"{card.name}-{f.span.line}" for card, f, _ in FIGURES]
)
def test_no_number_of_a_card_outlives_its_result(card: Card, figure: Figure, evidence: FileEvidence) -> None:
    for expression in expressions(evidence):
        findings = Findings()
        check_numbers(card, ChangedFiles(evidence.file, expression.pointers[:1]), findings)
        places = [(d.code, d.file, d.line) for d in findings.diagnostics]
        assert ("CRD203", figure.span.file, figure.span.line) in places


@pytest.mark.parametrize("reference", [*SYMBOLS, *TESTS])
def test_what_a_card_names_is_missed_when_it_is_renamed(reference: str, tmp_path: Path) -> None:
    file, name = split_reference(reference)
    last = name.rpartition(".")[2]
    text = (ROOT / file).read_text("utf-8")
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert Sources(tmp_path).problem(reference) is None
    path.write_text(re.sub(rf"\b{last}\b", f"{last}_renamed", text))
    assert Sources(tmp_path).problem(reference) == f"{file} has no {name}"


def test_the_skills_name_symbols_tests_and_numbers_at_all() -> None:
    assert min(len(FIGURES), len(SYMBOLS), len(TESTS)) > 10
