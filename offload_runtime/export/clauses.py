"""The clauses that a policy gives, by the field of the schema that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from offload_runtime.errors import Span
from offload_runtime.policy import Limits, Policy, Rule, RuleExpect, Schedule
from offload_runtime.predicates import Scalar
from offload_runtime.shape import load_schema

__all__ = ["Clause", "given_clauses", "policy_fields"]

# Mappings that are one value: bounds, conditions, and the match inside `not`.
_WHOLE = frozenset({"sizeRange", "countRange", "predicate"})
_MATCH_KEYS = ("op", "layers", "module", "inside", "bytes", "dtype")


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause: its field of the policy schema, its value (True where it is no scalar), and where it stands.

    ``name`` is how a finding calls it: the field, or the rule and its key.
    """

    path: str
    value: Scalar
    span: Span | None
    name: str


def policy_fields() -> tuple[str, ...]:
    """Return every field of the policy schema that holds a value, in its order: ``activations.rules[].match.op``."""
    schema = load_schema("policy")
    return tuple(_fields(schema, schema["definitions"], ""))


def _fields(schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Iterator[str]:
    name = schema["$ref"].removeprefix("#/definitions/") if "$ref" in schema else ""
    if path and (name in _WHOLE or path.endswith(".not")):
        yield path
        return
    resolved = definitions[name] if name else schema
    if "properties" in resolved:
        for key, member in resolved["properties"].items():
            yield from _fields(member, definitions, f"{path}.{key}" if path else key)
    elif resolved.get("type") == "array" and _is_mapping(resolved["items"], definitions):
        yield from _fields(resolved["items"], definitions, f"{path}[]")
    else:
        yield path


def _is_mapping(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    name = schema.get("$ref", "").removeprefix("#/definitions/")
    return "properties" in (definitions[name] if name else schema)


def given_clauses(policy: Policy) -> tuple[Clause, ...]:
    """Return the clauses that ``policy`` gives: written, or different from the default. Names are left out."""
    return (
        *_section(policy, "limits", policy.limits, Limits()),
        *_section(policy, "schedule", policy.schedule, Schedule()),
        *_activations(policy),
        *_state_sections(policy),
        *_guards(policy),
    )


def _section(policy: Policy, name: str, value: Any, default: Any) -> Iterator[Clause]:
    for key in value.__dataclass_fields__:
        path = f"{name}.{key}"
        span, given = policy.span_of(path), getattr(value, key)
        if span is not None or given != getattr(default, key):
            yield Clause(path, "unlimited" if given is None else given, span, path)


def _activations(policy: Policy) -> Iterator[Clause]:
    activations = policy.activations
    if activations is None:
        return
    for key in ("default", "layer_outputs"):
        value = getattr(activations, key)
        if value is not None:
            path = f"activations.{key}"
            yield Clause(path, value, policy.span_of(path) or activations.span, path)
    if activations.layers_of is not None:
        path = "activations.layers_of"
        yield Clause(path, True, policy.span_of(path), path)
    for rule in activations.rules:
        yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[Clause]:
    def clause(key: str, value: Scalar, span: Span) -> Clause:
        return Clause(f"activations.rules[].{key}", value, span, f"{key} of rule {rule.name}")

    for key in _MATCH_KEYS:
        if getattr(rule.match, key):
            yield clause(f"match.{key}", True, rule.match.key_span(key))
    if rule.match.layout != "any":
        yield clause("match.layout", rule.match.layout, rule.match.key_span("layout"))
    if rule.match.negated is not None:
        yield clause("match.not", True, rule.match.key_span("not"))
    yield clause("action", rule.action, rule.span)
    for key in ("must", "optional"):
        if getattr(rule, key):
            yield clause(key, rule.action if key == "must" else True, rule.span)
    default = RuleExpect().matches
    if not rule.optional and rule.expect.matches != default:
        yield clause("expect.matches", True, rule.expect_span)
    if rule.expect.layers is not None:
        yield clause("expect.layers", True, rule.expect_span)


def _state_sections(policy: Policy) -> Iterator[Clause]:
    for name in ("optimizer_state", "gradients", "parameters"):
        section = getattr(policy, name)
        for key in section.__dataclass_fields__ if section is not None else ():
            value = getattr(section, key)
            span = policy.span_of(f"{name}.{key}")
            if key == "span" or (span is None and value in (False, ()) and key != "offload"):
                continue
            if key in ("step_device", "tier") and span is None:
                continue
            path = f"{name}.{key}"
            yield Clause(path, True if isinstance(value, tuple) else value, span or section.span, path)


def _guards(policy: Policy) -> Iterator[Clause]:
    if policy.requires is not None:
        yield Clause("requires", True, policy.span_of("requires"), "requires")
    if policy.expect is not None and policy.expect.moved is not None:
        yield Clause("expect.moved", True, policy.expect.span, "expect.moved")
