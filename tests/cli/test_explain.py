import json
import os
from pathlib import Path

import pytest

from offload_runtime.cli import run
from tests.cli.conftest import Offload

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: wide
summary: Offload the wide products, save the narrow ones.
schedule: {keep_last: 1}
activations:
  default: recompute
  rules:
    - {name: wide, match: {op: matmul, bytes: {min: 8KiB}}, action: offload}
    - {name: narrow, match: {op: matmul}, action: save, optional: true}
"""
MODEL = ("--model", "tests.cli.small_models:stack")
KEYS = {"name", "op", "op_class", "module", "layer", "num_bytes", "fate", "rule", "reason"}


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Return the path of a policy that offloads the first product of each block but the last."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def test_every_tensor_has_a_fate_a_rule_and_a_reason(offload: Offload, policy: str) -> None:
    finished = offload("explain", policy, *MODEL, "--format", "json")
    assert finished.exit_code == 0
    data = finished.document["data"]
    assert all(set(tensor) >= KEYS for tensor in data["tensors"])
    assert {tensor["fate"] for tensor in data["tensors"]} <= {"save", "recompute", "offload", "skip"}
    assert all(tensor["reason"] for tensor in data["tensors"])
    offloaded = [tensor for tensor in data["tensors"] if tensor["fate"] == "offload"]
    assert [(t["layer"], t["module"], t["op_class"], t["num_bytes"], t["rule"]) for t in offloaded] == [
        (0, "layers.0.up", "matmul", 32 * 64 * 4, "wide"),
        (1, "layers.1.up", "matmul", 32 * 64 * 4, "wide"),
    ]
    assert data["planned_bytes"] == sum(tensor["moved_bytes"] for tensor in offloaded) == 2 * 32 * 64 * 4
    assert [(row["layer"], row["module"]) for row in data["layers"]] == [
        (0, "layers.0"),
        (1, "layers.1"),
        (2, "layers.2"),
    ]


@pytest.mark.parametrize(
    ("by", "title"),
    [("rule", "rule     fate"), ("layer", "layer    fate"), ("tensor", "tensor    op")],
)
def test_each_grouping_has_its_table_under_the_summary(
    offload: Offload, policy: str, by: str, title: str
) -> None:
    finished = offload("explain", policy, *MODEL, "--by", by)
    assert finished.exit_code == 0
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("wide on tests.cli.small_models:stack, mode graph: 2 of ")
    assert lines[0].endswith(" activations offloaded, 16 KiB each step, 1 graph")
    first_words = title.split()
    assert any(line.split()[: len(first_words)] == first_words for line in lines)
    assert finished.stderr == f"next: offload apply {policy} --model tests.cli.small_models:stack\n"


def test_an_override_changes_what_is_decided(offload: Offload, policy: str) -> None:
    finished = offload(
        "explain", policy, *MODEL, "--seed", "3", "--set", "limits.budget=8KiB", "--format", "json"
    )
    assert finished.document["data"]["planned_bytes"] == 32 * 64 * 4
    (following,) = finished.document["next"]
    assert following.endswith("--model tests.cli.small_models:stack --seed 3 --set limits.budget=8KiB")


def test_a_rule_that_matches_nothing_fails_and_points_at_the_rule(offload: Offload, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("op: matmul, bytes", "op: attention, bytes"))
    finished = offload("explain", str(path), *MODEL, "--format", "json")
    assert finished.exit_code == 1
    (finding,) = [d for d in finished.document["diagnostics"] if d["severity"] == "error"]
    assert (finding["file"], finding["line"]) == (str(path), 9)
    assert "matmul" in finding["message"]


@pytest.mark.parametrize(
    ("args", "exit_code", "thing"),
    [
        (["builtin:llama-tinny"], 4, "builtin:llama-tinny"),
        (["tests.cli.small_models:missing"], 4, "missing"),
        (["tests.cli.small_models:raising"], 4, "not today"),
        (["tests.cli.small_models:leaving"], 5, "exit code 7"),
        (["tests.cli.small_models:unwinding"], 5, "Cancelled"),
        (["builtin:llama-tiny", "--seed", str(1 << 64)], 2, "--seed"),
        (["builtin:unet-tiny", "--seq", "8"], 2, "--seq"),
        (["hf:no/such/config.json"], 3, "no/such/config.json"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_with_thing_and_cure(
    offload: Offload, policy: str, args: list[str], exit_code: int, thing: str
) -> None:
    finished = offload("explain", policy, "--model", *args, "--format", "json")
    assert (finished.exit_code, finished.document["exit_code"]) == (exit_code, exit_code)
    (finding,) = finished.document["diagnostics"]
    assert thing in finding["message"]
    assert finding["hint"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_child_that_the_models_code_forgets_answers_nothing(
    policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "tests.cli.small_models:forking", "--format", "json"]
    exit_code = run(["explain", policy, *words])
    assert json.loads(capfd.readouterr().out)["exit_code"] == exit_code == 0


def test_a_policy_that_does_not_exist_is_exit_code_3_with_the_closest_name(offload: Offload) -> None:
    finished = offload("explain", "balancd", *MODEL)
    assert finished.exit_code == 3
    assert "did you mean balanced?" in finished.stderr


def test_hardware_lets_a_policy_plan_by_time(offload: Offload, policy: str) -> None:
    path = Path(policy)
    path.write_text(POLICY.replace("keep_last: 1", "keep_last: 0, select: planned"))
    refused = offload("explain", policy, *MODEL, "--format", "json")
    assert refused.exit_code == 4
    assert [finding["code"] for finding in refused.document["diagnostics"]] == ["RUN524"]
    finished = offload("explain", policy, *MODEL, "--hardware", "h200-pcie5", "--format", "json")
    assert finished.exit_code == 0
    assert {tensor["reason"] for tensor in finished.document["data"]["tensors"] if tensor["rule"]}
    (following,) = finished.document["next"]
    assert following.endswith("--model tests.cli.small_models:stack --hardware h200-pcie5")


def test_a_profile_that_does_not_exist_is_exit_code_3_with_the_closest_name(
    offload: Offload, policy: str
) -> None:
    finished = offload("explain", policy, *MODEL, "--hardware", "h200-pcie")
    assert finished.exit_code == 3
    assert "did you mean h200-pcie5?" in finished.stderr


def test_a_model_of_full_size_is_explained_without_being_run(offload: Offload) -> None:
    finished = offload(
        "explain", "balanced", "--model", "builtin:llama3-70b", "--layers", "2", "--format", "json"
    )
    assert finished.exit_code == 0
    assert "MOD736" not in {finding["code"] for finding in finished.document["diagnostics"]}
    assert finished.document["data"]["planned_bytes"] > 2**30


def test_a_policy_that_extends_a_planned_one_is_refused_where_it_says_so(
    offload: Offload, policy: str
) -> None:
    Path(policy).write_text("apiVersion: offload/v1\nkind: Policy\nname: mine\nextends:\n  - fit\n")
    refused = offload("explain", policy, *MODEL, "--format", "json")
    (finding,) = refused.document["diagnostics"]
    assert (finding["code"], finding["path"]) == ("RUN524", "schedule.select")
    assert (finding["file"], finding["line"], finding["column"]) == (policy, 5, 5)
    profiles, following = refused.document["next"]
    assert (profiles, offload(*profiles.split()[1:]).exit_code) == ("offload list hardware", 0)
    assert following.endswith("--format json --hardware HARDWARE")
    named = following.replace("HARDWARE", "h200-pcie5")
    assert offload(*named.split()[1:]).exit_code == 0
