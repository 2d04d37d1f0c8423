"""Check a document against a JSON Schema (draft-07), with findings that point at the value and say what fits.

This walks the subset of draft-07 that the project's schemas use (``SUPPORTED_KEYWORDS``; a test holds them to
it and to what ``jsonschema`` accepts). It is here for its messages and its speed: importing ``jsonschema``
alone would take a good part of the half second that ``offload validate`` has.

Three annotations steer the messages: ``x-code`` (the code of a failure here), ``x-expected`` (what fits, in
words) and ``x-hint`` (the name of a function that looks at the value and suggests a cure).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from offload_runtime.document import InvalidNode, ListNode, MapNode, Node, ScalarNode, child_path
from offload_runtime.errors import Diagnostic

Schema = Mapping[str, Any]
Hint = Callable[[Any], str | None]

SCHEMA_DIRECTORY = Path(__file__).parent / "schemas"
ANNOTATIONS = frozenset(
    {"$schema", "$id", "title", "description", "definitions", "x-code", "x-expected", "x-hint"}
)
SUPPORTED_KEYWORDS = ANNOTATIONS | {
    "$ref",
    "type",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minimum",
    "maximum",
    "pattern",
    "minLength",
    "maxLength",
}

_TYPE_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One mismatch; ``path`` is that of the value that cannot be used, None where the value still can."""

    diagnostic: Diagnostic
    path: str | None


@lru_cache(maxsize=8)
def load_schema(name: str) -> Schema:
    """Return the project's schema ``name``, such as ``policy``."""
    schema: Schema = json.loads((SCHEMA_DIRECTORY / f"{name}.schema.json").read_text("utf-8"))
    return schema


def check_shape(
    root: Node, schema: Schema, hints: Mapping[str, Hint] | None = None
) -> tuple[Node, tuple[Diagnostic, ...]]:
    """Compare ``root`` with ``schema``.

    Returns what is left when the values that failed are made invalid and unknown keys are dropped, so that
    later checks can go on with the rest, and the findings.
    """
    failures = _Checker(schema, hints or {}).check(root, schema)
    broken = {failure.path for failure in failures if failure.path is not None}
    return _pruned(root, broken), tuple(failure.diagnostic for failure in failures)


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """Return a hint that names the closest of ``choices``, None when none is close."""
    import difflib  # only where something is wrong: it takes its time to import

    by_lowered = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lowered, n=1, cutoff=0.6)
    return f"did you mean {by_lowered[close[0]]}?" if close else None


