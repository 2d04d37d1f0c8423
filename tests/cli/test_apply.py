import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offload_runtime.cli import run
from tests.cli.conftest import Finished, Offload
from tests.cli.test_explain import MODEL, POLICY

ROOT = Path(__file__).parents[2]
PREDICTION_KEYS = {"peak_device_bytes", "step_ms", "peak_relative_error", "step_relative_error"}
RUN_KEYS = {"fits", "peak_device_bytes", "step_ms"}
MOVED = 2 * 32 * 64 * 4


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return the path of a policy that offloads the first product of each block but the last."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def apply(offload: Offload, policy: Path, *args: str) -> Finished:
    """Train the stack for three steps on the CPU."""
    return offload("apply", str(policy), *MODEL, "--steps", "3", "--device", "cpu", *args)


def test_float32_master_weights_are_refused(offload: Offload, policy: Path) -> None:
    finished = apply(offload, policy, "--master-weights", "--format", "json")
    (found,) = finished.document["diagnostics"]
    assert (finished.exit_code, found["code"]) == (4, "MOD757")
    assert "offload plan --master-weights" in found["hint"]


def test_the_document_holds_what_was_compared_and_measured(offload: Offload, policy: Path) -> None:
    finished = apply(offload, policy, "--format", "json")
    assert finished.exit_code == 0
    data = finished.document["data"]
    assert data["bitwise_identical"] is True
    assert data["bitwise_scope"] == "full"
    assert set(data["baseline"]) == set(data["policy"]) == set(data["reference"]) == RUN_KEYS
    assert data["reference"]["peak_device_bytes"] >= data["policy"]["peak_device_bytes"]
    assert data["baseline"]["fits"] is data["policy"]["fits"] is True
    assert data["planned_bytes"] == data["moved_bytes"] == MOVED
    assert data["host_bytes"] - data["host_waste_bytes"] >= MOVED
    assert (data["device"], data["engine"], data["num_graphs"]) == ("cpu", "simulated", 1)
    for name in ("baseline", "policy", "reference"):
        assert len(data["losses"][name]) == 3
        assert all(math.isfinite(loss) for loss in data["losses"][name])
    assert data["losses"]["policy"] == data["losses"]["reference"]
    # Without an accelerator nothing was timed, and null says so.
    assert data["policy"]["step_ms"] is data["hidden_fraction"] is data["stall_ms"] is None
    # The hardware is unknown, and so is what it would take.
    unknown = dict.fromkeys(PREDICTION_KEYS)
    assert data["predicted"] == {"hardware": None, "baseline": unknown, "policy": unknown}


def test_a_hardware_profile_predicts_what_plan_predicts_and_the_optimizer_on_top(
    offload: Offload, policy: Path
) -> None:
    hardware = ("--hardware", "h200-pcie5")
    data = apply(offload, policy, *hardware, "--format", "json").document["data"]
    planned = offload("plan", str(policy), *MODEL, *hardware, "--format", "json").document["data"]
    assert data["predicted"]["hardware"] == "h200-pcie5"
    for side in ("baseline", "policy"):
        predicted = data["predicted"][side]
        assert set(predicted) == PREDICTION_KEYS
        assert predicted["peak_device_bytes"] == planned[side]["peak_device_bytes"]
        assert predicted["step_ms"] > planned[side]["step_ms"]
        # A simulated peak is no measurement.
        assert predicted["peak_relative_error"] is predicted["step_relative_error"] is None
    # What was simulated here stays what it is.
    assert data["policy"]["step_ms"] is None


def test_a_profile_that_does_not_exist_is_exit_code_3_with_the_closest_name(
    offload: Offload, policy: Path
) -> None:
    finished = apply(offload, policy, "--hardware", "h200-pcie")
    assert finished.exit_code == 3
    assert "did you mean h200-pcie5?" in finished.stderr


