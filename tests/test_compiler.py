from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.compiler import Decision, SavedActivation, compile_policy, load_policy
from offload_runtime.errors import PolicyError, RefusedError, UnreadableError
from offload_runtime.policy import Activations, Policy
from tests.activations import activation

HEAD = {"apiVersion": "offload/v1", "kind": "Policy", "name": "example"}
RULES = [
    {"name": "small", "match": {"bytes": {"max": "4KiB"}}, "action": "save", "must": True},
    {"name": "heavy", "match": {"op": "matmul"}, "action": "offload"},
    {"name": "early", "match": {"layers": ":50%"}, "action": "auto"},
]
DATA = HEAD | {"activations": {"default": "recompute", "layer_outputs": "save", "rules": RULES}}


@pytest.mark.parametrize(
    ("changes", "decision", "names"),
    [
        ({}, Decision("offload", False, "heavy", "rule"), ("heavy", "early")),
        ({"num_bytes": 4096}, Decision("save", True, "small", "rule"), ("small", "heavy", "early")),
        ({"op": "aten.add.Tensor", "op_class": "elementwise"}, Decision("auto", False, "early"), ("early",)),
        ({"op_class": "norm", "layer": 3}, Decision("recompute", False, None, "default"), ()),
        (
            {"op_class": "norm", "layer": 3, "crosses_layer": True},
            Decision("save", False, None, "layer_outputs"),
            (),
        ),
        ({"crosses_layer": True}, Decision("offload", False, "heavy"), ("heavy", "early")),
    ],
)
def test_the_first_match_decides_then_layer_outputs_then_the_default(
    changes: dict[str, Any], decision: Decision, names: tuple[str, ...]
) -> None:
    policy = load_policy(DATA)
    assert policy.decide(activation(**changes)) == decision
    assert policy.matches(activation(**changes)) == names


def test_without_layer_outputs_a_value_that_crosses_has_the_default() -> None:
    policy = load_policy(HEAD | {"activations": {"default": "offload"}})
    assert policy.decide(activation(crosses_layer=True)) == Decision("offload", source="default")


def test_a_policy_without_activations_leaves_them_to_torch() -> None:
    policy = load_policy(HEAD | {"gradients": {"offload": True}})
    assert policy.decide(activation()) == Decision("auto", source="default")


def test_a_relative_range_is_refused_where_the_number_of_layers_is_unknown() -> None:
    policy = load_policy(DATA)
    with pytest.raises(RefusedError) as caught:
        policy.decide(activation(op_class="norm", num_layers=None))
    (finding,) = caught.value.diagnostics
    assert finding.code == "POL170"
    assert "'early'" in finding.message
    assert finding.hint is not None
    assert 'options["model"]' in finding.hint


def test_a_compiled_policy_is_a_frozen_hashable_printable_value() -> None:
    policy, same = load_policy(DATA), load_policy(DATA)
    assert policy == same
    assert hash(policy) == hash(same)
    assert {policy: 1}[same] == 1
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(AttributeError):
        policy.hash = "other"  # type: ignore[misc]
    assert str(policy).startswith("apiVersion: offload/v1\nkind: Policy\nname: example\n")
    assert repr(policy).startswith("CompiledPolicy(policy=Policy(name='example'")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"limits": {"budget": "1GiB"}},
        {"schedule": {"defer": 2}},
        {"schedule": {"prefetch": 2}},
        {"schedule": {"keep_last": 0}},
        {"activations": {"default": "save", "layer_outputs": "save", "rules": RULES}},
        {"activations": {"default": "recompute", "layer_outputs": "save", "rules": RULES[:2]}},
        {"activations": {"default": "recompute", "rules": RULES}},
        {"activations": DATA["activations"] | {"layers_of": ["a.*"]}},  # type: ignore[operator]
        {"gradients": {"offload": True}},
        {"expect": {"moved": {"min": "1B"}}},
        {"requires": {"fact": "num_gpus", "is": 1}},
    ],
    ids=str,
)
def test_the_hash_changes_with_whatever_the_policy_means(change: dict[str, Any]) -> None:
    assert load_policy(DATA | change).hash != load_policy(DATA).hash


@pytest.mark.parametrize(
    "change",
    [{"summary": "Other words."}, {"limits": {"budget": "unlimited"}}, {"schedule": {"defer": 1}}],
    ids=str,
)
def test_the_hash_stays_where_the_meaning_does(change: dict[str, Any]) -> None:
    assert load_policy(DATA | change).hash == load_policy(DATA).hash


def test_the_hash_is_the_same_in_another_process() -> None:
    code = f"from offload_runtime.compiler import load_policy; print(load_policy({DATA!r}).hash)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == load_policy(DATA).hash


