"""A typed policy as YAML, bases merged in and defaults left out: its meaning in the words of a file.

Reading the text gives the same policy back, so it also serves as the canonical content that is hashed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from offload_runtime.patterns import LayerRange
from offload_runtime.policy import (
    Activations,
    CountRange,
    Gradients,
    Limits,
    Match,
    OptimizerState,
    Parameters,
    Policy,
    Rule,
    Schedule,
)
from offload_runtime.predicates import AllOf, AnyOf, Comparison, Predicate
from offload_runtime.units import format_percent, format_size


def format_policy(policy: Policy) -> str:
    """Return the policy as YAML, with a final line feed."""
    return "".join(f"{line}\n" for line in _block(policy_data(policy), 0))


def policy_data(policy: Policy) -> dict[str, Any]:
    """Return the policy as plain data in the form of its file, bases merged in and defaults left out."""
    data: dict[str, Any] = {"apiVersion": "offload/v1", "kind": "Policy", "name": policy.name}
    sections = {
        "limits": _limits(policy.limits),
        "schedule": _changed(policy.schedule, Schedule()),
        "activations": _activations(policy.activations),
        "optimizer_state": _optimizer_state(policy.optimizer_state),
        "gradients": _gradients(policy.gradients),
        "parameters": _parameters(policy.parameters),
        "requires": _predicate(policy.requires) if policy.requires is not None else None,
        "expect": {"moved": _sizes(policy.expect.moved)} if policy.expect and policy.expect.moved else None,
    }
    return data | {key: value for key, value in sections.items() if value}


def _changed(value: Any, default: Any) -> dict[str, Any]:
    names = value.__dataclass_fields__
    return {name: getattr(value, name) for name in names if getattr(value, name) != getattr(default, name)}


def _limits(limits: Limits) -> dict[str, Any]:
    data = _changed(limits, Limits())
    if "step_overhead" in data:
        data["step_overhead"] = format_percent(Fraction(data["step_overhead"]).limit_denominator(10**11))
    return {key: format_size(value) if isinstance(value, int) else value for key, value in data.items()}


def _activations(activations: Activations | None) -> dict[str, Any] | None:
    if activations is None:
        return None
    data: dict[str, Any] = {"default": activations.default}
    if activations.layer_outputs is not None:
        data["layer_outputs"] = activations.layer_outputs
    if activations.layers_of is not None:
        data["layers_of"] = [str(glob) for glob in activations.layers_of]
    if activations.rules:
        data["rules"] = [_rule(rule) for rule in activations.rules]
    return data


def _rule(rule: Rule) -> dict[str, Any]:
    data: dict[str, Any] = {"name": rule.name, "match": _match(rule.match), "action": rule.action}
    data |= {key: True for key in ("must", "optional") if getattr(rule, key)}
    expect: dict[str, Any] = {}
    matches = rule.expect.matches
    if matches != CountRange(min=0 if rule.optional or matches.max == 0 else 1, max=None):
        kept_min = None if rule.optional else matches.min
        counts = _counts(CountRange(kept_min, matches.max))
        expect |= {"matches": counts} if counts else {}
    if rule.expect.layers is not None:
        expect["layers"] = _counts(rule.expect.layers)
    return data | ({"expect": expect} if expect else {})


def _match(match: Match) -> dict[str, Any]:
    data: dict[str, Any] = {
        "op": list(match.op),
        "layers": [str(layers) for layers in match.layers],
        "module": [str(pattern) for pattern in match.module],
        "inside": [str(glob) for glob in match.inside],
        "bytes": _sizes(match.bytes) if match.bytes is not None else None,
        "layout": match.layout if match.layout != "any" else None,
        "dtype": list(match.dtype),
        "not": _match(match.negated) if match.negated is not None else None,
    }
    return {key: value for key, value in data.items() if value}


def _optimizer_state(state: OptimizerState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    data: dict[str, Any] = {"offload_fraction": state.offload_fraction}
    data |= {"overlap": True} if state.overlap else {}
    return data | ({"step_device": state.step_device} if state.step_device != "cpu" else {})


def _gradients(gradients: Gradients | None) -> dict[str, Any] | None:
    return {"offload": gradients.offload} if gradients is not None else None


def _parameters(parameters: Parameters | None) -> dict[str, Any] | None:
    if parameters is None:
        return None
    data: dict[str, Any] = {"offload": parameters.offload}
    data |= {"layers": [str(layers) for layers in parameters.layers]} if parameters.layers else {}
    return data | ({"double_buffering": True} if parameters.double_buffering else {})


def _predicate(predicate: Predicate) -> dict[str, Any]:
    if isinstance(predicate, Comparison):
        value = list(predicate.value) if isinstance(predicate.value, tuple) else predicate.value
        return {"fact": predicate.fact, predicate.operator: value}
    if isinstance(predicate, AllOf | AnyOf):
        key = "all" if isinstance(predicate, AllOf) else "any"
        return {key: [_predicate(member) for member in predicate.members]}
    return {"not": _predicate(predicate.member)}


def _sizes(sizes: CountRange) -> dict[str, str]:
    return {key: format_size(value) for key, value in _counts(sizes).items()}


def _counts(counts: CountRange) -> dict[str, int]:
    pairs = (("min", counts.min), ("max", counts.max))
    return {key: value for key, value in pairs if value is not None}


def _block(data: Mapping[str, Any], indent: int) -> Iterator[str]:
    """Write a mapping in block style down to the rules, whose members stand on lines of their own."""
    margin = " " * indent
    for key, value in data.items():
        if isinstance(value, Mapping) and (key == "activations" or (indent == 0 and len(_flow(value)) > 80)):
            yield f"{margin}{key}:"
            yield from _block(value, indent + 2)
        elif key == "rules":
            yield f"{margin}{key}:"
            for rule in value:
                lines = list(_block(rule, 0))
                yield f"{margin}  - {lines[0]}"
                yield from (f"{margin}    {line}" for line in lines[1:])
        else:
            yield f"{margin}{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(member) for member in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, LayerRange):
        return json.dumps(str(value))
    if isinstance(value, str) and not _is_plain(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _is_plain(text: str) -> bool:
    """Tell whether ``text`` needs no quotes: a word, a size, an operator name, a percentage."""
    from offload_runtime.plain_scalars import resolve_plain

    safe = (
        bool(text) and text[0].isalnum() and all(c.isalnum() or c in "._-/%" for c in text) and text.isascii()
    )
    return safe and resolve_plain(text) == text
