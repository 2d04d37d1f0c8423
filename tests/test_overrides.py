from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.compiler import load_policy
from offload_runtime.errors import OffloadError
from offload_runtime.policy_text import policy_data

DATA = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "example",
    "extends": ["sac-default"],
    "limits": {"budget": "1GiB"},
    "activations": {"rules": [{"name": "heavy", "match": {"op": "matmul"}, "action": "offload"}]},
}


def changed(*overrides: str) -> dict[str, Any]:
    return policy_data(load_policy(DATA, overrides=overrides).policy)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("limits.budget=8GiB", "limits", "budget", "8GiB"),
        ("limits.host=64GB", "limits", "host", "64GB"),
        ("schedule.defer=auto", "schedule", "defer", "auto"),
        ("schedule={defer: 3, keep_last: 0}", "schedule", "keep_last", 0),
        ("activations.default=save", "activations", "default", "save"),
        ("activations.layers_of=[a.*]", "activations", "layers_of", ["a.*"]),
        ("gradients.offload=true", "gradients", "offload", True),
        ("limits.budget= 8GiB", "limits", "budget", "8GiB"),
    ],
)
def test_an_override_sets_a_value_or_makes_the_section(
    override: str, section: str, key: str, value: Any
) -> None:
    assert changed(override)[section][key] == value


def test_a_rule_is_named_in_brackets_or_counted_inherited_ones_too() -> None:
    by_name = changed("activations.rules[heavy].action=save", "activations.rules[routing].must=false")
    rules = {rule["name"]: rule for rule in by_name["activations"]["rules"]}
    assert rules["heavy"]["action"] == "save"
    assert "must" not in rules["routing"]
    assert changed("activations.rules[0].action=save")["activations"]["rules"][0]["action"] == "save"
    assert changed("activations.rules.heavy.action=save")["activations"]["rules"][0]["action"] == "save"


def test_later_overrides_win() -> None:
    assert changed("limits.budget=8GiB", "limits.budget=0B")["limits"]["budget"] == "0B"


def test_a_mapping_of_overrides_takes_values_as_they_are() -> None:
    policy = load_policy(
        DATA, overrides={"schedule.defer": 8, "limits.budget": "2GiB", "gradients": {"offload": True}}
    )
    assert (policy.policy.schedule.defer, policy.policy.limits.budget) == (8, 2**31)
    assert policy.policy.gradients is not None


@pytest.mark.parametrize(
    ("override", "finding"),
    [
        ("limits.budget=8", "POL104 1:15 limits.budget"),
        ("limits.bugdet=8GiB", "POL100 1:1 limits.bugdet"),
        ("limts.budget=8GiB", "POL100 1:1 limts"),
        ("limits.budget=", "YAML034 1:15 limits.budget"),
        ("schedule.defer=yes", "YAML030 1:16 schedule.defer"),
        ("schedule.defer=010", "YAML031 1:16 schedule.defer"),
        ("schedule.defer=[1", "YAML010 1:18 schedule.defer"),
        ("activations.rules[hevy].action=save", "POL150 1:1 None"),
        ("activations.rules[9].action=save", "POL150 1:1 None"),
        ("name.x=1", "POL150 1:1 None"),
        ("limits.budget", "POL150 1:1 None"),
        ("=8GiB", "POL150 1:1 None"),
        ("limits..budget=8GiB", "POL150 1:1 None"),
        ("extends=[balanced]", "POL150 1:1 None"),
        ("kind=PolicyTest", "POL150 1:1 None"),
        ("activations.rules[heavy].match.op=matmull", "POL120 1:35 activations.rules[heavy].match.op"),
        ("activations.rules[heavy].must=5", "POL102 1:31 activations.rules[heavy].must"),
    ],
)
def test_an_override_is_checked_like_the_file_and_blamed_by_its_own_place(
    override: str, finding: str
) -> None:
    with pytest.raises(OffloadError) as caught:
        load_policy(DATA, overrides=[override])
    found = [f"{d.code} {d.line}:{d.column} {d.path}" for d in caught.value.diagnostics]
    assert found == [finding]
    assert {d.file for d in caught.value.diagnostics} == {"--set"}


@pytest.mark.parametrize("step", ["[0]", "[heavy]", ".heavy"])
def test_a_member_of_a_list_that_is_not_there_cannot_be_set(step: str) -> None:
    data = {key: DATA[key] for key in ("apiVersion", "kind", "name")}
    data["activations"] = {"default": "save"}
    with pytest.raises(OffloadError) as caught:
        load_policy(data, overrides=[f"activations.rules{step}.action=save"])
    (finding,) = caught.value.diagnostics
    assert finding.code == "POL150"
    assert "there is nothing at" in finding.message


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"limits": 3}, "limits"),
        ({"activations": [1]}, "activations"),
        ({"schedule": {"defr": 1}}, "schedule.defr"),
    ],
)
def test_a_value_in_place_of_a_section_is_blamed_by_its_path(overrides: dict[str, Any], path: str) -> None:
    with pytest.raises(OffloadError) as caught:
        load_policy(DATA, overrides=overrides)
    assert path in [finding.path for finding in caught.value.diagnostics]


def test_the_line_of_a_finding_is_the_number_of_the_override() -> None:
    with pytest.raises(OffloadError) as caught:
        load_policy(DATA, overrides=["limits.budget=8GiB", "schedule.defer=-1"])
    assert [(d.code, d.line) for d in caught.value.diagnostics] == [("POL109", 2)]


def test_one_text_instead_of_a_list_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="overrides is a list"):
        load_policy(DATA, overrides="limits.budget=8GiB")


def test_an_override_may_complete_a_policy() -> None:
    data = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "x",
        "activations": {"layer_outputs": "save"},
    }
    policy = load_policy(data, overrides=["activations.default=auto"]).policy
    assert policy.activations is not None
    assert policy.activations.default == "auto"


@pytest.mark.parametrize(
    "path", [f"a{'.b' * 2000}", f"activations.rules[{'9' * 5000}].action"], ids=["deep", "far"]
)
def test_a_path_of_no_end_is_no_override(path: str) -> None:
    with pytest.raises(OffloadError) as caught:
        load_policy(DATA, overrides=[f"{path}=save"])
    (finding,) = caught.value.diagnostics
    assert finding.code == "POL150"
    assert len(finding.message) < 600
