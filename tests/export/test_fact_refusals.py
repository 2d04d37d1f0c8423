"""What a target refuses by facts alone: for every constraint the same as an export with these facts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from offload_runtime.card import Condition
from offload_runtime.card_reading import load_card
from offload_runtime.errors import Diagnostic
from offload_runtime.export.exporter import export_policy
from offload_runtime.export.fact_refusals import chosen_settings, fact_refusals
from offload_runtime.export.target import Constraint, Target, TargetMechanism
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.facts import FACTS
from offload_runtime.policy import Policy
from offload_runtime.predicates import Scalar, comparisons, evaluate
from offload_runtime.skills_catalog import list_skills
from tests.export.policies import policy

CONSTRAINTS = [(name, constraint) for name in EXPORT_TARGETS for constraint in load_target(name).constraints]

OWN_BACK_END = "tune-activation-offload"
"""The skill whose card is about this package's own back end, and says nothing of other systems."""


def refused(findings: tuple[Diagnostic, ...]) -> set[str]:
    """Return the names of the constraints that ``findings`` refuse for."""
    names = (re.search(r" \[([a-z0-9-]+)\]", each.message) for each in findings if each.code == "EXP902")
    return {name.group(1) for name in names if name is not None}


def names_compared(constraint: Constraint) -> set[str]:
    return {each.fact for part in (constraint.when, constraint.holds) for each in comparisons(part)}


def opens(target: Target, name: str) -> bool:
    """Tell whether a condition compares a setting that is not known unless somebody gives it."""
    setting = target.setting(name)
    return setting is not None and setting.default is None and setting.fact is None


def facts_behind(target: Target, name: str) -> set[str]:
    """Return the facts that settle what a condition compares; empty where a setting of no fact is compared."""
    if name in FACTS:
        return {name}
    setting = target.setting(name)
    named = [None if setting is None else setting.fact]
    for emission in target.emits:
        if emission.key == name:
            decides = [] if emission.when is None else [each.fact for each in comparisons(emission.when)]
            named += [*decides, emission.taken_from]
    return {fact for fact in named if fact is not None and fact in FACTS}


def candidates(constraint: Constraint, fact: str) -> list[Scalar]:
    """Return values on both sides of everything that a constraint compares with ``fact``."""
    known = FACTS[fact]
    if known.type == "boolean":
        return [True, False]
    if known.type == "text":
        return list(known.choices)
    return [0.5, 1.0] if known.type == "number" else [0, 1, 2, 3, 4]


def assignments(target: Target, constraint: Constraint) -> Iterator[dict[str, Scalar]]:
    facts = sorted(set().union(*(facts_behind(target, name) for name in names_compared(constraint))))
    for values in itertools.product(*(candidates(constraint, fact) for fact in facts)):
        yield dict(zip(facts, values, strict=True))


def is_settled_by_facts(target: Target, constraint: Constraint) -> bool:
    """Tell whether facts settle every setting that a constraint compares; what a policy says is said by none."""
    own = {name for name in names_compared(constraint) if not name.startswith(("policy.", "written."))}
    return bool(own) and all(facts_behind(target, name) for name in own)


@pytest.mark.parametrize(("name", "constraint"), CONSTRAINTS, ids=lambda value: getattr(value, "name", value))
def test_facts_alone_are_refused_for_what_an_export_with_them_is(name: str, constraint: Constraint) -> None:
    target = load_target(name)
    is_settled = is_settled_by_facts(target, constraint)
    for facts in assignments(target, constraint):
        exported = refused(export_policy(Policy("empty"), name, facts=facts).refusals)
        alone = refused(fact_refusals(name, facts))
        if is_settled:
            assert (constraint.name in alone) is (constraint.name in exported), facts
        assert alone <= exported, facts