class _Checker:
    def __init__(self, schema: Schema, hints: Mapping[str, Hint]) -> None:
        self.definitions: Mapping[str, Schema] = schema.get("definitions", {})
        self.hints = hints

    def check(self, node: Node, schema: Schema) -> list[Failure]:
        schema = self._resolved(schema)
        if isinstance(node, InvalidNode):
            return []
        if "type" in schema and not _has_type(node, schema["type"]):
            return [self._type_failure(node, schema)]
        failures = [failure for member in schema.get("allOf", ()) for failure in self.check(node, member)]
        if "anyOf" in schema:
            failures += self._any_of(node, schema)
        if isinstance(node, ScalarNode):
            return failures + self._scalar(node, schema)
        if "enum" in schema or "const" in schema:
            return [*failures, self._expected(node, schema, "POL102", self._choices(schema))]
        if isinstance(node, ListNode):
            return failures + self._list(node, schema)
        return failures + self._mapping(node, schema)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self.definitions[schema["$ref"].removeprefix("#/definitions/")]
        return schema

    # Alternatives

    def _any_of(self, node: Node, schema: Schema) -> list[Failure]:
        branches = [self._resolved(branch) for branch in schema["anyOf"]]
        results = [self.check(node, branch) for branch in branches]
        if not all(results):
            return []
        if isinstance(node, ScalarNode):
            return [self._expected(node, schema)]
        fitting = [
            i for i, branch in enumerate(branches) if "type" in branch and _has_type(node, branch["type"])
        ]
        if isinstance(node, MapNode) and len(fitting) > 1:
            distances = {i: _distance(node, branches[i]) for i in fitting}
            fitting = [i for i in fitting if distances[i] == min(distances.values())]
        if len(fitting) == 1:
            return results[fitting[0]]
        return [self._expected(node, schema)]

    # Scalars

    def _scalar(self, node: ScalarNode, schema: Schema) -> list[Failure]:
        value = node.value
        if "const" in schema and not _same(value, schema["const"]):
            code = "POL111" if node.path in ("apiVersion", "kind") else "POL103"
            return [self._expected(node, schema, code, repr(schema["const"]), f"write {schema['const']}")]
        if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
            hint = did_you_mean(str(value), map(str, schema["enum"])) or f"write {self._choices(schema)}"
            return [self._expected(node, schema, "POL103", self._choices(schema), hint)]
        if isinstance(value, str):
            return self._text(node, value, schema)
        if not isinstance(value, bool) and not schema.get("minimum", value) <= value <= schema.get(
            "maximum", value
        ):
            words = f"between {schema['minimum']} and {schema['maximum']}"
            return [self._expected(node, schema, "POL109", words, f"write a number {words}")]
        return []

    def _choices(self, schema: Schema) -> str:
        choices = [str(choice) for choice in schema.get("enum", [schema.get("const")])]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"

    def _text(self, node: ScalarNode, value: str, schema: Schema) -> list[Failure]:
        if len(value) < schema.get("minLength", 0):
            return [self._expected(node, schema, "POL110", "text with something in it")]
        if len(value) > schema.get("maxLength", len(value)):
            return [self._expected(node, schema, "POL110", f"at most {schema['maxLength']} characters long")]
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            return [self._expected(node, schema, "POL108", "spelled as it has to be")]
        return []

    # Lists and mappings

    def _list(self, node: ListNode, schema: Schema) -> list[Failure]:
        if len(node.items) < schema.get("minItems", 0):
            return [self._too_short(node, schema["minItems"])]
        if len(node.items) > schema.get("maxItems", len(node.items)):
            limit = schema["maxItems"]
            return [
                self._failure(
                    node, "POL110", f"the list has more than {limit} members", f"keep at most {limit}"
                )
            ]
        failures = []
        if schema.get("uniqueItems"):
            failures += [
                self._failure(
                    item, "POL113", f"{_describe(item)} stands in the list already", "remove one of the two"
                )
                for i, item in enumerate(node.items)
                if any(_same_node(item, earlier) for earlier in node.items[:i])
            ]
        members = schema.get("items", {})
        return failures + [failure for item in node.items for failure in self.check(item, members)]

    def _mapping(self, node: MapNode, schema: Schema) -> list[Failure]:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        failures = [
            self._failure(node, "POL101", f"key {key!r} is missing", f"add {key}: ...", usable=True)
            for key in schema.get("required", ())
            if key not in node.entries
        ]
        num_keys = len(node.entries)
        if num_keys < schema.get("minProperties", 0) or num_keys > schema.get("maxProperties", num_keys):
            failures.append(self._count_failure(node, schema, properties))
        for key, value in node.entries.items():
            if key in properties:
                failures += self.check(value, properties[key])
            elif schema.get("additionalProperties", True) is False:
                failures.append(self._unknown_key(node, key, properties))
            elif isinstance(schema.get("additionalProperties"), Mapping):
                failures += self.check(value, schema["additionalProperties"])
        return failures

    def _count_failure(self, node: MapNode, schema: Schema, properties: Mapping[str, Schema]) -> Failure:
        if "x-expected" in schema:
            return self._expected(node, schema)
        hint = f"give at least one of {', '.join(properties)}, or leave the key out"
        return self._failure(node, "POL110", "the mapping is empty", hint, usable=True)

    def _unknown_key(self, node: MapNode, key: str, properties: Mapping[str, Schema]) -> Failure:
        hint = did_you_mean(key, properties) or f"keys here: {', '.join(properties)}"
        if not key.isascii():
            hint = f"{hint}; this one has letters that are not ASCII"
        path = child_path(node.path, key)
        diagnostic = Diagnostic.at(node.key_span(key), "POL100", f"unknown key {key!r}", path=path, hint=hint)
        return Failure(diagnostic, path)

    # Wording

    def _too_short(self, node: ListNode, least: int) -> Failure:
        if not node.items:
            return self._failure(node, "POL110", "the list is empty", "give a member, or leave the key out")
        message = f"the list has {len(node.items)} of at least {least} members"
        return self._failure(node, "POL110", message, f"give at least {least}")

    def _type_failure(self, node: Node, schema: Schema) -> Failure:
        types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        words = " or ".join(_TYPE_WORDS[name] for name in types)
        if "x-expected" in schema:
            return self._expected(node, schema)
        hint = f"write {words}"
        if types == ["array"] and isinstance(node, ScalarNode):
            hint = f"write [{node.value}]"
        return self._failure(
            node, schema.get("x-code", "POL102"), f"expected {words}, not {_describe(node)}", hint
        )

    def _expected(
        self,
        node: Node,
        schema: Schema,
        code: str = "POL102",
        words: str | None = None,
        hint: str | None = None,
    ) -> Failure:
        """Word a failure by the schema's annotations where it has them."""
        message = f"{_describe(node)} is not {schema.get('x-expected', words)}"
        suggest = self.hints.get(schema.get("x-hint", ""))
        if suggest is not None and isinstance(node, ScalarNode):
            hint = suggest(node.value) or hint
        hint = hint or f"write {schema.get('x-expected', words)}"
        return self._failure(node, schema.get("x-code", code), message, hint, usable=not node.path)

    def _failure(
        self, node: Node, code: str, message: str, hint: str | None, *, usable: bool = False
    ) -> Failure:
        diagnostic = Diagnostic.at(node.span, code, message, path=node.path, hint=hint)
        return Failure(diagnostic, None if usable else node.path)


