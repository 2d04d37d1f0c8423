"""The table of facts: whole, and consistent with itself and with what else names the same things."""

from __future__ import annotations

import pytest

from offload_runtime.fact_values import parse_fact, wrong_value
from offload_runtime.facts import BYTES, FACTS, SHARE, SOURCES, Fact
from offload_runtime.hardware import HardwareProfile, list_hardware
from offload_runtime.models.catalog import DTYPES, OPTIMIZERS, algorithm_of
from offload_runtime.training_state import NUM_MOMENTS

EVERY_FACT = pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.name)


@EVERY_FACT
def test_every_fact_says_what_it_is(fact: Fact) -> None:
    assert fact.source in SOURCES
    assert fact.summary.endswith(".")
    assert fact.unit is None or fact.type in ("integer", "number")
    assert not fact.choices or fact.type == "text"
    assert fact.has_order is (fact.type in ("integer", "number"))
    assert fact.name.endswith("_bytes") is (fact.unit == BYTES)
    assert fact.unit != SHARE or fact.type == "number"


@EVERY_FACT
def test_the_example_of_a_fact_can_be_given_for_it(fact: Fact) -> None:
    assert wrong_value(fact, fact.example) is None
    written = str(fact.example).lower() if isinstance(fact.example, bool) else str(fact.example)
    name, value = parse_fact(f"{fact.name}={written}")
    assert (name, wrong_value(fact, value)) == (fact.name, None)
    assert isinstance(value, {"text": str, "boolean": bool}.get(fact.type, int | float))


@pytest.mark.parametrize("profile", list_hardware(), ids=lambda profile: profile.name)
def test_the_name_of_every_profile_can_be_the_fact_hardware(profile: HardwareProfile) -> None:
    assert wrong_value(FACTS["hardware"], profile.name) is None


def test_words_of_facts_are_those_of_models_and_of_the_arithmetic() -> None:
    assert set(FACTS["dtype"].choices) == set(DTYPES)
    assert set(map(algorithm_of, OPTIMIZERS)) | set(NUM_MOMENTS) == set(FACTS["optimizer"].choices) - {
        "other"
    }