REFUSED = [
    ("megatron-bridge", {"layer_activation_offload": True, "pipeline_parallel": 2}, "one-pipeline-stage"),
    ("megatron-bridge", {"layer_activation_offload": True, "activation_recompute": True}, "no-recompute"),
    ("megatron-bridge", {"layer_activation_offload": True, "cuda_graphs": True}, "no-cuda-graphs"),
    (
        "megatron-bridge",
        {"layer_activation_offload": True, "fine_grained_offload": True},
        "no-fine-grained-offload",
    ),
    ("megatron-bridge", {"optimizer_offload": True, "distributed_optimizer": False}, "distributed-optimizer"),
    (
        "megatron-bridge",
        {"precision_aware_optimizer": True, "distributed_optimizer": False},
        "precision-aware-is-distributed",
    ),
    (
        "megatron-bridge",
        {"precision_aware_optimizer": True, "optimizer": "sgd-momentum"},
        "precision-aware-is-adam",
    ),
    ("megatron-bridge", {"optimizer_offload": True, "optimizer": "other"}, "offloaded-is-adam-or-sgd"),
    (
        "megatron-bridge",
        {"gradient_offload": True, "optimizer_offload": False},
        "gradients-go-with-the-state",
    ),
    ("deepspeed", {"gradient_offload": True, "optimizer_offload": False}, "gradients-go-with-the-state"),
    ("deepspeed", {"parameter_offload": True, "zero_stage": 2}, "parameters-need-stage-3"),
    ("deepspeed", {"offload_fraction": 0.5, "zero_stage": 2}, "a-part-needs-stage-3"),
    ("deepspeed", {"optimizer_offload": True, "zero_stage": 0}, "optimizer-needs-a-stage"),
    ("deepspeed", {"offload_device": "nvme", "zero_stage": 2}, "nvme-needs-stage-3"),
    ("deepspeed", {"offload_device": "nvme", "asynchronous_io": False}, "nvme-needs-asynchronous-io"),
    (
        "fsdp2",
        {"parameter_offload": True, "optimizer_offload": False},
        "state-goes-with-the-parameters",
    ),
    ("fsdp2", {"optimizer_offload": True, "parameter_offload": False}, "nothing-without-the-parameters"),
    ("torchtitan", {"defer": 3, "is_moe": True}, "short-defer-for-experts"),
]


