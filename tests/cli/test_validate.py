import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Offload

GOOD = """\
apiVersion: offload/v1
kind: Policy
name: small
summary: Save matmuls, recompute the rest.
activations:
  default: recompute
  rules:
    - name: heavy
      match: {op: matmul}
      action: save
"""
BAD = GOOD.replace("op: matmul", "op: matmull").replace("default: recompute", "default: forget")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_good_policy_is_ok_and_the_next_step_is_named(offload: Offload, folder: Path) -> None:
    (folder / "policy.yaml").write_text(GOOD)
    finished = offload("validate", "policy.yaml")
    assert finished.exit_code == 0
    assert finished.stdout == "policy.yaml: Policy, ok\n"
    assert finished.stderr == "next: offload explain policy.yaml --model builtin:llama-tiny\n"


def test_all_findings_stand_on_stdout_with_place_source_caret_and_hint(
    offload: Offload, folder: Path
) -> None:
    (folder / "policy.yaml").write_text(BAD)
    finished = offload("validate", "policy.yaml")
    assert finished.exit_code == 1
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("policy.yaml:6:12: POL")
    assert lines[1:3] == ["    6 |   default: forget", "      |            ^"]
    assert any(line.startswith("policy.yaml:9:19: POL") for line in lines)
    assert "      hint: did you mean matmul?" in lines
    assert lines[-1] == "policy.yaml: Policy, 2 errors"


def test_the_json_document_names_each_file_its_kind_and_whether_it_is_ok(
    offload: Offload, folder: Path
) -> None:
    (folder / "good.yaml").write_text(GOOD)
    (folder / "bad.yaml").write_text(BAD)
    finished = offload("validate", "good.yaml", "bad.yaml", "--format", "json")
    assert finished.exit_code == finished.document["exit_code"] == 1
    assert finished.document["data"] == {
        "files": [
            {"file": "good.yaml", "kind": "Policy", "ok": True},
            {"file": "bad.yaml", "kind": "Policy", "ok": False},
        ]
    }
    places = [(d["file"], d["line"], d["column"], d["path"]) for d in finished.document["diagnostics"]]
    assert places == [
        ("bad.yaml", 6, 12, "activations.default"),
        ("bad.yaml", 9, 19, "activations.rules[0].match.op"),
    ]


def test_a_file_that_cannot_be_read_is_exit_code_3_and_the_others_are_still_checked(
    offload: Offload, folder: Path
) -> None:
    (folder / "bad.yaml").write_text(BAD)
    (folder / "broken.yaml").write_text("a: [1\n")
    finished = offload("validate", "missing.yaml", "broken.yaml", "bad.yaml", "--format", "json")
    assert finished.exit_code == 3
    files = {d["file"] for d in finished.document["diagnostics"]}
    assert files == {"missing.yaml", "broken.yaml", "bad.yaml"}


def test_a_document_of_no_known_kind_was_read_and_is_exit_code_1(offload: Offload, folder: Path) -> None:
    (folder / "other.yaml").write_text("kind: Deployment\n")
    finished = offload("validate", "other.yaml", "--format", "json")
    assert finished.exit_code == 1
    assert finished.document["data"]["files"] == [{"file": "other.yaml", "kind": None, "ok": False}]


def test_a_folder_stands_for_its_policies_and_tests_but_not_for_hidden_ones(
    offload: Offload, folder: Path
) -> None:
    for name in ("b", "a", ".hidden"):
        (folder / "all" / name).mkdir(parents=True)
        (folder / "all" / name / "policy.yaml").write_text(GOOD)
    (folder / "all" / "notes.yaml").write_text("not: a policy\n")
    finished = offload("validate", "all", "all/a/policy.yaml", "--format", "json")
    assert [file["file"] for file in finished.document["data"]["files"]] == [
        "all/a/policy.yaml",
        "all/b/policy.yaml",
    ]


def test_a_folder_without_a_policy_is_refused_by_name(offload: Offload, folder: Path) -> None:
    (folder / "empty").mkdir()
    finished = offload("validate", "empty")
    assert finished.exit_code == 3
    assert finished.stdout.splitlines()[:2] == [
        "YAML002 folder empty has no policy.yaml",
        "      hint: a file of any other name is named itself",
    ]


def test_an_override_is_checked_like_the_file_and_shown_where_it_was_given(
    offload: Offload, folder: Path
) -> None:
    (folder / "policy.yaml").write_text(GOOD)
    finished = offload("validate", "policy.yaml", "--set", "name=other", "--set=limits.budget=5")
    assert finished.exit_code == 1
    assert finished.stdout.splitlines()[:3] == [
        "--set:2:15: POL104 5 is not a size with a unit, or unlimited",
        "    2 | limits.budget=5",
        "      |               ^",
    ]


