from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.export.policy_values import activation_form, policy_values
from tests.export.policies import first_layers, policy


def rule(action: str = "offload", **match: Any) -> dict[str, Any]:
    return {"name": f"{action}-{len(match)}", "match": match or {"op": "matmul"}, "action": action}


@pytest.mark.parametrize(
    ("activations", "form"),
    [
        ({"default": "save"}, "save"),
        ({"default": "save", "rules": [rule("save")]}, "save"),
        ({"default": "recompute", "layer_outputs": "save"}, "recompute_layers"),
        ({"default": "recompute", "layer_outputs": "offload"}, "recompute_layers_offload"),
        ({"default": "recompute"}, "rules"),
        ({"default": "offload"}, "layers"),
        ({"default": "offload", "layer_outputs": "save"}, "rules"),
        ({"default": "save", "rules": [rule(layers=":16")]}, "layers"),
        ({"default": "save", "rules": [rule(layers="0")]}, "layers"),
        ({"default": "save", "rules": [rule(layers="25%:")]}, "rules"),
        ({"default": "save", "rules": [rule(layers="::2")]}, "rules"),
        ({"default": "save", "rules": [rule(layers=[":4", "8:"])]}, "rules"),
        ({"default": "save", "rules": [rule(layers=":16", op="matmul")]}, "rules"),
        ({"default": "recompute", "rules": [rule(layers=":16")]}, "rules"),
        ({"default": "save", "layer_outputs": "offload"}, "rules"),
        ({"default": "auto"}, "auto"),
        ({"default": "save", "rules": [rule("auto")]}, "auto"),
    ],
)
def test_the_activation_section_amounts_to_one_word(activations: dict[str, Any], form: str) -> None:
    assert activation_form(policy(activations=activations).policy.activations) == form


def test_no_activation_section_is_none() -> None:
    assert activation_form(policy(gradients={"offload": True}).policy.activations) == "none"


@pytest.mark.parametrize(
    ("layers", "schedule", "num_layers", "expected"),
    [
        (":16", {}, None, 16),
        (":16", {}, 32, 16),
        (":40", {}, 32, 31),  # the last layer is kept
        (":40", {"keep_last": 0}, 32, 32),
        (":50%", {}, 32, 16),
        (":50%", {}, None, None),
        (":-4", {}, 32, 28),
        (":-4", {}, None, None),
        ("0", {}, None, 1),
    ],
)
def test_the_first_layers_are_counted_where_their_number_is_known(
    layers: str, schedule: dict[str, int], num_layers: int | None, expected: int | None
) -> None:
    facts = {} if num_layers is None else {"num_layers": num_layers}
    values = policy_values(first_layers(layers, schedule=schedule).policy, facts)
    assert values.get("policy.activations.first_layers") == expected


def test_sections_that_are_left_out_offload_nothing() -> None:
    values = policy_values(policy(activations={"default": "save"}).policy, {})
    assert values["policy.optimizer_state.offload_fraction"] == 0
    assert values["policy.gradients.offload"] is values["policy.parameters.offload"] is False
    assert "policy.limits.budget" not in values