@pytest.mark.parametrize(("name", "facts", "constraint"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_combination_that_a_target_excludes_is_refused_and_neither_half_alone(
    name: str, facts: dict[str, Scalar], constraint: str
) -> None:
    assert constraint in refused(fact_refusals(name, facts))
    halves = [{fact: facts[fact] for fact in facts if fact != left_out} for left_out in facts]
    assert all(constraint not in refused(fact_refusals(name, half)) for half in halves)


def test_every_constraint_that_facts_can_break_is_in_the_table() -> None:
    broken = {
        (name, constraint.name)
        for name, constraint in CONSTRAINTS
        for facts in assignments(load_target(name), constraint)
        if constraint.name in refused(fact_refusals(name, facts))
    }
    assert broken == {(name, constraint) for name, _, constraint in REFUSED}


@pytest.mark.parametrize(
    ("name", "facts", "code"),
    [
        ("megatron-bridge", {"num_offloaded_layers": 32, "num_layers": 32}, "EXP903"),
        ("deepspeed", {"zero_stage": 4}, "EXP903"),
        ("megatron-bridge", {"world_size": 6, "pipeline_parallel": 4}, "EXP908"),
        ("megatron-bridge", {"optimizer_offload": True, "optimizer": "sgd"}, "EXP908"),
    ],
)
def test_a_range_and_a_run_that_cannot_be_are_refused_too(
    name: str, facts: Mapping[str, Scalar], code: str
) -> None:
    assert [each.code for each in fact_refusals(name, facts)] == [code]
    assert code in [each.code for each in export_policy(Policy("empty"), name, facts=facts).refusals]


def excluded_by_cards() -> Iterator[tuple[str, str, Condition, Mapping[str, Scalar]]]:
    """Yield what cards say no run of a system can be: the card, the system, the condition, and its example."""
    for skill in list_skills():
        if skill.card.parent.name == OWN_BACK_END:
            continue
        interactions = load_card(skill.card).interactions
        for example, condition in (
            *((each.fails, each) for each in interactions.required if each.given is not None),
            *((each.holds, each) for each in interactions.incompatible if each.when is not None),
        ):
            system = next((name for name in EXPORT_TARGETS if _is_about(name, example)), None)
            if system is not None:
                yield skill.card.parent.name, system, condition, example


def _is_about(system: str, example: Mapping[str, Scalar]) -> bool:
    target = load_target(system)
    behind = {setting.fact for setting in target.settings}
    behind |= {each.fact for c in target.constraints for each in comparisons(c.holds)}
    return example.get("framework", system) == system and set(example) <= {
        *behind,
        "framework",
        "offload_device",
    }


def test_what_cards_call_impossible_is_refused_by_the_one_table() -> None:
    found = [
        (card, condition.text, bool(fact_refusals(system, example)))
        for card, system, condition, example in excluded_by_cards()
    ]
    assert found
    assert [row for row in found if not row[2]] == []


SECTIONS = [
    ({"optimizer_state": {"offload_fraction": 1.0}}, {"optimizer_offload": True}),
    ({"optimizer_state": {"offload_fraction": 0.5}}, {"optimizer_offload": True, "offload_fraction": 0.5}),
    ({"parameters": {"offload": True, "layers": ":2"}}, {"parameter_offload": True}),
]
RUNS = [
    {},
    {"pipeline_parallel": 1},
    {"pipeline_parallel": 4},
    {"distributed_optimizer": True},
    {"distributed_optimizer": False},
    {"optimizer": "other"},
    *({"zero_stage": stage} for stage in range(4)),
]


@pytest.mark.parametrize("name", EXPORT_TARGETS)
@pytest.mark.parametrize(("section", "facts"), SECTIONS, ids=["state", "a part", "parameters"])
def test_one_configuration_has_one_answer_by_facts_by_an_export_and_by_a_policy(
    name: str, section: dict[str, Any], facts: dict[str, Scalar]
) -> None:
    for run in RUNS:
        by_facts = refused(fact_refusals(name, {**facts, **run}))
        assert refused(export_policy(Policy("empty"), name, facts={**facts, **run}).refusals) == by_facts, run
        by_policy = export_policy(policy(**section), name, facts=run).refusals
        if "EXP901" not in {finding.code for finding in by_policy}:
            assert refused(by_policy) == by_facts, run


SWITCHED = [
    (name, mechanism)
    for name in EXPORT_TARGETS
    for mechanism in load_target(name).mechanisms
    if mechanism.enabled_when is not None
]


@pytest.mark.parametrize(("name", "mechanism"), SWITCHED, ids=lambda part: getattr(part, "name", part))
def test_what_a_mechanism_that_is_on_lacks_is_the_setting_that_is_named(
    name: str, mechanism: TargetMechanism
) -> None:
    assert mechanism.enabled_when is not None
    on: dict[str, Scalar] = {each.fact: True for each in comparisons(mechanism.enabled_when)}
    nothing, chosen = Policy("empty"), chosen_settings(name, on)
    assert chosen == (() if mechanism.chosen_by is None else (mechanism.chosen_by,))
    lacking = export_policy(nothing, name, facts=on).refusals
    assert [key for key in chosen if not any(key in str(each.hint) for each in lacking)] == []
    assert (lacking == ()) is (chosen == ())
    settings = [setting for key in chosen if (setting := load_target(name).setting(key)) is not None]
    given = [f"{setting.key}=[{setting.choices[0]}]" for setting in settings]
    assert export_policy(nothing, name, facts=on, settings=given).refusals == ()


OPEN_SETTINGS = [
    (name, constraint, keys)
    for name, constraint in CONSTRAINTS
    if (keys := [each.fact for each in comparisons(constraint.holds) if opens(load_target(name), each.fact)])
    and evaluate(constraint.holds, {f"written.{key}": False for key in keys}) is None
]


@pytest.mark.parametrize(
    ("name", "constraint", "keys"), OPEN_SETTINGS, ids=[constraint.name for _, constraint, _ in OPEN_SETTINGS]
)
def test_a_setting_that_is_asked_for_has_a_value_that_keeps_the_constraint(
    name: str, constraint: Constraint, keys: list[str]
) -> None:
    target = load_target(name)
    settings = [setting for key in keys if (setting := target.setting(key)) is not None]
    choices = [setting.choices or (setting.minimum or 0, 1, True) for setting in settings]
    written = {f"written.{key}": True for key in keys}
    given = (dict(zip(keys, values, strict=True)) for values in itertools.product(*choices))
    assert any(evaluate(constraint.holds, {**written, **values}) is True for values in given)