@pytest.mark.parametrize("target", ["graph", "inductor"])
def test_a_clause_that_a_front_end_cannot_honour_is_named_with_its_line(
    offload: Offload, folder: Path, target: str
) -> None:
    (folder / "policy.yaml").write_text(GOOD + "gradients: {offload: true}\n")
    assert offload("validate", "policy.yaml").exit_code == 0
    finished = offload("validate", "policy.yaml", "--for", target)
    assert finished.exit_code == 1
    assert finished.stdout.startswith("policy.yaml:11:1: POL190 ")
    assert f"{target} cannot honour gradients" in finished.stdout


def test_github_annotations_point_at_the_same_places(offload: Offload, folder: Path) -> None:
    (folder / "policy.yaml").write_text(BAD)
    finished = offload("validate", "policy.yaml", "--format", "github")
    assert finished.exit_code == 1
    starts = [line.partition(",title=")[0] for line in finished.stdout.splitlines()]
    assert starts == ["::error file=policy.yaml,line=6,col=12", "::error file=policy.yaml,line=9,col=19"]


def test_sarif_results_point_at_the_same_places_and_name_a_rule_each(offload: Offload, folder: Path) -> None:
    (folder / "policy.yaml").write_text(BAD)
    finished = offload("validate", "policy.yaml", "--format", "sarif")
    assert finished.exit_code == 1
    (run,) = json.loads(finished.stdout)["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [r["ruleId"] for r in run["results"]]
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in run["results"]]
    assert regions == [{"startLine": 6, "startColumn": 12}, {"startLine": 9, "startColumn": 19}]


STATE = "apiVersion: offload/v1\nkind: Policy\nname: half\noptimizer_state: {offload_fraction: 0.5}\n"


@pytest.mark.parametrize(
    ("text", "args", "following"),
    [
        (STATE, (), "offload export p.yaml --to deepspeed"),
        (STATE, ("--for", "megatron-bridge"), "offload export p.yaml --to megatron-bridge"),
        (
            STATE,
            ("--for", "megatron-bridge", "--fact", "pipeline_parallel=2"),
            "offload export p.yaml --to megatron-bridge --fact pipeline_parallel=2",
        ),
        (
            STATE.replace("0.5", "0.0"),
            ("--for", "deepspeed", "--set", "optimizer_state.offload_fraction=1.0"),
            "offload export p.yaml --to deepspeed --set optimizer_state.offload_fraction=1.0",
        ),
        (
            STATE,
            ("--for", "megatron-bridge", "--setting", "optimizer.pin_cpu_grads=false"),
            "offload export p.yaml --to megatron-bridge --setting optimizer.pin_cpu_grads=false",
        ),
        (STATE, ("--for", "inductor"), "offload codes POL190"),
    ],
)
def test_the_next_command_takes_the_policy_that_was_checked(
    offload: Offload, folder: Path, text: str, args: tuple[str, ...], following: str
) -> None:
    (folder / "p.yaml").write_text(text)
    finished = offload("validate", "p.yaml", *args)
    assert f"next: {following}\n" in finished.stderr
    assert offload(*following.split()[1:]).exit_code == 0


def test_settings_of_another_system_are_checked_with_the_policy(offload: Offload, folder: Path) -> None:
    (folder / "p.yaml").write_text(STATE)
    fine = ("validate", "p.yaml", "--for", "megatron-bridge", "--fact", "fine_grained_offload=true")
    without = offload(*fine)
    assert without.exit_code == 1
    assert "--setting 'model.offload_modules=[...]'" in without.stdout
    assert offload(*fine, "--setting", "model.offload_modules=[core_attn]").exit_code == 0
    alone = offload("validate", "p.yaml", "--setting", "model.offload_modules=[core_attn]")
    assert (alone.exit_code, "CLI616" in alone.stderr) == (2, True)


def test_a_section_that_is_missing_is_looked_for_in_no_line(offload: Offload, folder: Path) -> None:
    (folder / "p.yaml").write_text(STATE)
    finished = offload("validate", "p.yaml", "--for", "inductor", "--format", "json")
    found = {d["path"]: (d["file"], d["line"]) for d in finished.document["diagnostics"]}
    assert found == {"activations": ("p.yaml", None), "optimizer_state": ("p.yaml", 4)}


def test_the_next_command_of_a_planned_policy_asks_for_model_and_hardware_and_works(
    offload: Offload, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("apiVersion: offload/v1\nkind: Policy\nname: mine\nextends: [fit]\n")
    (following,) = offload("validate", str(path), "--format", "json").document["next"]
    own = {"MODEL": "builtin:llama-tiny", "HARDWARE": "h200-pcie5"}
    assert own.keys() <= set(shlex.split(following))
    words = [own.get(word, word) for word in shlex.split(following)]
    smaller = ["--layers", "1", "--batch", "1", "--seq", "16", "--set", "limits.device_peak=1GiB"]
    assert offload(*words[1:], *smaller).exit_code == 0
