from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.policy_tests import PolicyTestResult, run_policy_tests
from offload_runtime.shipped import shipped_policies

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: mine
activations:
  default: recompute
  layer_outputs: save
  rules:
    - name: first-layers
      match: {op: [matmul, aten.add.Tensor], layers: ":50%", bytes: {min: 4KiB}}
      action: offload
    - name: projections
      match: {module: "**.*_proj", layout: dense, dtype: bfloat16}
      action: save
      must: true
    - name: inner
      match: {inside: "mlp.**"}
      action: auto
"""
TEST = "apiVersion: offload/v1\nkind: PolicyTest\npolicy: policy.yaml\ncases:\n"


def run(tmp_path: Path, *cases: str, policy: str = POLICY) -> PolicyTestResult:
    (tmp_path / "policy.yaml").write_text(policy)
    lines = [f"  - name: case {n}\n    {case}\n" for n, case in enumerate(cases, start=1)]
    (tmp_path / "cases.yaml").write_text(TEST + "".join(lines))
    return run_policy_tests(str(tmp_path / "cases.yaml"))


def case(given: str, expect: str) -> str:
    return f"given: {{{given}}}\n    expect: {{{expect}}}"


WHOLE = "layer: 3, num_layers: 4, bytes: 1MiB, dtype: bfloat16, layout: dense, module: layers.3.mlp.w1"


@pytest.mark.parametrize(
    ("given", "expect"),
    [
        ("op: matmul, layer: 1, num_layers: 4, bytes: 4KiB", "action: offload, rule: first-layers"),
        ("op: aten.mm.default, layer: 1, num_layers: 4, bytes: 4KiB", "action: offload, must: false"),
        (
            "op: norm, module: a.q_proj, layout: contiguous, dtype: bfloat16",
            "action: save, rule: projections, must: true",
        ),
        ("op: norm, layer: 3, num_layers: 4, module: layers.3.mlp.act", "action: auto, rule: inner"),
        ("op: norm, layer: outside, module: head", "action: recompute, rule: default"),
        ("op: norm, layer: outside, module: '', crosses_layer: true", "action: save, rule: layer_outputs"),
        (f"op: matmul, {WHOLE}", "action: auto, rule: inner"),
        (f"op: mylib.gemm.default, {WHOLE}", "action: auto"),
    ],
)
def test_a_case_that_says_what_matters_passes(tmp_path: Path, given: str, expect: str) -> None:
    result = run(tmp_path, case(given, expect))
    assert [str(d) for d in result.all_diagnostics] == []
    assert (result.policy, result.num_passed, result.num_failed) == ("mine", 1, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("op: matmul", "leaves layer open, on which rule 'first-layers' hangs"),
        ("op: matmul, layer: 1", "leaves num_layers open, on which rule 'first-layers' hangs"),
        ("op: matmul, layer: 1, num_layers: 4", "leaves bytes open, on which rule 'first-layers' hangs"),
        ("op: elementwise", "leaves op open, on which rule 'first-layers' hangs"),
        ("op: norm", "leaves module open, on which rule 'projections' hangs"),
        ("op: norm, module: a.q_proj", "leaves layout open, on which rule 'projections' hangs"),
        ("op: norm, module: a.q_proj, layout: dense", "leaves dtype open, on which rule 'projections' hangs"),
        ("op: norm, module: a.b", "leaves module open, on which rule 'inner' hangs"),
    ],
)
def test_a_case_that_leaves_open_what_matters_fails(tmp_path: Path, given: str, message: str) -> None:
    result = run(tmp_path, case(given, "action: recompute"))
    (finding,) = result.all_diagnostics
    assert finding.code == "PTS202"
    assert message in finding.message


def test_a_wrong_expectation_says_what_was_decided_and_where(tmp_path: Path) -> None:
    given = "op: norm, module: a.q_proj, layout: dense, dtype: bfloat16"
    result = run(tmp_path, case(given, "action: offload, rule: inner, must: false"))
    (finding,) = result.all_diagnostics
    assert finding.code == "PTS201"
    assert finding.message == (
        "case 'case 1': action save, expected offload; decided by projections, expected inner; "
        "must true, expected false"
    )
    assert (finding.file, finding.line, finding.column) == (str(tmp_path / "cases.yaml"), 7, 5)
    assert (result.num_passed, result.num_failed) == (0, 1)


def test_coverage_counts_the_rules_that_decided_a_passing_case(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        case("op: matmul, layer: 1, num_layers: 4, bytes: 4KiB", "action: offload"),
        case("op: norm, module: a.q_proj, layout: dense, dtype: bfloat16", "action: offload"),
    )
    assert (result.num_passed, result.num_failed) == (1, 1)
    assert result.rules == ("first-layers", "projections", "inner")
    assert result.covered == ("first-layers",)
    assert result.uncovered == ("projections", "inner")
    assert result.rule_coverage == pytest.approx(1 / 3)


def test_a_policy_without_rules_is_covered(tmp_path: Path) -> None:
    policy = "apiVersion: offload/v1\nkind: Policy\nname: x\nactivations: {default: save}\n"
    result = run(tmp_path, case("op: matmul", "action: save, rule: default"), policy=policy)
    assert (result.num_passed, result.rule_coverage) == (1, 1.0)


def test_inherited_rules_count_unless_a_rule_of_the_child_hides_them_whole(tmp_path: Path) -> None:
    policy = (
        "apiVersion: offload/v1\nkind: Policy\nname: x\nextends: [sac-default]\nactivations:\n  rules:\n"
        "    - {name: all-routing, match: {op: [routing, reduction]}, action: save}\n"
    )
    result = run(tmp_path, case("op: matmul", "action: save"), policy=policy)
    assert result.rules == ("all-routing", "compute", "communication")
    assert result.covered == ("compute",)


def test_a_policy_with_findings_is_not_tested(tmp_path: Path) -> None:
    result = run(
        tmp_path, case("op: matmul", "action: save"), policy=POLICY.replace("action: auto", "action: keep")
    )
    assert result.policy is None
    assert result.cases == ()
    assert {d.code for d in result.all_diagnostics} == {"PTS204", "POL103"}


def test_a_test_is_named_by_its_file_its_folder_or_its_policy(tmp_path: Path) -> None:
    run(tmp_path, case("op: norm, layer: outside, module: head", "action: recompute"))
    for reference in (tmp_path, tmp_path / "cases.yaml", tmp_path / "policy.yaml"):
        result = run_policy_tests(str(reference))
        assert (result.file, result.num_passed) == (str(tmp_path / "cases.yaml"), 1)


def test_a_missing_test_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert [d.code for d in run_policy_tests(str(tmp_path)).all_diagnostics] == ["YAML001"]


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_is_tested_rule_by_rule(name: str) -> None:
    result = run_policy_tests(name)
    assert [str(d) for d in result.all_diagnostics] == []
    assert result.num_passed > 0
    assert result.uncovered == ()
