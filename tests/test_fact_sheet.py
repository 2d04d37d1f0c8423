"""A sheet of facts keeps the order of the table, prefers what came first, and is read back from its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offload_runtime.errors import OffloadError
from offload_runtime.fact_sheet import FactSheet, FactsResult, format_fact, how_to_know, read_fact_file
from offload_runtime.facts import FACTS
from offload_runtime.reporting.facts import facts_data

SHEET = FactSheet().with_facts({"num_layers": 32, "gpu_total_bytes": "80GB", "is_moe": False}, "given")


def test_facts_stand_in_the_order_of_the_table_and_sizes_are_bytes() -> None:
    assert [fact.name for fact in SHEET.known] == ["gpu_total_bytes", "num_layers", "is_moe"]
    assert SHEET.size("gpu_total_bytes") == 80_000_000_000
    assert SHEET.number("is_moe") is None
    assert SHEET.get("fits") is None
    assert {fact.name for fact in SHEET.unknown} == set(FACTS) - {"gpu_total_bytes", "num_layers", "is_moe"}
    with pytest.raises(KeyError):
        SHEET.get("moon")


def test_what_is_known_is_replaced_from_above_and_kept_from_beneath() -> None:
    above, beneath = ({"num_layers": 1, "num_gpus": 8}, "elsewhere")
    assert SHEET.with_facts(above, beneath).values["num_layers"] == 1
    kept = SHEET.beneath(above, beneath)
    assert (kept.values["num_layers"], kept.origin("num_layers")) == (32, "given")
    assert (kept.values["num_gpus"], kept.origin("num_gpus")) == (8, "elsewhere")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpu_total_bytes", 80 << 30, "80 GiB"),
        ("trainable_fraction", 0.0017, "0.0017 (0.170%)"),
        ("trainable_fraction", 1.0, "1"),
        ("fits", False, "no"),
        ("num_parameters", 8_030_261_248, "8,030,261,248"),
        ("step_ms", 702.25, "702.2 ms"),
        ("framework", "fsdp2", "fsdp2"),
    ],
)
def test_values_are_written_for_people(name: str, value: float, text: str) -> None:
    assert format_fact(FACTS[name], value) == text


@pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.name)
def test_how_a_fact_can_be_given_is_said_with_a_value_it_can_have(fact: object) -> None:
    from offload_runtime.fact_values import parse_fact
    from offload_runtime.facts import Fact

    assert isinstance(fact, Fact)
    assert parse_fact(how_to_know(fact).rpartition("--fact ")[2])[0] == fact.name


def test_what_is_printed_as_json_is_read_back(tmp_path: Path) -> None:
    data = facts_data(FactsResult(SHEET))
    for number, content in enumerate(({"data": data}, data, SHEET.values)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(content))
        assert read_fact_file(path) == SHEET.values


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        ("kind: Policy", "ADV901", "no JSON"),
        ("[1, 2]", "ADV901", "no mapping"),
        ('{"num_gpus": null}', "ADV901", "num_gpus"),
        ('{"num_gpus": [8]}', "ADV901", "num_gpus"),
        ("[" * 100_000, "ADV901", "no JSON"),
        (" " * (16 << 20) + "{}", "ADV901", "larger than 16 MiB"),
        ('{"num_gpu": 8}', "ADV902", "did you mean num_gpus"),
        ('{"num_gpus": "many", "gpus": 1}', "ADV902", "a whole number"),
    ],
)
def test_a_file_that_holds_no_facts_is_refused(tmp_path: Path, content: str, code: str, word: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(content)
    with pytest.raises(OffloadError) as raised:
        read_fact_file(path)
    assert {diagnostic.code for diagnostic in raised.value.diagnostics} == {code}
    assert word in str(raised.value)
    assert all(diagnostic.hint for diagnostic in raised.value.diagnostics)


def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(OffloadError, match="ADV901"):
        read_fact_file(tmp_path / "none.json")
