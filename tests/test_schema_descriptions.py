"""Editors complete and explain from the schemas: each property of each of them says what it means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCHEMAS = sorted((Path(__file__).parents[1] / "offload_runtime/schemas").glob("*.schema.json"))


def properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each property of a schema, of whatever it holds too, with its name."""
    if isinstance(schema, dict):
        named = schema.get("properties", {})
        yield from named.items()
        for value in [*named.values(), *(value for key, value in schema.items() if key != "properties")]:
            yield from properties(value)
    elif isinstance(schema, list):
        for member in schema:
            yield from properties(member)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_every_property_is_described_in_a_sentence_of_its_own(path: Path) -> None:
    found = list(properties(json.loads(path.read_text("utf-8"))))
    assert len(found) > 5
    bare = [name for name, member in found if not str(member.get("description", "")).endswith(".")]
    assert bare == []
    repeated = [
        name for name, member in found if member["description"].lower().strip(".") == name.replace("_", " ")
    ]
    assert repeated == []
