"""extends: how bases are found, merged and blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offload_runtime.compiler import load_policy
from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.policy_loading import read_policy
from offload_runtime.units import parse_size

HEAD = "apiVersion: offload/v1\nkind: Policy\nname: {}\n"


def write(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(HEAD.format(name) + body)
    return path


def rule(name: str, op: str = "matmul", action: str = "save") -> str:
    return f"    - {{name: {name}, match: {{op: {op}}}, action: {action}}}\n"


def rules(*lines: str, default: str | None = "recompute") -> str:
    head = f"  default: {default}\n" if default else ""
    return f"activations:\n{head}  rules:\n{''.join(lines)}"


def failures(path: Path) -> list[Diagnostic]:
    with pytest.raises(OffloadError) as caught:
        load_policy(path)
    return list(caught.value.diagnostics)


def test_rules_are_own_then_the_last_bases_back_to_the_firsts(tmp_path: Path) -> None:
    write(tmp_path, "first", rules(rule("f1"), rule("f2", "norm")))
    write(tmp_path, "second", rules(rule("s1", "attention"), rule("s2", "loss")))
    child = write(
        tmp_path,
        "child",
        "extends: [./first.yaml, ./second.yaml]\n" + rules(rule("own", "view"), default=None),
    )
    policy = load_policy(child).policy
    assert [r.name for r in policy.rules] == ["own", "s1", "s2", "f1", "f2"]
    assert [r.inherited for r in policy.rules] == [False, True, True, True, True]


def test_a_rule_of_the_same_name_replaces_the_inherited_one_at_the_childs_position(tmp_path: Path) -> None:
    write(tmp_path, "base", rules(rule("a"), rule("b", "norm"), rule("c", "loss")))
    child = write(
        tmp_path,
        "child",
        "extends: [./base.yaml]\n" + rules(rule("c", "view", "offload"), rule("d", "copy"), default=None),
    )
    policy = load_policy(child).policy
    assert [(r.name, r.match.op, r.action) for r in policy.rules] == [
        ("c", ("view",), "offload"),
        ("d", ("copy",), "save"),
        ("a", ("matmul",), "save"),
        ("b", ("norm",), "save"),
    ]


def test_mappings_merge_by_key_and_lists_replace(tmp_path: Path) -> None:
    write(
        tmp_path,
        "base",
        "limits: {budget: 1GiB, host: 8GiB}\nschedule: {defer: 4, prefetch: 3}\n"
        "activations: {default: offload, layer_outputs: save, layers_of: [a.*, b.*]}\n"
        "optimizer_state: {offload_fraction: 0.5, overlap: true}\nexpect: {moved: {min: 1KiB}}\n",
    )
    child = write(
        tmp_path,
        "child",
        "extends: [./base.yaml]\nlimits: {budget: 2GiB}\nschedule: {defer: 1}\n"
        "activations: {layers_of: [c.*]}\n"
        "optimizer_state: {overlap: false}\nexpect: {moved: {max: 1MiB}}\n",
    )
    policy = load_policy(child).policy
    assert (policy.limits.budget, policy.limits.host) == (parse_size("2GiB"), parse_size("8GiB"))
    assert (policy.schedule.defer, policy.schedule.prefetch) == (1, 3)
    assert policy.activations is not None
    assert (policy.activations.default, policy.activations.layer_outputs) == ("offload", "save")
    assert [str(glob) for glob in policy.activations.layers_of or ()] == ["c.*"]
    assert policy.optimizer_state is not None
    assert (policy.optimizer_state.offload_fraction, policy.optimizer_state.overlap) == (0.5, False)
    assert policy.expect is not None
    assert policy.expect.moved is not None
    assert (policy.expect.moved.min, policy.expect.moved.max) == (1024, 1 << 20)


def test_the_last_base_wins_over_the_first(tmp_path: Path) -> None:
    write(tmp_path, "first", "limits: {budget: 1GiB, host: 1GiB}\nactivations: {default: offload}\n")
    write(tmp_path, "second", "limits: {budget: 2GiB}\nactivations: {default: auto}\n")
    child = write(tmp_path, "child", "extends: [./first.yaml, ./second.yaml]\nlimits: {budget: 0B}\n")
    policy = load_policy(child).policy
    assert (policy.limits.budget, policy.limits.host) == (0, 1 << 30)
    assert policy.activations is not None
    assert policy.activations.default == "auto"


def test_a_condition_is_one_value_and_replaces_the_inherited_one(tmp_path: Path) -> None:
    write(tmp_path, "base", "activations: {default: auto}\nrequires: {all: [{fact: num_gpus, is: 1}]}\n")
    child = write(tmp_path, "child", "extends: [./base.yaml]\nrequires: {any: [{fact: num_layers, is: 2}]}\n")
    assert "any: [{fact: num_layers, is: 2}]" in str(load_policy(child))
    assert "all" not in str(load_policy(child))


def test_name_and_summary_are_not_inherited(tmp_path: Path) -> None:
    write(tmp_path, "base", "summary: Of the base.\nactivations: {default: auto}\n")
    policy = load_policy(write(tmp_path, "child", "extends: [./base.yaml]\n")).policy
    assert (policy.name, policy.summary, policy.extends) == ("child", "", ("./base.yaml",))


def test_a_base_may_be_a_fragment_but_the_whole_must_be_complete(tmp_path: Path) -> None:
    write(tmp_path, "fragment", "activations: {layer_outputs: save}\n")
    child = write(tmp_path, "child", "extends: [./fragment.yaml]\nactivations: {default: auto}\n")
    assert load_policy(child).policy.activations is not None
    empty = write(tmp_path, "empty", "extends: [./fragment.yaml]\n")
    assert [(d.code, d.file) for d in failures(empty)] == [("POL132", str(tmp_path / "fragment.yaml"))]


def test_a_diamond_of_bases_is_no_cycle(tmp_path: Path) -> None:
    write(tmp_path, "root", rules(rule("r")))
    write(tmp_path, "left", "extends: [./root.yaml]\n" + rules(rule("l", "norm"), default=None))
    write(tmp_path, "right", "extends: [./root.yaml]\n" + rules(rule("q", "loss"), default=None))
    child = write(tmp_path, "child", "extends: [./left.yaml, ./right.yaml]\n")
    assert [r.name for r in load_policy(child).policy.rules] == ["q", "r", "l"]


def test_a_cycle_is_an_error_at_the_clause_that_closes_it(tmp_path: Path) -> None:
    write(tmp_path, "a", "extends: [./b.yaml]\nactivations: {default: auto}\n")
    write(tmp_path, "b", "extends: [./a.yaml]\n")
    found = failures(tmp_path / "a.yaml")
    assert [(d.code, d.file, d.line) for d in found] == [("POL141", str(tmp_path / "b.yaml"), 4)]


def test_a_finding_in_a_base_names_the_base(tmp_path: Path) -> None:
    write(tmp_path, "base", "limits: {budget: 5}\nactivations: {default: offload}\n")
    child = write(tmp_path, "child", "extends: [./base.yaml]\nlimits: {budget: 1GiB}\n")
    assert [(d.code, d.file, d.line, d.column) for d in failures(child)] == [
        ("POL104", str(tmp_path / "base.yaml"), 4, 18)
    ]


def test_a_base_that_cannot_be_parsed_is_named_in_both_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("a: [")
    child = write(tmp_path, "child", "extends: [./base.yaml]\nactivations: {default: auto}\n")
    assert [(d.code, Path(d.file or "").name) for d in failures(child)] == [
        ("YAML010", "base.yaml"),
        ("POL140", "child.yaml"),
    ]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", "root", "activations: {default: auto}\n")
    write(tmp_path / "shared", "base", "extends: [root.yaml]\n")
    (tmp_path / "own").mkdir()
    child = write(tmp_path / "own", "child", "extends: [../shared/base.yaml]\n")
    assert load_policy(child).policy.activations is not None


def test_a_misspelt_base_is_told_the_closest_name() -> None:
    data = {"apiVersion": "offload/v1", "kind": "Policy", "name": "x", "extends": ["sac-defualt"]}
    (finding,) = read_policy(data).diagnostics
    assert (finding.code, finding.hint) == ("POL140", "did you mean sac-default?")


def test_unreachable_is_judged_within_a_file_only(tmp_path: Path) -> None:
    write(tmp_path, "base", rules(rule("wide"), rule("other", "norm")))
    shadowing = "extends: [./base.yaml]\n" + rules(rule("mine"), default=None)
    assert load_policy(write(tmp_path, "child", shadowing)).warnings == ()
    same_file = write(tmp_path, "same", rules(rule("wide"), rule("narrow", "aten.mm.default")))
    assert [d.code for d in failures(same_file)] == ["POL127"]


def test_rule_names_are_unique_in_data_as_in_a_file() -> None:
    twice = [{"name": "a", "match": {"op": op}, "action": "save"} for op in ("matmul", "norm")]
    head = {"apiVersion": "offload/v1", "kind": "Policy", "name": "x"}
    reading = read_policy(head | {"activations": {"default": "auto", "rules": twice}})
    assert [d.code for d in reading.diagnostics] == ["POL122"]


def test_bases_nested_without_end_are_refused(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path, f"p{number}", f"extends: [./p{number + 1}.yaml]\nactivations: {{default: auto}}\n")
    assert {d.code for d in failures(tmp_path / "p0.yaml")} == {"POL141"}


@pytest.mark.parametrize(
    "value", [None, float("nan"), {1, 2}, {1: 2}, object()], ids=["None", "nan", "set", "key", "object"]
)
def test_data_that_no_file_could_hold_is_refused(value: Any) -> None:
    data = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "x",
        "activations": {"default": "auto"},
        "limits": value,
    }
    assert {d.code for d in read_policy(data).diagnostics} <= {"YAML034", "YAML035", "YAML036", "YAML021"}
    assert read_policy(data).diagnostics


def test_text_that_no_file_could_hold_is_refused() -> None:
    head = {"apiVersion": "offload/v1", "kind": "Policy", "name": "x", "activations": {"default": "auto"}}
    assert [d.code for d in read_policy(head | {"summary": "a\ud800"}).diagnostics] == ["YAML012"]
    assert [d.code for d in read_policy(head | {"a\udfff": 1}).diagnostics] == ["YAML021"]


def test_data_nested_without_end_is_refused_too() -> None:
    data: dict[str, Any] = {}
    data["limits"] = data
    assert [d.code for d in read_policy(data).diagnostics] == ["YAML005"]