def _distance(node: MapNode, branch: Schema) -> tuple[int, int]:
    """Say how far ``node`` is from what ``branch`` describes: words that have to stand there, keys that are missing."""
    given = {key: value.value for key, value in node.entries.items() if isinstance(value, ScalarNode)}
    fixed = {key: p["const"] for key, p in branch.get("properties", {}).items() if "const" in p}
    num_other = sum(key in given and not _same(given[key], word) for key, word in fixed.items())
    return num_other, len(set(branch.get("required", ())) - set(node.entries))


def _has_type(node: Node, names: str | Sequence[str]) -> bool:
    return any(_has_one_type(node, name) for name in ([names] if isinstance(names, str) else names))


def _has_one_type(node: Node, name: str) -> bool:
    if isinstance(node, MapNode | ListNode):
        return name == ("object" if isinstance(node, MapNode) else "array")
    if isinstance(node, InvalidNode):
        return True
    value = node.value
    if isinstance(value, bool | str):
        return name == ("boolean" if isinstance(value, bool) else "string")
    return name == "number" or (name == "integer" and (isinstance(value, int) or value.is_integer()))


def _same(left: object, right: object) -> bool:
    """Compare as JSON does: true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _same_node(left: Node, right: Node) -> bool:
    both = isinstance(left, ScalarNode) and isinstance(right, ScalarNode)
    return both and _same(left.data, right.data)


def _describe(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return str(node.value).lower() if isinstance(node.value, bool) else _shortened(repr(node.value))
    return "a mapping" if isinstance(node, MapNode) else "a list"


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


@lru_cache(maxsize=64)
def _pattern(pattern: str) -> re.Pattern[str]:
    """Compile with ``$`` as JSON Schema means it: the end, not the place before a last line feed."""
    return re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern)


def _pruned(node: Node, broken: set[str]) -> Node:
    if node.path in broken:
        return InvalidNode(node.span, node.path)
    if isinstance(node, ListNode):
        return ListNode(tuple(_pruned(item, broken) for item in node.items), node.span, node.path)
    if isinstance(node, MapNode):
        entries = {key: _pruned(value, broken) for key, value in node.entries.items()}
        return MapNode(entries, node.key_spans, node.span, node.path)
    return node