def test_a_policy_is_given_as_path_name_mapping_typed_value_or_itself(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("apiVersion: offload/v1\nkind: Policy\nname: example\nactivations: {default: auto}\n")
    by_path = load_policy(path)
    assert load_policy(str(path)) == by_path == load_policy(str(tmp_path))
    assert load_policy(HEAD | {"activations": {"default": "auto"}}) == by_path
    assert load_policy(Policy("example", activations=Activations("auto"))) == by_path
    assert load_policy(by_path) is by_path
    assert load_policy("sac-default").name == "sac-default"


def test_a_path_object_is_never_the_name_of_a_shipped_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_policy("balanced").name == "balanced"
    with pytest.raises(UnreadableError):
        load_policy(Path("balanced"))


def test_a_source_of_another_kind_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="a policy is a path, a name, a mapping or a callable, not a int"):
        load_policy(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overrides apply to"):
        load_policy(load_policy(DATA), overrides=["limits.budget=1GiB"])


def test_errors_carry_every_finding_and_one_exit_code() -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(HEAD | {"limits": {"budget": 5}, "activations": {"default": "ofload"}})
    assert [d.code for d in caught.value.diagnostics] == ["POL103", "POL104"]
    assert caught.value.exit_code == 1
    with pytest.raises(UnreadableError) as unreadable:
        load_policy("nowhere/policy.yaml")
    assert [d.code for d in unreadable.value.diagnostics] == ["YAML001"]
    assert unreadable.value.exit_code == 3


def test_warnings_do_not_stop_a_policy_and_stay_with_it() -> None:
    policy = load_policy(HEAD | {"limits": {"budget": "1GiB"}, "activations": {"default": "recompute"}})
    assert [(d.code, d.severity) for d in policy.warnings] == [("POL161", "warning")]


def test_contradictions_are_found_in_a_typed_policy_too() -> None:
    rule = load_policy(DATA).policy.rules[1]
    with pytest.raises(PolicyError) as caught:
        compile_policy(Policy("x", activations=Activations("save", rules=(rule, rule))))
    assert {d.code for d in caught.value.diagnostics} == {"POL127"}


# A Python callable in the place of a policy.


def keep_matmuls(saved: SavedActivation) -> str:
    return "offload" if saved.op_class == "matmul" else "recompute"


def test_a_callable_is_a_policy() -> None:
    policy = load_policy(keep_matmuls, overrides={"limits.budget": "1GiB", "schedule.defer": 8})  # type: ignore[arg-type]
    assert policy.name == "keep_matmuls"
    assert policy.decide(activation()) == Decision("offload", source="function")
    assert policy.decide(activation(op_class="norm")) == Decision("recompute", source="function")
    assert str(policy).startswith("# a Python callable decides each action, not default\napiVersion: ")
    assert (policy.policy.limits.budget, policy.policy.schedule.defer) == (2**30, 8)
    assert policy.matches(activation()) == ()


def test_a_callable_may_answer_with_a_whole_decision() -> None:
    decision = Decision("save", must=True, rule="mine")
    assert load_policy(lambda saved: decision).decide(activation()) == decision


@pytest.mark.parametrize("answer", ["keep", None, True, 1])
def test_a_callable_that_gives_no_action_is_named(answer: object) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(lambda saved: answer).decide(activation())  # type: ignore[arg-type,return-value]
    (finding,) = caught.value.diagnostics
    assert finding.code == "POL171"
    assert repr(answer) in finding.message


def no_argument() -> str:
    return "save"


def broken(saved: SavedActivation) -> str:
    raise KeyError(saved.op)


@pytest.mark.parametrize(("function", "kind"), [(no_argument, "TypeError"), (broken, "KeyError")])
def test_a_callable_that_raises_is_named_and_stays_the_cause(function: Any, kind: str) -> None:
    with pytest.raises(
        PolicyError, match=rf"POL171 policy function '{function.__name__}' raised {kind}"
    ) as raised:
        load_policy(function).decide(activation())
    assert type(raised.value.__cause__).__name__ == kind


def test_two_callables_never_share_a_hash_and_one_keeps_its_own() -> None:
    def make(action: str) -> Any:
        return lambda saved: action

    save, offload = make("save"), make("offload")
    assert load_policy(save).hash == load_policy(save).hash
    assert load_policy(save).hash != load_policy(offload).hash
    assert load_policy(partial(keep_matmuls)).hash != load_policy(partial(keep_matmuls)).hash


def test_torch_is_imported_for_none_of_this() -> None:
    code = (
        "import sys; from offload_runtime.compiler import load_policy; load_policy('balanced'); "
        "import offload_runtime.validate, offload_runtime.codes, offload_runtime.diagnostics; "
        "print([m for m in ('torch', 'numpy', 'jsonschema', 'rich', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
