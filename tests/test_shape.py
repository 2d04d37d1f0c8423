"""The schema walker accepts what ``jsonschema`` accepts, and says where and why when it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema.protocols import Validator

from offload_runtime.document import document_from_data
from offload_runtime.op_classes import OP_CLASSES
from offload_runtime.patterns import GLOB_PATTERN, LAYERS_PATTERN
from offload_runtime.shape import SUPPORTED_KEYWORDS, check_shape, did_you_mean, load_schema
from offload_runtime.units import SIZE_PATTERN
from tests.policy_documents import POLICIES

SCHEMAS = ("policy", "policy-test", "hardware", "card", "evals", "target")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key in ("properties", "definitions"):
                for member in value.values():
                    yield from subschemas(member)
            elif key not in ("enum", "const", "required"):
                yield from subschemas(value)
    elif isinstance(schema, list):
        for member in schema:
            yield from subschemas(member)


def ecma_pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """``$`` is the very end in JSON Schema; Python's also fits before a last line feed."""
    if isinstance(instance, str) and not re.search(pattern.removesuffix("$") + r"\Z", instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


Reference = jsonschema.validators.extend(jsonschema.Draft7Validator, {"pattern": ecma_pattern})


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_valid_draft_07(name: str) -> None:
    schema = load_schema(name)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_uses_only_keywords_that_the_walker_knows(name: str) -> None:
    used = {keyword for schema in subschemas(load_schema(name)) for keyword in schema}
    assert used <= SUPPORTED_KEYWORDS


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_and_definition_is_described(name: str) -> None:
    undescribed = [
        key
        for schema in subschemas(load_schema(name))
        for group in ("properties", "definitions")
        for key, member in schema.get(group, {}).items()
        if not str(member.get("description", "")).endswith(".")
    ]
    assert undescribed == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_mapping_is_closed(name: str) -> None:
    schemas = [schema for schema in subschemas(load_schema(name)) if schema.get("type") == "object"]
    assert schemas
    # A mapping whose keys are names of facts says what its values are.
    assert all(
        schema["additionalProperties"] in (False, {"$ref": "#/definitions/factValue"}) for schema in schemas
    )


def test_every_range_of_numbers_is_bounded_on_both_sides() -> None:
    ranges = [s for name in SCHEMAS for s in subschemas(load_schema(name)) if {"minimum", "maximum"} & set(s)]
    assert ranges
    assert all({"minimum", "maximum"} <= set(s) for s in ranges)


def test_schema_repeats_the_grammars_of_the_code() -> None:
    definitions = load_schema("policy")["definitions"]
    assert definitions["size"]["pattern"] == SIZE_PATTERN
    assert load_schema("policy-test")["definitions"]["size"]["pattern"] == SIZE_PATTERN
    assert definitions["glob"]["pattern"] == GLOB_PATTERN
    assert definitions["modulePattern"]["pattern"] == "^(inside: ?)?" + GLOB_PATTERN.removeprefix("^")
    assert definitions["layerRange"]["anyOf"][1]["pattern"] == LAYERS_PATTERN
    assert definitions["op"]["anyOf"][0]["enum"] == list(OP_CLASSES)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POLICIES)
def test_walker_accepts_exactly_what_jsonschema_accepts(data: dict[str, Any]) -> None:
    schema = load_schema("policy")
    _, findings = check_shape(document_from_data(data).root, schema)
    assert (findings == ()) == Reference(schema).is_valid(data), [str(finding) for finding in findings]


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        "x",
        1,
        True,
        None,
        [{}],
        {"apiVersion": []},
        {"activations": []},
        {"activations": {"rules": [[]]}},
    ],
    ids=repr,
)
def test_walker_and_jsonschema_agree_on_documents_of_another_form(value: Any) -> None:
    _, findings = check_shape(document_from_data(value).root, load_schema("policy"))
    rejected = bool(findings) or value is None  # None is refused while the data is read
    assert rejected == (not Reference(load_schema("policy")).is_valid(value))


def test_values_that_failed_are_left_out_of_what_is_read_on() -> None:
    data = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "x",
        "limits": {"budget": 5, "host": "1GiB"},
    }
    root, findings = check_shape(document_from_data(data).root, load_schema("policy"))
    assert {finding.path for finding in findings} == {"limits.budget", None}
    assert root.data == {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "x",
        "limits": {"host": "1GiB"},
    }


def test_a_key_that_only_looks_right_is_told_why_it_is_not() -> None:
    data = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "x",
        "gradients": {"offload": True},
        "l\u0456mits": {},
    }
    _, (finding,) = check_shape(document_from_data(data).root, load_schema("policy"))
    assert (finding.code, finding.hint) == (
        "POL100",
        "did you mean limits?; this one has letters that are not ASCII",
    )


@pytest.mark.parametrize(
    ("word", "choices", "hint"),
    [
        ("limts", ["limits", "schedule"], "did you mean limits?"),
        ("MATMUL", ["matmul"], "did you mean matmul?"),
        ("xyz", ["limits", "schedule"], None),
        ("x", [], None),
    ],
)
def test_did_you_mean_names_the_closest_word_or_none(word: str, choices: list[str], hint: str | None) -> None:
    assert did_you_mean(word, choices) == hint
