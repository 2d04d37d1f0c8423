"""A card is read whole, and what is wrong with it by itself is found at its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offload_runtime.card import (
    Assumption,
    Card,
    Expression,
    FileEvidence,
    SourceEvidence,
    Spread,
    SymbolEvidence,
)
from offload_runtime.card_reading import load_card, read_card
from offload_runtime.document import document_from_data
from offload_runtime.errors import PolicyError, UnreadableError
from offload_runtime.predicates import comparisons
from offload_runtime.shape import load_schema
from offload_runtime.strict_yaml import read_yaml_file

EXAMPLE = Path(__file__).parent / "examples/positive/card-of-every-kind.yaml"


def data() -> Any:
    return read_yaml_file(EXAMPLE).data


def findings(source: Any) -> list[tuple[str, str | None]]:
    return [(d.code, d.path) for d in read_card(document_from_data(source)).diagnostics]


@pytest.fixture(scope="module")
def card() -> Card:
    return load_card(EXAMPLE)


def test_a_card_is_read_whole(card: Card) -> None:
    assert (card.name, card.mechanism) == ("offload-something", "activations")
    assert [path for path, _ in card.conditions()] == [
        "applies_to",
        "applies_to",
        "enable_when",
        "avoid_when",
        "interactions.required",
        "interactions.conditional",
        "interactions.incompatible",
    ]
    assert list(card.training_dimensions) == ["speed", "memory", "scale", "convergence", "stability"]
    assert [mode.code for mode in card.failure_modes] == ["RUN503", None]
    assert [follow_up.command is None for follow_up in card.follow_up_validation] == [False, True]
    kinds = [type(claim.evidence) for claim in card.claims]
    assert kinds == [FileEvidence, SymbolEvidence, SourceEvidence, Assumption]


def test_a_number_of_ours_says_how_it_follows_from_its_file(card: Card) -> None:
    first, second, third = card.measured_results
    assert first.evidence == FileEvidence(
        file="docs/evidence/llama3-8b-inductor-h200.json",
        value=Expression("pointer", ("/ratio",)),
        num_samples=Expression("count", ("/ratio_by_round",)),
        min=Expression("min", ("/ratio_by_round",)),
        max=Expression("max", ("/ratio_by_round",)),
    )
    assert (first.figure.num_samples, first.figure.spread) == (4, Spread(1.0056, 1.0131))
    assert isinstance(second.evidence, FileEvidence)
    assert (second.evidence.value.operation, second.evidence.scale) == ("ratio", 100)
    assert third.evidence == SourceEvidence("Megatron-Bridge, skill card at 067f987")
    assert third.figure.num_samples is None


def test_a_condition_keeps_its_predicate_and_its_examples(card: Card) -> None:
    (condition,) = card.enable_when
    assert condition.when is not None
    assert [c.fact for c in comparisons(condition.when)] == ["fits", "activation_bytes", "trainable_fraction"]
    assert condition.holds == {"fits": False, "activation_bytes": "12GiB"}
    assert condition.fails == {"fits": True}
    assert condition.span.line == 16


def test_equal_cards_are_equal_wherever_they_were_read(card: Card) -> None:
    assert load_card(data()) == card


def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        load_card(tmp_path / "card.yaml")


def test_every_error_is_gathered_before_loading_stops() -> None:
    changed = data()
    changed["failure_modes"][0]["code"] = "RUN999"
    changed["avoid_when"][0]["holds"] = {"fits": False}
    with pytest.raises(PolicyError) as caught:
        load_card(changed)
    assert sorted(d.code for d in caught.value.diagnostics) == ["CRD101", "CRD104"]


@pytest.mark.parametrize("missing", ["min", "max"])
def test_a_spread_needs_both_ends_in_the_result_file(missing: str) -> None:
    changed = data()
    del changed["measured_results"][0]["evidence"][missing]
    assert [code for code, _ in findings(changed)] == ["CRD102"]


def test_a_share_written_as_a_percentage_cannot_be_compared() -> None:
    changed = data()
    changed["enable_when"][0]["fails"] = {"fits": False, "activation_bytes": 0, "trainable_fraction": "50%"}
    assert findings(changed) == [("CRD101", "enable_when.fails")]


@pytest.mark.parametrize(
    ("key", "change", "expected"),
    [
        ("claims", {"status": "proven"}, "POL102"),
        ("claims", {"evidence": {"reason": "so it is"}}, "POL101"),
        ("measured_results", {"evidence": {"file": "docs/evidence/../x.json", "value": "/a"}}, "POL108"),
        ("measured_results", {"evidence": {"file": "docs/evidence/x.json", "value": "a"}}, "POL102"),
        ("failure_modes", {"test": "tests/test_units.py"}, "POL108"),
        ("follow_up_validation", {"command": "rm -rf x"}, "POL108"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(key: str, change: dict[str, Any], expected: str) -> None:
    changed = data()
    changed[key][0].update(change)
    assert {code for code, _ in findings(changed)} >= {expected}


def test_conditions_are_written_as_in_a_policy() -> None:
    card, policy = load_schema("card")["definitions"], load_schema("policy")["definitions"]
    for name in ("predicate", "predicates", "factValue", "factOrder", "size"):
        assert card[name] == policy[name]
