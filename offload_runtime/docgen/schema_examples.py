"""An example of each key, taken from files that are valid: shipped policies, profiles, cards, and the tests' examples.

Nothing is made up, so no example can be wrong: the files are checked by the test suite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offload_runtime.docgen.schema_reference import Schema, SchemaReader, child

__all__ = ["Examples", "collect_examples"]

Examples = Mapping[tuple[str, str], str]
"""Title of a section and key -> an example, as YAML in one line."""

LONGEST = 90  # characters; longer ones explain nothing that the key's own section does not


def collect_examples(schema: Schema, documents: Sequence[Any]) -> Examples:
    """Return for each key the first example in ``documents`` that is short."""
    reader = SchemaReader(schema)
    found: dict[tuple[str, str], str] = {}
    for document in documents:
        for place, value in _walk(reader, "", schema, document):
            text = flow(value.strip() if isinstance(value, str) else value)
            if len(text) <= LONGEST:
                found.setdefault(place, text)
    return found


def _walk(
    reader: SchemaReader, title: str, schema: Schema, value: Any
) -> Iterator[tuple[tuple[str, str], Any]]:
    if not isinstance(value, Mapping):
        return
    known = {key: members for key, members, _ in reader.members(schema)}
    for key, member in value.items():
        if key not in known:
            continue
        yield (title, key), member
        inner = next(filter(None, (reader.mapping_of(child(title, key), m) for m in known[key])), None)
        if inner is None:
            continue
        listed = member if isinstance(member, list) else [member]
        for item in listed:
            yield from _walk(reader, *inner, item)
            if isinstance(item, Mapping) and inner[0].endswith(".NAME"):
                for named in item.values():
                    yield from _walk(reader, *inner, named)


def flow(value: Any) -> str:
    """Write ``value`` as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(member) for member in value) + "]"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    """Tell whether ``text`` needs no quotes in any reader of YAML, inside brackets too."""
    first, rest = text[:1], text[1:]
    if not (first.isalpha() or (first.isdigit() and any(mark.isalpha() for mark in rest))):
        return False
    words = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    return text.lower() not in words and all(mark.isalnum() or mark in " _.-/" for mark in rest)
