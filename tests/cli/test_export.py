import json
from pathlib import Path

import pytest

from tests.cli.conftest import Offload, facts

LAYERS = """\
apiVersion: offload/v1
kind: Policy
name: first-half
activations:
  default: save
  rules:
    - {name: first, match: {layers: ":16"}, action: offload}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which holds one policy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(LAYERS)
    return tmp_path


def test_stdout_is_what_the_target_reads_and_notes_are_for_people(offload: Offload, folder: Path) -> None:
    finished = offload("export", "policy.yaml", "--to", "megatron-bridge", "--fact", "pipeline_parallel=1")
    assert finished.exit_code == 0
    assert finished.stdout.splitlines()[:2] == [
        "model.cpu_offloading=true",
        "model.cpu_offloading_num_layers=16",
    ]
    assert finished.stderr.startswith("policy.yaml:5:3: EXP911 note: megatron-bridge: ")
    assert "EXP913 note: megatron-bridge: what is known is about Megatron-Core 0.16.1" in finished.stderr


def test_what_is_not_verified_comes_first_and_is_named_with_its_fact(offload: Offload, folder: Path) -> None:
    finished = offload("export", "policy.yaml", "--to", "megatron-bridge")
    assert finished.exit_code == 0
    codes = [line.split("EXP")[1][:3] for line in finished.stderr.splitlines() if "EXP9" in line]
    assert codes[:2] == ["911", "911"]
    assert "911" not in codes[2:]
    assert (
        "note: megatron-bridge: not verified: offloading by layer needs one pipeline stage" in finished.stderr
    )
    assert "give --fact pipeline_parallel=VALUE" in finished.stderr


def test_a_refusal_writes_nothing_names_the_line_and_exits_with_4(offload: Offload, folder: Path) -> None:
    finished = offload("export", "policy.yaml", "--to", "megatron-bridge", "--fact", "pipeline_parallel=2")
    assert (finished.exit_code, finished.stdout) == (4, "")
    assert "policy.yaml:4:1: EXP902 megatron-bridge: offloading by layer needs one" in finished.stderr
    assert "Currently there is no support for Pipeline parallelism with CPU offloading" in finished.stderr


def test_all_refusals_come_at_once(offload: Offload, folder: Path) -> None:
    given = facts(
        "pipeline_parallel=2",
        "cuda_graphs=true",
        "fine_grained_offload=true",
        "activation_recompute=true",
    )
    finished = offload("export", "policy.yaml", "--to", "megatron-bridge", *given, "--format", "json")
    codes = [d["code"] for d in finished.document["diagnostics"] if d["severity"] == "error"]
    assert codes == ["EXP902"] * 4
    assert finished.document["data"]["num_refused"] == 4
    assert finished.document["data"]["text"] is None
    assert finished.document["next"] == ["offload codes EXP902"]


def test_the_json_document_has_settings_text_and_the_version_they_are_for(offload: Offload) -> None:
    finished = offload("export", "balanced", "--to", "torchtitan", "--as", "flags", "--format", "json")
    data = finished.document["data"]
    assert finished.document["ok"]
    assert data["settings"]["compile.memory_policy"] == "sac_and_offload"
    assert data["text"].startswith("--compile.memory_policy sac_and_offload")
    assert data["form"] == "flags"
    assert data["target"]["version"].startswith("torchtitan 0.3.0")


def test_an_override_is_exported_like_the_file(offload: Offload, folder: Path) -> None:
    finished = offload(
        "export", "policy.yaml", "--to", "deepspeed", "--set", "optimizer_state.offload_fraction=1.0", "--set",
        "activations.rules[first].action=save",
    )  # fmt: skip
    assert json.loads(finished.stdout)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--fact", "pipeline=2"), "CLI614 there is no fact 'pipeline'"),
        (("--fact", "pipeline_parallel=two"), "CLI614 pipeline_parallel is a whole number, not 'two'"),
        (("--fact", "pipeline_parallel"), "CLI614 'pipeline_parallel' is not NAME=VALUE"),
        (("--as", "json"), "CLI615 megatron-bridge is not written as json"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(
    offload: Offload, folder: Path, args: tuple[str, ...], message: str
) -> None:
    finished = offload("export", "policy.yaml", "--to", "megatron-bridge", *args)
    assert finished.exit_code == 2
    assert finished.stderr.startswith(message)
    assert "hint: " in finished.stderr


def test_a_mistake_in_the_policy_comes_before_any_target(offload: Offload, folder: Path) -> None:
    (folder / "policy.yaml").write_text(LAYERS.replace("default: save", "default: keep"))
    finished = offload("export", "policy.yaml", "--to", "fsdp2")
    assert finished.exit_code == 1
    assert "POL103" in finished.stderr


@pytest.mark.parametrize(
    ("given", "exit_code"), [((), 0), (("--fact", "pipeline_parallel=2"), 1)], ids=["unknown", "two stages"]
)
def test_validate_judges_a_policy_for_a_target(
    offload: Offload, folder: Path, given: tuple[str, ...], exit_code: int
) -> None:
    finished = offload("validate", "policy.yaml", "--for", "megatron-bridge", *given)
    assert finished.exit_code == exit_code
    assert ("EXP902" in finished.stdout) is (exit_code == 1)
    assert "note: megatron-bridge" in finished.stdout
    assert "EXP913 note: megatron-bridge: what is known is about Megatron-Core 0.16.1" in finished.stdout


def test_a_forbidden_combination_given_as_facts_is_refused_by_both_commands(
    offload: Offload, folder: Path
) -> None:
    (folder / "half.yaml").write_text(
        "apiVersion: offload/v1\nkind: Policy\nname: half\noptimizer_state: {offload_fraction: 0.5}\n"
    )
    given = facts("pipeline_parallel=2", "layer_activation_offload=true", "fine_grained_offload=true")
    exported = offload("export", "half.yaml", "--to", "megatron-bridge", *given)
    assert (exported.exit_code, exported.stdout) == (4, "")
    assert exported.stderr.count("EXP902 megatron-bridge: ") == 3
    validated = offload("validate", "half.yaml", "--for", "megatron-bridge", *given)
    assert validated.exit_code == 1
    assert validated.stdout.count("EXP902 megatron-bridge: ") == 3
