"""What a policy says, as values that the conditions of a target can compare: ``policy.parameters.offload``.

The form of the activation section is one word, because systems that move whole layers, or what checkpointing
keeps, honour the section as a whole or not at all:

    none                       there is no such section
    save                       everything is saved
    recompute_layers           the outputs of layers are saved, the rest is recomputed
    recompute_layers_offload   the outputs of layers are offloaded, the rest is recomputed
    layers                     all that the first N layers save is offloaded, the rest is saved
    auto                       something is left to a planner
    rules                      anything else
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from offload_runtime.patterns import LayerRange
from offload_runtime.policy import Activations, Match, Policy, Rule
from offload_runtime.predicates import Scalar

__all__ = ["ActivationForm", "activation_form", "layer_shortfall", "policy_values"]

ActivationForm = Literal[
    "none", "save", "recompute_layers", "recompute_layers_offload", "layers", "auto", "rules"
]


def policy_values(policy: Policy, facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return what ``policy`` says by dotted name; what it leaves open, and what hangs on an unknown fact, is absent."""
    num_layers = facts.get("num_layers")
    total = num_layers if isinstance(num_layers, int) and not isinstance(num_layers, bool) else None
    state, parameters = policy.optimizer_state, policy.parameters
    values: dict[str, Scalar | None] = {
        "policy.name": policy.name,
        "policy.limits.budget": policy.limits.budget,
        "policy.schedule.defer": policy.schedule.defer,
        "policy.schedule.prefetch": policy.schedule.prefetch,
        "policy.activations.form": activation_form(policy.activations),
        "policy.activations.offloads": "offload" in _actions(policy.activations),
        "policy.activations.first_layers": _offloaded_layers(policy, total),
        "policy.optimizer_state.offload_fraction": state.offload_fraction if state is not None else 0.0,
        "policy.optimizer_state.overlap": state is not None and state.overlap,
        "policy.gradients.offload": policy.gradients is not None and policy.gradients.offload,
        "policy.parameters.offload": parameters is not None and parameters.offload,
        "policy.parameters.double_buffering": parameters is not None and parameters.double_buffering,
        "policy.parameters.first_layers": None,
    }
    if parameters is not None and parameters.offload:
        whole = (LayerRange(),) if not parameters.layers else parameters.layers
        values["policy.parameters.first_layers"] = _first_layers(whole, total)
    both = values["policy.activations.first_layers"], values["policy.parameters.first_layers"]
    if None not in both:
        values["policy.same_layers"] = both[0] == both[1]
    return {name: value for name, value in values.items() if value is not None}


def activation_form(activations: Activations | None) -> ActivationForm:
    """Return the word for what the activation section amounts to; see the top of this module."""
    if activations is None:
        return "none"
    default, outputs = activations.default, activations.layer_outputs or activations.default
    actions = _actions(activations)
    if "auto" in actions:
        return "auto"
    if actions == {"save"}:
        return "save"
    if not activations.rules:
        if default == "recompute" and outputs != "recompute":
            return "recompute_layers" if outputs == "save" else "recompute_layers_offload"
        return "layers" if (default, outputs) == ("offload", "offload") else "rules"
    if (default, outputs) == ("save", "save") and len(activations.rules) == 1:
        return "layers" if _is_layer_rule(activations.rules[0]) else "rules"
    return "rules"


def _actions(activations: Activations | None) -> frozenset[str]:
    if activations is None:
        return frozenset()
    outputs = activations.layer_outputs or activations.default
    return frozenset({activations.default, outputs, *(rule.action for rule in activations.rules)})


def _is_layer_rule(rule: Rule) -> bool:
    only_layers = Match(layers=rule.match.layers)
    return rule.action == "offload" and rule.match == only_layers and _is_prefix(rule.match.layers)


def _is_prefix(layers: tuple[LayerRange, ...]) -> bool:
    return len(layers) == 1 and layers[0].start in (None, 0) and layers[0].step == 1 and not layers[0].outside


def _offloaded_layers(policy: Policy, num_layers: int | None) -> int | None:
    """Return how many first layers the activation section offloads whole, those that ``keep_last`` keeps left out."""
    if activation_form(policy.activations) != "layers":
        return None
    layers = policy.rules[0].match.layers if policy.rules else (LayerRange(),)
    first = _first_layers(layers, num_layers)
    if first is None or num_layers is None:
        return first
    return min(first, max(num_layers - policy.schedule.keep_last, 0))


def layer_shortfall(policy: Policy, num_layers: int) -> tuple[int, int] | None:
    """Return how many first layers the one rule names and how many are offloaded, where these are fewer."""
    offloaded = _offloaded_layers(policy, num_layers)
    if offloaded is None or policy.activations is None or not policy.activations.rules:
        return None
    layers = policy.activations.rules[0].match.layers
    stop = layers[0].stop
    named = stop if isinstance(stop, int) and stop > 0 else _first_layers(layers, num_layers)
    return (named, offloaded) if named is not None and offloaded < named else None


def _first_layers(layers: tuple[LayerRange, ...], num_layers: int | None) -> int | None:
    """Return N where ``layers`` are the first N; None where they are not, or N is not known."""
    if not _is_prefix(layers):
        return None
    only = layers[0]
    if only.single:
        return 1
    if num_layers is None:
        return only.stop if isinstance(only.stop, int) and only.stop > 0 else None
    return sum(only.contains(layer, num_layers) for layer in range(num_layers))
