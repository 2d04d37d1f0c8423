"""Schemas as tables: sections, keys, forms and examples."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.docgen.schema_examples import collect_examples, flow
from offload_runtime.docgen.schema_reference import Property, SchemaReference, Section, read_schema
from offload_runtime.shape import SCHEMA_DIRECTORY, load_schema

SCHEMA: dict[str, Any] = {
    "title": "Menu",
    "description": "What there is to eat.",
    "required": ["name"],
    "properties": {
        "name": {"description": "Its name. Default: soup.", "type": "string"},
        "price": {"$ref": "#/definitions/amount"},
        "first": {"$ref": "#/definitions/dish"},
        "courses": {"description": "In order.", "type": "array", "items": {"$ref": "#/definitions/dish"}},
        "table": {"type": "object", "properties": {"number": {"type": "integer", "minimum": 1}}},
        "pay": {
            "description": "How.",
            "anyOf": [
                {"required": ["by"], "properties": {"by": {"const": "cash"}}},
                {
                    "description": "By card.",
                    "required": ["by"],
                    "properties": {"by": {"const": "card"}, "tip": {"type": "boolean"}},
                },
            ],
        },
    },
    "definitions": {
        "amount": {"description": "An amount.", "type": "string", "pattern": "^[0-9]+$"},
        "dish": {
            "description": "A dish.",
            "required": ["of"],
            "properties": {"of": {"enum": ["rice", "beans"]}, "with": {"$ref": "#/definitions/dish"}},
        },
    },
}


@pytest.fixture
def menu() -> SchemaReference:
    return read_schema("menu", SCHEMA)


def section(reference: SchemaReference, title: str) -> Section:
    return next(one for one in reference.sections if one.title == title)


def key(reference: SchemaReference, title: str, name: str) -> Property:
    return next(one for one in section(reference, title).properties if one.name == name)


def test_mappings_are_sections_under_their_path_or_their_shared_name(menu: SchemaReference) -> None:
    assert [one.title for one in menu.sections] == ["", "dish", "table", "pay"]
    assert key(menu, "", "courses").section == key(menu, "", "first").section == "dish"
    assert key(menu, "dish", "with").section == "dish"


def test_a_key_says_what_it_takes_and_what_it_is_without(menu: SchemaReference) -> None:
    assert key(menu, "", "name") == Property("name", "text", True, "`soup`", "Its name.", None)
    assert key(menu, "", "price").type == "[amount](#value-amount)"
    assert key(menu, "table", "number").type == "whole number from 1"
    assert key(menu, "dish", "of").type == "`rice` or `beans`"


def test_alternatives_are_one_table_and_a_list_of_forms(menu: SchemaReference) -> None:
    assert key(menu, "pay", "by") == Property("by", "`cash` or `card`", True, None, "", None)
    assert not key(menu, "pay", "tip").required
    assert section(menu, "pay").variants == (("`by: cash`", ""), ("`by: card`, `tip`?", "By card."))


def test_forms_of_values_are_listed_and_mappings_are_not(menu: SchemaReference) -> None:
    assert [(form.name, form.pattern) for form in menu.forms] == [("amount", "^[0-9]+$")]


def test_examples_come_from_documents_the_first_that_is_short() -> None:
    documents = [
        {"name": "x" * 100, "first": {"of": "rice", "with": {"of": "beans"}}},
        {"name": "soup", "courses": [{"of": "beans"}], "unknown": 1},
        {"name": "salad"},
    ]
    assert collect_examples(SCHEMA, documents) == {
        ("", "name"): "soup",
        ("", "first"): "{of: rice, with: {of: beans}}",
        ("", "courses"): "[{of: beans}]",
        ("dish", "of"): "rice",
        ("dish", "with"): "{of: beans}",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("12GiB", "12GiB"),
        ("**.mlp.*", '"**.mlp.*"'),
        ("1", '"1"'),
        ("5%", '"5%"'),
        ("no", '"no"'),
        ("a: b", '"a: b"'),
        (True, "true"),
        (0.5, "0.5"),
        (
            {"op": ["matmul", "attention"], "bytes": {"min": "4KiB"}},
            "{op: [matmul, attention], bytes: {min: 4KiB}}",
        ),
    ],
)
def test_values_are_written_so_that_every_reader_of_yaml_agrees(value: object, text: str) -> None:
    assert flow(value) == text


@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in SCHEMA_DIRECTORY.iterdir()))
def test_every_key_of_every_schema_is_described(name: str) -> None:
    reference = read_schema(name, load_schema(name))
    undescribed = [
        f"{one.title}.{prop.name}"
        for one in reference.sections
        for prop in one.properties
        if not prop.description
    ]
    assert undescribed == []
    titles = [one.title for one in reference.sections]
    assert len(set(titles)) == len(titles)
