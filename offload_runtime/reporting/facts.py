"""Facts as text and as data: the table of all, and what is known of one machine, model and run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from offload_runtime.fact_sheet import FactsResult, format_fact
from offload_runtime.facts import SOURCES, Fact
from offload_runtime.reporting.tables import Column, render_table

__all__ = ["FACT_COLUMNS", "fact_cells", "fact_entry", "facts_data", "render_facts"]

FACT_COLUMNS = (Column("fact"), Column("known by"), Column("values"), Column("example"), Column("summary"))
_TITLES: Mapping[str, str] = {
    "machine": "machine",
    "model": "model, on one rank",
    "configuration": "configuration of the run",
    "measurement": "measurements",
}


def fact_entry(fact: Fact) -> dict[str, Any]:
    """Return a row of the table as data."""
    entry = dataclasses.asdict(fact)
    entry["choices"] = list(fact.choices)
    return entry


def fact_cells(fact: Fact) -> tuple[str, ...]:
    """Return a row of the table for people, under `FACT_COLUMNS`."""
    return (fact.name, fact.source, _values(fact), _example(fact), _summary(fact))


def facts_data(result: FactsResult) -> dict[str, Any]:
    """Return the facts as data; values are in the units of the table, sizes in bytes."""
    return {
        "facts": {
            known.name: {"value": known.value, "unit": known.fact.unit, "origin": known.origin}
            for known in result.sheet.known
        },
        "unknown": [fact.name for fact in result.sheet.unknown],
        "estimate": None if result.estimate is None else dataclasses.asdict(result.estimate),
    }


def render_facts(result: FactsResult) -> str:
    """Write what is known, by who knows it, and then the names of what is not."""
    parts = []
    columns = [Column("fact"), Column("value", "right"), Column("from"), Column("meaning")]
    for source in SOURCES:
        rows = [
            (known.name, format_fact(known.fact, known.value), known.origin, known.fact.summary)
            for known in result.sheet.known
            if known.fact.source == source
        ]
        if rows:
            parts.append(f"{_TITLES[source]}\n{render_table(columns, rows)}")
    for source in SOURCES:
        names = [fact.name for fact in result.sheet.unknown if fact.source == source]
        if names:
            parts.append(f"unknown, {_TITLES[source]}: {', '.join(names)}")
    return "\n\n".join(parts)


def _values(fact: Fact) -> str:
    if fact.choices:
        return "|".join(fact.choices) if len(fact.choices) <= 3 else "one of a list"
    if fact.unit is None:
        return {"boolean": "true|false", "integer": "count"}.get(fact.type, fact.type)
    return fact.unit


def _example(fact: Fact) -> str:
    return str(fact.example).lower() if isinstance(fact.example, bool) else str(fact.example)


def _summary(fact: Fact) -> str:
    listed = f" {', '.join(fact.choices)}." if len(fact.choices) > 3 else ""
    return fact.summary + listed
