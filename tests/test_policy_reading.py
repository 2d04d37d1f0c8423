"""The schema is the shape, the typed model the meaning: they agree up to the checks named here."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from offload_runtime.compiler import load_policy
from offload_runtime.document import document_from_data
from offload_runtime.errors import OffloadError
from offload_runtime.patterns import Glob, LayerRange
from offload_runtime.policy import CountRange, ModulePattern, RuleExpect
from offload_runtime.policy_loading import read_policy
from offload_runtime.policy_text import policy_data
from offload_runtime.shape import check_shape, load_schema
from offload_runtime.strict_yaml import read_yaml
from offload_runtime.validate import validate_policy
from tests.policy_documents import POLICIES

# What a schema cannot say: these may reject a document whose shape holds.
SEMANTIC_CODES = frozenset(
    {
        "POL104",  # a size that is not a whole number of bytes
        "POL106",  # a slice that selects nothing
        "POL107",  # '**' inside a segment
        "POL114",
        "POL115",
        "POL120",
        "POL121",
        "POL122",
        "POL123",
        "POL124",
        "POL125",
        "POL126",
        "POL127",
        "POL128",
        "POL129",
        "POL130",
        "POL132",
    }
)
HEAD = {"apiVersion": "offload/v1", "kind": "Policy", "name": "example"}


def policy_with(match: dict[str, Any], **rule: Any) -> dict[str, Any]:
    rules = [{"name": "a", "match": match, "action": "save", **rule}]
    return HEAD | {"activations": {"default": "recompute", "rules": rules}}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POLICIES)
@example(HEAD | {"activations": {"default": "auto"}})
def test_a_document_is_rejected_by_its_shape_or_by_a_named_semantic_check(data: dict[str, Any]) -> None:
    _, shape_findings = check_shape(document_from_data(data).root, load_schema("policy"))
    errors = {finding.code for finding in validate_policy(data) if finding.is_error}
    if shape_findings:
        assert errors
    else:
        assert errors <= SEMANTIC_CODES


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POLICIES)
def test_a_policy_that_is_accepted_reads_back_from_its_own_text(data: dict[str, Any]) -> None:
    try:
        policy = load_policy(data)
    except OffloadError:
        return
    for again in (policy_data(policy.policy), read_yaml(str(policy), None)):
        read = read_policy(again)
        assert read.diagnostics == ()
        assert read.policy == policy.policy


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("layers", 3, (LayerRange(3, single=True),)),
        ("layers", "3", (LayerRange(3, single=True),)),
        ("layers", ":75%", (LayerRange(None, Fraction(3, 4)),)),
        ("layers", ["outside", "-2:"], (LayerRange(outside=True), LayerRange(-2))),
        ("module", "a.*", (ModulePattern(Glob("a.*")),)),
        ("module", "inside:a", (ModulePattern(Glob("a"), inside=True),)),
        ("inside", ["a", "b"], (Glob("a"), Glob("b"))),
        ("bytes", {"min": "4KiB"}, CountRange(4096)),
        ("bytes", {"max": "0B"}, CountRange(None, 0)),
        ("dtype", "bfloat16", ("bfloat16",)),
        ("op", "matmul", ("matmul",)),
        ("layout", "dense", "dense"),
    ],
)
def test_each_key_of_a_match_reads_as_its_typed_value(key: str, value: Any, expected: Any) -> None:
    rule = load_policy(policy_with({key: value})).policy.rules[0]
    assert getattr(rule.match, key) == expected


@pytest.mark.parametrize(
    ("given_keys", "expected"),
    [
        ({}, RuleExpect(CountRange(1))),
        ({"optional": True}, RuleExpect(CountRange(0))),
        ({"expect": {"matches": {"min": 4}}}, RuleExpect(CountRange(4))),
        ({"expect": {"matches": {"max": 4}}}, RuleExpect(CountRange(1, 4))),
        ({"expect": {"matches": {"max": 0}}}, RuleExpect(CountRange(0, 0))),
        ({"optional": True, "expect": {"matches": {"max": 4}}}, RuleExpect(CountRange(0, 4))),
        ({"expect": {"layers": {"min": 4, "max": 4}}}, RuleExpect(CountRange(1), CountRange(4, 4))),
    ],
)
def test_a_rule_expects_one_match_unless_it_says_otherwise(
    given_keys: dict[str, Any], expected: RuleExpect
) -> None:
    assert load_policy(policy_with({"op": "matmul"}, **given_keys)).policy.rules[0].expect == expected


def test_every_value_of_a_policy_has_a_default_as_documented() -> None:
    policy = load_policy(HEAD | {"activations": {"default": "auto"}}).policy
    limits, schedule = policy.limits, policy.schedule
    assert (limits.budget, limits.device_peak, limits.host, limits.step_overhead) == (None, None, None, None)
    assert (schedule.select, schedule.defer, schedule.prefetch, schedule.keep_last) == (
        "largest_first",
        1,
        1,
        1,
    )
    assert policy.activations is not None
    assert policy.activations.layer_outputs is None
    assert (
        policy.optimizer_state
        is policy.gradients
        is policy.parameters
        is policy.requires
        is policy.expect
        is None
    )


@pytest.mark.parametrize(
    ("limits", "key", "expected"),
    [
        ({"budget": "0B"}, "budget", 0),
        ({"budget": "unlimited"}, "budget", None),
        ({"budget": "12GiB"}, "budget", 12 * 2**30),
        ({"device_peak": "auto"}, "device_peak", "auto"),
        ({"step_overhead": "0%"}, "step_overhead", 0.0),
        ({"step_overhead": "5%"}, "step_overhead", 0.05),
        ({"host": "64GB"}, "host", 64 * 10**9),
    ],
)
def test_zero_means_zero_and_unlimited_is_a_word(limits: dict[str, str], key: str, expected: Any) -> None:
    data = HEAD | {"limits": limits, "activations": {"default": "offload"}, "schedule": {"select": "planned"}}
    assert getattr(load_policy(data).policy.limits, key) == expected


def test_a_size_is_the_same_in_every_spelling() -> None:
    hashes = {
        load_policy(HEAD | {"limits": {"budget": size}, "activations": {"default": "offload"}}).hash
        for size in ("1GiB", "1024MiB", "1 GiB", "1073741824B")
    }
    assert len(hashes) == 1


def test_every_finding_of_a_document_comes_at_once() -> None:
    data = policy_with({"op": "matmull", "layers": "5:3"}) | {"limits": {"budget": 5}, "surplus": 1}
    assert [finding.code for finding in read_policy(data).diagnostics] == [
        "POL100",
        "POL104",
        "POL106",
        "POL120",
    ]
