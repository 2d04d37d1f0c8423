"""A policy that is accepted must do something (CASES 17, 18, 22)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offload_runtime.compiler import SavedActivation, judge_matches, load_policy
from offload_runtime.errors import Diagnostic
from offload_runtime.judgement import judge_layers
from tests.activations import activation, in_layer

HEAD = {"apiVersion": "offload/v1", "kind": "Policy", "name": "example"}
FOUR_LAYERS = [in_layer(layer) for layer in range(4)]
HEAVY = {"name": "heavy", "match": {"op": "matmul"}, "action": "offload"}


def judge(*rules: dict[str, Any], given: list[SavedActivation], **sections: Any) -> tuple[Diagnostic, ...]:
    data = HEAD | {"activations": {"default": "recompute", "rules": list(rules)}} | sections
    return judge_matches(load_policy(data), given)


def test_a_rule_that_matches_is_not_complained_about() -> None:
    assert judge(HEAVY, given=FOUR_LAYERS) == ()


@pytest.mark.parametrize(
    ("match", "was_there"),
    [
        ({"op": "attention"}, "op: matmul 4 (aten.mm.default 4)"),
        ({"module": "**.atention.**"}, "module: layers.0.attention.wq 1, layers.1.attention.wq 1"),
        ({"inside": "attention.wk"}, "inside: attention.wq 4"),
        ({"layers": "7"}, "layers: layers 0-3"),
        ({"bytes": {"min": "1GiB"}}, "bytes: 1048576 to 1048576 bytes"),
        ({"dtype": "float32"}, "dtype: bfloat16 4"),
        ({"op": "matmul", "dtype": "float32"}, "dtype: bfloat16 4"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error_that_lists_what_was_there(
    match: dict[str, Any], was_there: str
) -> None:
    (finding,) = judge({"name": "a", "match": match, "action": "save"}, given=FOUR_LAYERS)
    assert (finding.code, finding.severity) == ("POL180", "error")
    assert f"4 tensors were there, with {was_there}" in finding.message
    assert finding.hint == "correct the rule, or write optional: true if it may match nothing"


def test_the_key_that_fits_nothing_is_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "apiVersion: offload/v1\nkind: Policy\nname: example\nactivations:\n  default: recompute\n  rules:\n"
        "    - name: a\n      match:\n        op: [matmul, norm]\n        not: {op: matmul}\n        dtype: float32\n"
        "      action: save\n"
    )
    policy = load_policy(path)
    (finding,) = judge_matches(policy, FOUR_LAYERS)
    assert (finding.line, finding.column) == (11, 9)
    (finding,) = judge_matches(policy, [activation(dtype="float32")])
    assert (finding.line, finding.column) == (10, 9), "products are what the not: takes away"


def test_keys_that_never_fit_together_are_told_apart_from_keys_that_fit_nothing() -> None:
    given = [activation(), activation(op="aten.add.Tensor", op_class="elementwise", dtype="float32")]
    (finding,) = judge(
        {"name": "a", "match": {"op": "matmul", "dtype": "float32"}, "action": "save"}, given=given
    )
    assert "of 2 tensors each key alone matches some (op 1, dtype 1)" in finding.message


def test_a_model_without_activations_is_named_as_the_reason() -> None:
    (finding,) = judge(HEAVY, given=[])
    assert "the model saves no activations" in finding.message


def test_an_optional_rule_may_match_nothing() -> None:
    assert (
        judge({"name": "a", "match": {"op": "norm"}, "action": "save", "optional": True}, given=FOUR_LAYERS)
        == ()
    )


def test_an_inherited_rule_may_match_nothing_or_be_shadowed() -> None:
    policy = load_policy(
        HEAD | {"extends": ["sac-default"], "activations": {"rules": [HEAVY | {"name": "own"}]}}
    )
    assert judge_matches(policy, FOUR_LAYERS) == ()


def test_one_of_four_layers_with_expect_four_is_an_error() -> None:
    rule = HEAVY | {"expect": {"layers": {"min": 4, "max": 4}}}
    given = [in_layer(0), *(in_layer(i, op="aten.add.Tensor", op_class="elementwise") for i in (1, 2, 3))]
    (finding,) = judge(rule, given=given)
    assert finding.code == "POL182"
    assert finding.message == "rule 'heavy' matches in 1 layer, expected exactly 4"
    assert finding.hint == "it matches in layers 0; the model has layers 0-3"


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min": 5}, "matches 4 tensors, expected at least 5"),
        ({"max": 3}, "matches 4 tensors, expected at least 1 and at most 3"),
        ({"max": 0}, "matches 4 tensors, expected exactly 0"),
    ],
)
def test_expect_matches_bounds_the_number_of_tensors(bounds: dict[str, int], message: str) -> None:
    (finding,) = judge(HEAVY | {"expect": {"matches": bounds}}, given=FOUR_LAYERS)
    assert finding.code == "POL181"
    assert message in finding.message


def test_matches_are_counted_before_the_first_match_wins() -> None:
    first = {"name": "first", "match": {"layers": ":2"}, "action": "save"}
    assert judge(first, HEAVY | {"expect": {"matches": {"min": 4}}}, given=FOUR_LAYERS) == ()


def test_a_rule_that_decides_nothing_is_a_warning_that_names_the_shadower() -> None:
    first = {"name": "first", "match": {"module": "layers.**"}, "action": "save"}
    (finding,) = judge(first, HEAVY, given=FOUR_LAYERS)
    assert (finding.code, finding.severity) == ("POL183", "warning")
    assert finding.message == "rule 'heavy' matches 4 tensors and decides none: shadowed by 'first' (4)"


@pytest.mark.parametrize(("defer", "codes"), [(1, []), (2, []), (3, ["POL160"]), (8, ["POL160"])])
def test_a_model_that_routes_is_warned_about_a_long_defer(defer: int, codes: list[str]) -> None:
    routed = [*FOUR_LAYERS, activation(op="aten.topk.default", op_class="routing")]
    found = judge(HEAVY, given=routed, schedule={"defer": defer})
    assert [finding.code for finding in found] == codes
    assert judge(HEAVY, given=FOUR_LAYERS, schedule={"defer": defer}) == ()


def test_a_finding_points_at_the_rule_in_its_file(tmp_path: Any) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "apiVersion: offload/v1\nkind: Policy\nname: x\nactivations:\n  default: save\n  rules:\n"
        "    - name: a\n      match: {op: norm}\n      action: save\n"
    )
    (finding,) = judge_matches(load_policy(path), FOUR_LAYERS)
    assert (finding.file, finding.line, finding.column) == (str(path), 8, 15)


@pytest.mark.parametrize(
    ("layers_of", "has_layers", "codes"),
    [(["blocks.*"], False, ["GRF312"]), (["blocks.*"], True, []), ("auto", False, [])],
)
def test_patterns_of_layers_that_name_no_module_are_an_error(
    layers_of: object, has_layers: bool, codes: list[str]
) -> None:
    data = HEAD | {"activations": {"default": "save", "layers_of": layers_of, "rules": [HEAVY]}}
    findings = judge_layers(load_policy(data).policy, FOUR_LAYERS, has_layers=has_layers)
    assert [finding.code for finding in findings] == codes
    assert all("layers.0.attention.wq" in (finding.hint or "") for finding in findings)
