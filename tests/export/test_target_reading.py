"""The files about targets: of the right shape, whole, and consistent in themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from offload_runtime.export import clauses
from offload_runtime.export.clauses import policy_fields
from offload_runtime.export.policy_values import policy_values
from offload_runtime.export.target import Target
from offload_runtime.export.target_reading import (
    EXPORT_TARGETS,
    TARGET_DIRECTORY,
    load_target,
    target_failures,
)
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Predicate, comparisons
from offload_runtime.shape import check_shape, load_schema
from offload_runtime.strict_yaml import read_yaml_file
from tests.export.policies import first_layers

TARGETS = [load_target(name) for name in EXPORT_TARGETS]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def conditions(target: Target) -> Iterator[Predicate]:
    for row in target.clauses:
        yield from (when for when, _ in row.cases)
    yield from (emission.when for emission in target.emits if emission.when is not None)
    for constraint in target.constraints:
        yield from (constraint.when, constraint.holds)
    yield from (when for when, _ in target.notes)
    yield from (mechanism.when for mechanism in target.mechanisms if mechanism.when is not None)


def test_every_file_is_a_target_and_every_target_has_a_file() -> None:
    assert sorted(path.stem for path in TARGET_DIRECTORY.glob("*.yaml")) == list(EXPORT_TARGETS)
    assert [target.name for target in TARGETS] == list(EXPORT_TARGETS)


@pytest.mark.parametrize("name", EXPORT_TARGETS)
def test_a_file_has_the_shape_that_its_schema_says(name: str) -> None:
    document = read_yaml_file(TARGET_DIRECTORY / f"{name}.yaml", file=name)
    assert document.diagnostics == ()
    assert check_shape(document.root, load_schema("target"))[1] == ()
    jsonschema.validate(document.data, load_schema("target"))


@each_target
def test_every_field_of_the_policy_schema_has_a_row_and_no_other(target: Target) -> None:
    assert [row.path for row in target.clauses] == list(dict.fromkeys(row.path for row in target.clauses))
    assert sorted(row.path for row in target.clauses) == sorted(policy_fields())


def test_a_new_field_of_the_schema_is_a_field_without_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    schema: dict[str, Any] = json.loads(json.dumps(load_schema("policy")))
    schema["properties"]["limits"]["properties"]["disk"] = {"type": "string"}
    monkeypatch.setattr(clauses, "load_schema", lambda name: schema)
    assert set(policy_fields()) - {row.path for row in TARGETS[0].clauses} == {"limits.disk"}


@each_target
def test_a_refusal_says_why_and_what_instead_and_an_approximation_how(target: Target) -> None:
    verdicts = [v for row in target.clauses for v in (row.otherwise, *(verdict for _, verdict in row.cases))]
    assert [v for v in verdicts if v.fate == "refused" and not (v.reason and v.cure)] == []
    assert [v for v in verdicts if v.fate == "approximate" and not v.note] == []
    assert [v for v in verdicts if v.fate in ("honoured", "not_applicable") and v.reason] == []


@each_target
def test_what_is_written_is_a_setting_that_is_known(target: Target) -> None:
    keys = [setting.key for setting in target.settings]
    assert len(keys) == len(set(keys))
    assert {emission.key for emission in target.emits} <= set(keys)
    assert {c.settled_by for c in target.constraints if c.settled_by is not None} <= set(keys)


@each_target
def test_a_fixed_value_fits_the_type_and_the_choices_of_its_setting(target: Target) -> None:
    types = {"boolean": bool, "integer": int, "number": (int, float), "text": str}
    fixed = [(e.key, e.value) for e in target.emits if e.value is not None]
    fixed += [(s.key, s.default) for s in target.settings if s.default is not None]
    for key, value in fixed:
        setting = target.setting(key)
        assert setting is not None
        assert isinstance(value, types[setting.type]), key  # type: ignore[arg-type]
        assert not setting.choices or value in setting.choices, key


@each_target
def test_conditions_name_facts_settings_and_what_policies_say(target: Target) -> None:
    said = set(policy_values(first_layers(parameters={"offload": True}).policy, {"num_layers": 32}))
    said |= {"policy.limits.budget", "value"}
    known = said | set(FACTS) | {setting.key for setting in target.settings}
    known |= {f"written.{setting.key}" for setting in target.settings}
    for setting in target.settings:
        if setting.type == "list":
            known |= {f"{setting.key}.{word}" for word in ("count", *setting.choices)}
    named = {comparison.fact for predicate in conditions(target) for comparison in comparisons(predicate)}
    named |= {e.taken_from for e in target.emits if e.taken_from is not None}
    named |= {s.below for s in target.settings if s.below is not None}
    assert named - known == set()


@each_target
def test_every_fact_about_a_target_has_a_source_that_the_file_lists(target: Target) -> None:
    sources = {source.id for source in target.sources}
    rows = (*target.settings, *target.constraints, *target.failures, *target.mechanisms)
    named = {row.source for row in rows}
    assert named <= sources
    assert [source.id for source in target.sources if len(source.text) < 20] == []


@each_target
def test_constraints_and_failures_point_at_each_other_and_at_fields(target: Target) -> None:
    names = [constraint.name for constraint in target.constraints]
    assert len(names) == len(set(names))
    prevented = {failure.constraint: failure.error for failure in target.failures if failure.constraint}
    assert set(prevented) <= set(names)
    for constraint in target.constraints:
        if constraint.error is not None and constraint.name in prevented:
            assert prevented[constraint.name] == constraint.error
    fields = set(policy_fields()) | {path.partition(".")[0] for path in policy_fields()}
    for constraint in target.constraints:
        assert set(constraint.clauses) <= fields


def test_the_texts_with_which_megatron_refuses_stand_word_for_word() -> None:
    texts = {failure.error for name, failure in target_failures() if name == "megatron-bridge"}
    assert texts >= {
        "Currently there is no support for Pipeline parallelism with CPU offloading",
        "CPU offloading does not work when activation recomputation is enabled",
        "fine_grained_activation_offloading cannot be enabled with cpu_offloading.",
        "CUDA graphs not supported with CPU offloading.",
    }


@each_target
def test_a_limited_mechanism_says_what_it_needs_and_a_setting_names_a_fact_of_its_type(
    target: Target,
) -> None:
    assert [m.name for m in target.mechanisms if m.when is not None and not m.needs] == []
    for setting in target.settings:
        if setting.fact is not None and setting.stands_for_no is None:
            assert FACTS[setting.fact].type == setting.type, setting.key


def test_an_unknown_target_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="target is one of deepspeed, fsdp2, megatron-bridge, torchtitan"):
        load_target("onnx")


@each_target
def test_words_of_a_setting_are_paired_with_words_of_its_fact(target: Target) -> None:
    for setting in target.settings:
        if setting.words:
            assert setting.fact is not None
            assert {fact for fact, _ in setting.words} | {"other"} <= set(FACTS[setting.fact].choices)
            assert setting.default in {word for _, word in setting.words}
        if setting.also_on_by is not None:
            assert FACTS[setting.also_on_by].type == setting.type == "boolean"


@each_target
def test_a_cure_names_the_largest_value_only_where_there_is_one(target: Target) -> None:
    limited = {s.key for s in target.settings if s.below is not None or s.maximum is not None}
    cures = [(s.key, s.cure) for s in target.settings] + [(e.key, e.cure) for e in target.emits]
    assert [key for key, cure in cures if cure is not None and key not in limited] == []