def test_planning_by_time_without_hardware_is_refused_before_anything_is_trained(
    offload: Offload, policy: Path
) -> None:
    policy.write_text(POLICY.replace("keep_last: 1", "keep_last: 1, select: planned"))
    finished = apply(offload, policy, "--format", "json")
    assert finished.exit_code == 4
    assert [finding["code"] for finding in finished.document["diagnostics"]] == ["RUN524"]


def test_the_text_says_that_the_engine_was_simulated_and_ends_in_the_verdict(
    offload: Offload, policy: Path
) -> None:
    finished = apply(offload, policy)
    assert finished.exit_code == 0
    assert "without an accelerator the simulated engine ran" in finished.stdout
    assert finished.stdout.splitlines()[-1].startswith(
        "verdict: Bitwise identical over 3 steps; 16 KiB offloaded"
    )
    assert finished.stderr == ""


def test_two_processes_say_the_same_whatever_the_hash_seed(policy: Path) -> None:
    program = "from offload_runtime.cli import main; main()"
    said = {
        subprocess.run(
            [sys.executable, "-c", program, "apply", str(policy), *MODEL, "--steps", "2", "--device", "cpu"],
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            timeout=200,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_the_seed_changes_weights_and_data(offload: Offload, policy: Path) -> None:
    losses = [
        apply(offload, policy, "--seed", seed, "--format", "json").document["data"]["losses"]["policy"]
        for seed in ("1", "2")
    ]
    assert losses[0] != losses[1]


def test_what_the_model_prints_does_not_break_the_document(
    policy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    exit_code = run(
        ["apply", str(policy), "--model", "tests.cli.small_models:noisy", "--steps", "2", "--format", "json"]
    )
    captured = capfd.readouterr()
    assert exit_code == 0
    assert Finished(exit_code, captured.out, captured.err).document["data"]["bitwise_identical"] is True
    assert "a word from Python" in captured.err
    assert "a word from below" in captured.err


def test_a_missed_expectation_is_a_finding_at_its_line(offload: Offload, policy: Path) -> None:
    policy.write_text(POLICY + "expect: {moved: {min: 1GiB}}\n")
    finished = apply(offload, policy, "--format", "json")
    assert finished.exit_code == 1
    (finding,) = finished.document["diagnostics"]
    assert (finding["path"], finding["line"]) == ("expect.moved", 11)
    assert "1GiB" in finding["message"]
    # What was measured is reported all the same.
    assert finished.document["data"]["moved_bytes"] == MOVED


@pytest.mark.parametrize("section", ["gradients", "parameters", "optimizer_state"])
def test_a_section_that_the_runtime_does_not_honour_is_refused_by_name_and_line(
    offload: Offload, policy: Path, section: str
) -> None:
    body = "{offload_fraction: 0.5}" if section == "optimizer_state" else "{offload: true}"
    policy.write_text(f"{POLICY}{section}: {body}\n")
    finished = apply(offload, policy, "--format", "json")
    assert finished.exit_code == 4
    (finding,) = finished.document["diagnostics"]
    assert section in finding["message"]
    assert finding["line"] == 11
    assert finding["hint"]


def test_cuda_is_refused_where_there_is_none(
    offload: Offload, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finished = offload("apply", str(policy), *MODEL, "--device", "cuda")
    assert finished.exit_code == 4
    assert "hint: use --device cpu" in finished.stderr


def test_memory_that_was_given_is_planned_for_and_recorded(offload: Offload, policy: Path) -> None:
    words = ("--device-memory", "80GB", "--format", "json", "--gradient-accumulation-steps", "2")
    data = apply(offload, policy, "--hardware", "h200-pcie5", *words).document["data"]
    assert data["environment"]["device_memory_bytes"] == 80_000_000_000
    assert data["gradient_accumulation_steps"] == 2
    refused = apply(offload, policy, *words)
    assert refused.exit_code == 2
    assert [finding["code"] for finding in refused.document["diagnostics"]] == ["PLN421"]
