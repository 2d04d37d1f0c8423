"""A JSON Schema as tables: one section for each mapping, one row for each key, and the forms that values take.

A definition that several keys use is a section of its own, under its name; any other mapping is a section under its
path, such as ``limits`` or ``activations.rules[]``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offload_runtime.docgen.markdown import alternatives, code, slug

__all__ = ["Property", "SchemaReference", "Section", "ValueForm", "read_schema"]

Schema = Mapping[str, Any]

_DEFAULT = re.compile(r"\s*Default: (.+?)\.?$", re.DOTALL)
_REFERENCE = re.compile(r'"#/definitions/(\w+)"')
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
    "array": "list",
    "null": "null",
}
MOST_CHOICES = 8  # more of them stand in a list of their own


@dataclass(frozen=True)
class Property:
    """One key of a mapping; ``type`` and ``default`` are Markdown, ``default`` is None where the schema names none.

    ``section`` is the title of the section that describes the mapping behind this key, if it is one.
    """

    name: str
    type: str
    required: bool
    default: str | None
    description: str
    section: str | None


@dataclass(frozen=True)
class Section:
    """One mapping: its title (a path or a definition's name; empty for the document), and its keys.

    ``variants`` are the forms that a mapping with alternatives can have: the keys of each, with what it is for.
    """

    title: str
    description: str
    properties: tuple[Property, ...]
    variants: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ValueForm:
    """A form of value that has a name of its own: what fits, in words, and the choices or the pattern."""

    name: str
    description: str
    expected: str | None
    choices: tuple[str, ...]
    pattern: str | None


@dataclass(frozen=True)
class SchemaReference:
    """A schema, laid out for readers."""

    name: str
    title: str
    description: str
    sections: tuple[Section, ...]
    forms: tuple[ValueForm, ...]


def read_schema(name: str, schema: Schema) -> SchemaReference:
    """Lay out ``schema``; ``name`` is that of its file, such as ``policy``."""
    reader = SchemaReader(schema)
    sections = tuple(reader.sections())
    return SchemaReference(
        name=name,
        title=schema["title"],
        description=schema["description"],
        sections=sections,
        forms=tuple(reader.forms()),
    )


class SchemaReader:
    """Walks a schema: which mappings it has, under which titles, and what their keys take."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: Mapping[str, Schema] = schema.get("definitions", {})
        self.uses = Counter(_REFERENCE.findall(json.dumps(schema)))

    def sections(self) -> Iterator[Section]:
        """Yield the document first, then every mapping in the order in which its key is reached."""
        waiting = [("", self.schema)]
        done: set[str] = set()
        while waiting:
            title, schema = waiting.pop(0)
            if title in done:
                continue
            done.add(title)
            rows = []
            for key, members, required in self.members(schema):
                inner = next(filter(None, (self.mapping_of(child(title, key), m) for m in members)), None)
                if inner is not None:
                    waiting.append(inner)
                rows.append(self._property(key, members, required, inner[0] if inner else None))
            yield Section(title, schema.get("description", ""), tuple(rows), self._variants(schema))

    def members(self, schema: Schema) -> Iterator[tuple[str, list[Schema], bool]]:
        """Yield each key with what it takes in every form of the mapping, and whether all forms require it."""
        branches = self._branches(schema)
        found: dict[str, list[Schema]] = {}
        for part in (schema, *branches):
            for key, member in part.get("properties", {}).items():
                found.setdefault(key, []).append(member)
        for key, members in found.items():
            always = key in schema.get("required", ())
            always = always or (bool(branches) and all(key in part.get("required", ()) for part in branches))
            yield key, members, always

    def _branches(self, schema: Schema) -> list[Schema]:
        """Return the mappings among the alternatives of ``schema``."""
        branches = [self._resolved(branch)[1] for branch in schema.get("anyOf", ())]
        return [branch for branch in branches if "properties" in branch]

    def _variants(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        branches = self._branches(schema)
        if len(branches) < 2:
            return ()
        return tuple((_keys(branch), branch.get("description", "")) for branch in branches)

    def mapping_of(self, path: str, schema: Schema) -> tuple[str, Schema] | None:
        """Return title and schema of the mapping that ``schema``, the members of its list included, lets stand."""
        name, schema = self._resolved(schema)
        if name is not None and self.uses[name] > 1:
            path = name
        if any(True for _ in self.members(schema)):
            return path, schema
        if "items" in schema:
            return self.mapping_of(f"{path}[]", schema["items"])
        if isinstance(schema.get("additionalProperties"), Mapping):
            return self.mapping_of(f"{path}.NAME", schema["additionalProperties"])
        for branch in schema.get("anyOf", ()):
            inner = self.mapping_of(path, branch)
            if inner is not None:
                return inner
        return None

    def forms(self) -> Iterator[ValueForm]:
        """Yield the definitions that are no mappings: words, numbers and texts of a certain form."""
        for name, schema in self.definitions.items():
            if not self._is_form(schema):
                continue
            choices = tuple(str(word) for word in _choices(schema)) or tuple(
                str(word) for branch in schema.get("anyOf", ()) for word in _choices(branch)
            )
            yield ValueForm(
                name,
                schema.get("description", ""),
                schema.get("x-expected"),
                choices,
                schema.get("pattern"),
            )

    def _is_form(self, schema: Schema) -> bool:
        return self.mapping_of("", schema) is None

    def _resolved(self, schema: Schema) -> tuple[str | None, Schema]:
        name = None
        while "$ref" in schema:
            name = schema["$ref"].removeprefix("#/definitions/")
            schema = self.definitions[name]
        return name, schema

    def _property(self, key: str, members: list[Schema], required: bool, section: str | None) -> Property:
        schema = members[0]
        _, target = self._resolved(schema)
        description = schema.get("description") or target.get("description", "")
        stated = _DEFAULT.search(description)
        default = stated[1] if stated else None
        if "default" in schema:
            default = json.dumps(schema["default"])
        if default is not None and " " not in default:
            default = code(default)
        kinds = alternatives(dict.fromkeys(self._type(member) for member in members))
        return Property(key, kinds, required, default, _DEFAULT.sub("", description).strip(), section)

    def _type(self, schema: Schema) -> str:
        name, target = self._resolved(schema)
        if name is not None and self._is_form(target):
            return f"[{name}](#value-{slug(name)})"
        schema = target
        choices = _choices(schema)
        if choices:
            words = [code(str(word)) for word in choices]
            return alternatives(words) if len(words) <= MOST_CHOICES else f"one of {', '.join(words)}"
        if "anyOf" in schema and "type" not in schema:
            return alternatives(dict.fromkeys(self._type(branch) for branch in schema["anyOf"]))
        if schema.get("type") == "array":
            members = self._type(schema["items"]) if "items" in schema else "anything"
            return f"list of: {members}"
        kinds = schema.get("type", "object" if "properties" in schema else "anything")
        words = [_WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        return alternatives(words) + _bounds(schema)


def _choices(schema: Schema) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    return tuple(schema.get("enum", ()))


def _keys(branch: Schema) -> str:
    """Write the keys of one form; a key with one possible value with it, an optional one with a question mark."""
    words = []
    for key, member in branch["properties"].items():
        fixed = f": {member['const']}" if "const" in member else ""
        words.append(code(f"{key}{fixed}") + ("" if key in branch.get("required", ()) else "?"))
    return ", ".join(words)


def _bounds(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None and most is None:
        return ""
    if most is None:
        return f" from {least:,}"
    return f" up to {most:,}" if least is None else f" from {least:,} to {most:,}"


def child(path: str, key: str) -> str:
    """Return the path of ``key`` in the mapping at ``path``."""
    return f"{path}.{key}" if path else key
