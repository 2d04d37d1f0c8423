from __future__ import annotations

import re

import pytest

from offload_runtime.errors import PolicyError, UnreadableError
from offload_runtime.policy import Policy
from offload_runtime.policy_loading import read_policy
from offload_runtime.scaffold.policy import PolicyWishes, write_policy
from offload_runtime.shipped import shipped_policies
from offload_runtime.strict_yaml import read_yaml

WISHES = {
    "nothing": PolicyWishes("mine"),
    "a budget": PolicyWishes("mine", budget="8GiB", host="64GiB"),
    "operators": PolicyWishes("mine", ops=("matmul", "aten.mm.default"), layers=":75%"),
    "a mixture of experts": PolicyWishes("mine", moe=True, budget="1GB"),
    "a target": PolicyWishes("mine", device_peak="40GiB"),
    "a target with experts": PolicyWishes("mine", device_peak="auto", moe=True),
    "a target with operators and experts": PolicyWishes("m", step_overhead="5%", ops=("norm",), moe=True),
    "every number": PolicyWishes("mine", defer="auto", prefetch="2", keep_last="0"),
    "a preset with a target": PolicyWishes("mine", preset="balanced", device_peak="40GiB"),
    "a preset with operators": PolicyWishes("mine", preset="moe", ops=("attention",), moe=True),
    "a text that YAML reads otherwise": PolicyWishes("010", summary='yes: "no" # x'),
    "a name that is a boolean to some": PolicyWishes("yes"),
    **{f"preset {name}": PolicyWishes("mine", preset=name) for name in shipped_policies()},
}


def written(wishes: PolicyWishes) -> str:
    text, findings = write_policy(wishes)
    assert findings == ()
    return text


def policy_of(text: str) -> Policy:
    reading = read_policy(read_yaml(text, None))
    assert [finding for finding in reading.diagnostics if finding.is_error] == []
    assert reading.policy is not None
    return reading.policy


@pytest.mark.parametrize("wishes", WISHES.values(), ids=list(WISHES))
def test_a_written_policy_is_valid_and_each_clause_says_what_it_does(wishes: PolicyWishes) -> None:
    text = written(wishes)
    policy = policy_of(text)
    assert policy.name == wishes.name
    assert wishes.summary is None or policy.summary == wishes.summary
    keys = "budget|host|device_peak|step_overhead|defer|prefetch|keep_last"
    clauses = re.findall(rf"^[# ]+(?:{keys}): (.*)", text, re.MULTILINE)
    assert len(clauses) >= 5
    assert all(re.fullmatch(r"\S+ # \S.*", clause) for clause in clauses)


@pytest.mark.parametrize("wishes", WISHES.values(), ids=list(WISHES))
def test_what_stands_as_a_comment_can_be_used_by_taking_the_comment_sign_away(wishes: PolicyWishes) -> None:
    lines = written(wishes).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("apiVersion"))
    used = [re.sub(r"^(\s*)# ?( *)(\S)", r"\1\2\3", line) for line in lines[head:]]
    used = [line for line in used if not line.startswith("Rules are those of")]
    planned = "  select: planned" in "\n".join(used)
    assert policy_of("\n".join(used) + "\n").schedule.select == ("planned" if planned else "largest_first")


def test_wishes_arrive_in_the_policy() -> None:
    policy = policy_of(written(WISHES["operators"]))
    heavy = policy.rules[0]
    assert (heavy.action, heavy.match.op, str(heavy.match.layers[0])) == (
        "offload",
        ("matmul", "aten.mm.default"),
        ":75%",
    )
    assert policy.activations is not None
    assert policy.activations.layer_outputs == "save", (
        "operators were named, and layer outputs are none of them"
    )
    budget = policy_of(written(WISHES["a budget"]))
    assert (budget.limits.budget, budget.schedule.defer) == (8 * 2**30, 8)
    experts = policy_of(written(WISHES["a mixture of experts"]))
    assert experts.schedule.defer == 1


def test_a_target_lets_the_planner_choose_and_keeps_routing() -> None:
    policy = policy_of(written(WISHES["a target with experts"]))
    assert policy.activations is not None
    assert (policy.schedule.select, policy.activations.default) == ("planned", "auto")
    assert [(rule.name, rule.action, rule.must) for rule in policy.rules] == [("routing", "save", True)]


@pytest.mark.parametrize(
    ("wishes", "code", "shown"),
    [
        (PolicyWishes("mine", budget="5"), "POL104", "limits.budget: 5 is not a size"),
        (PolicyWishes("mine", ops=("matmull",)), "POL120", "did you mean matmul?"),
        (PolicyWishes("my policy"), "POL108", "did you mean my-policy?"),
        (PolicyWishes("mine", defer="soon"), "POL109", "schedule.defer"),
        (PolicyWishes("mine", layers="5:3"), "POL106", "5:3"),
        (PolicyWishes("mine", budget="5GB\nkind: Card"), "POL104", "limits.budget"),
    ],
)
def test_a_wish_that_no_policy_can_have_is_refused_by_its_name(
    wishes: PolicyWishes, code: str, shown: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        write_policy(wishes)
    assert {finding.code for finding in caught.value.diagnostics} == {code}
    assert shown in str(caught.value)
    assert all(finding.line is None for finding in caught.value.diagnostics)


def test_an_unknown_preset_is_told_the_closest() -> None:
    with pytest.raises(UnreadableError, match="did you mean balanced"):
        write_policy(PolicyWishes("mine", preset="balansed"))


def test_a_long_defer_for_experts_is_warned_about() -> None:
    _, findings = write_policy(PolicyWishes("mine", preset="moe", defer="8", moe=True))
    assert [(finding.code, finding.severity) for finding in findings] == [("POL160", "warning")]


def test_two_limits_are_told_as_one_aim() -> None:
    both = written(PolicyWishes("mine", device_peak="40GiB", step_overhead="5%"))
    assert "device_peak: 40GiB # the least predicted time within it" in both
    assert "step_overhead: 5% # and at most this much more time" in both
    assert "least peak" not in both
    assert "step_overhead: 5% # the least peak for" in written(PolicyWishes("mine", step_overhead="5%"))
