from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Offload

POLICY = """\
apiVersion: offload/v1
kind: Policy
name: wide
schedule: {keep_last: 0, defer: 0}
activations:
  default: auto
  rules:
    - {name: wide, match: {op: matmul, bytes: {min: 1MiB}}, action: offload}
"""
MODEL = ("--model", "tests.models.planned_models:stack", "--optimizer", "none")
HERE = ("--hardware", "h200-pcie5")
# Keys of `data` that other programs read.
KEYS = {
    "num_candidates",
    "num_offloaded",
    "offloaded_bytes",
    "baseline",
    "policy",
    "capacity_bytes",
    "resident_bytes",
    "peak_at",
    "window_bytes",
    "optimality_gap",
}


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Return the path of a policy that offloads the wide product of each of four blocks."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def test_a_limit_that_no_plan_keeps_to_still_has_the_arithmetic_that_was_asked_for(
    offload: Offload,
) -> None:
    words = ("plan", "fit", *MODEL[:2], "--optimizer", "adamw", *HERE, "--set", "limits.device_peak=1MiB")
    bare, why = offload(*words), offload(*words, "--why")
    assert bare.exit_code == why.exit_code == 4
    assert bare.stdout == ""
    assert "PLN413" in why.stderr
    assert "what can leave, by what it frees for what it moves" in why.stdout
    assert "optimizer state: freed" in why.stdout
    assert "have to leave" in why.stdout
    assert "limits.device_peak" in why.stdout


def test_data_holds_the_prediction(offload: Offload, policy: str) -> None:
    finished = offload("plan", policy, *MODEL, *HERE, "--format", "json")
    assert finished.exit_code == 0
    data = finished.document["data"]
    assert set(data) >= KEYS
    for side in ("baseline", "policy"):
        assert set(data[side]) >= {"fits", "peak_device_bytes", "step_ms"}
    assert (data["num_candidates"], data["num_offloaded"]) == (4, 4)
    assert data["offloaded_bytes"] == 4 * 4 * 2**20
    assert (
        data["policy"]["peak_device_bytes"] < data["baseline"]["peak_device_bytes"] < data["capacity_bytes"]
    )
    assert set(data["resident_bytes"]) == {
        "parameters",
        "buffers",
        "gradients",
        "optimizer_state",
        "batch",
        "workspace",
        "accumulated_gradients",
        "master_weights",
    }
    assert data["peak_at"]["words"].startswith(data["peak_at"]["side"])
    assert data["optimality_gap"] is None  # nothing was optimised
    (following,) = finished.document["next"]
    assert following.endswith(
        "--model tests.models.planned_models:stack --optimizer none --hardware h200-pcie5"
    )


def test_a_plan_that_does_not_fit_is_followed_by_one_that_may_and_not_by_a_run(
    offload: Offload, policy: str
) -> None:
    small = offload("plan", policy, *MODEL, *HERE, "--device-memory", "80MiB", "--format", "json").document
    assert small["data"]["policy"]["fits"] is False
    (following,) = small["next"]
    assert following.startswith("offload plan fit --model")


def test_the_first_number_is_what_can_leave_for_free(offload: Offload, policy: str) -> None:
    finished = offload("plan", policy, *MODEL, *HERE)
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("can leave for free: ")
    assert "55.3 GB/s x " in lines[0]
    assert lines[-1].startswith("verdict: 4 tensors, 16 MiB, leave in each step; the peak falls from ")


def test_a_target_that_is_met_is_exit_code_0_and_nothing_to_do(offload: Offload) -> None:
    finished = offload("plan", "fit", *MODEL, *HERE, "--mode", "inductor")
    assert finished.exit_code == 0
    assert "verdict: Nothing to do: " in finished.stdout


def test_a_target_below_the_floor_is_exit_code_4_with_the_floor(offload: Offload) -> None:
    finished = offload("plan", "fit", *MODEL, *HERE, "--set", "limits.device_peak=1MiB", "--format", "json")
    assert finished.exit_code == 4
    (finding,) = finished.document["diagnostics"]
    assert finding["code"] == "PLN412"
    assert (finding["file"], finding["path"]) == ("--set", "limits.device_peak")
    assert "the floor is" in finding["message"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device here has a profile, perhaps")
def test_without_a_device_the_choices_of_hardware_are_named(offload: Offload, policy: str) -> None:
    finished = offload("plan", policy, *MODEL, "--format", "json")
    assert finished.exit_code == 2
    (finding,) = finished.document["diagnostics"]
    assert finding["code"] == "PLN421"
    assert "h200-pcie5" in finding["hint"]
    assert "gh200" in finding["hint"]


@pytest.mark.parametrize(
    ("args", "exit_code", "code"),
    [
        (("--hardware", "h200"), 3, "HWP801"),
        ((*HERE, "40GiB"), 2, "PLN422"),
        ((*HERE, "--output", "f.json"), 2, "PLN422"),
        ((*HERE, "--frontier", "40", "41"), 2, "PLN423"),
        ((*HERE, "--plot", "plan.pdf"), 2, "CLI621"),
        ((*HERE, "--plot", "no/such/folder/plan.png"), 2, "PLN424"),
        ((*HERE, "--trace-out", "no/such/folder/trace.json"), 2, "PLN424"),
        ((*HERE, "--set", "limits.budget=8"), 1, "POL104"),
        ((*HERE, "--device", "cpu"), 2, "CLI602"),
    ],
)
def test_what_is_put_wrongly_is_refused_before_anything_is_traced(
    offload: Offload, policy: str, args: tuple[str, ...], exit_code: int, code: str
) -> None:
    finished = offload("plan", policy, *MODEL, *args, "--format", "json")
    found = finished.document["diagnostics"]
    assert finished.exit_code == exit_code
    assert {finding["code"] for finding in found} == {code}
    assert all(finding["hint"] for finding in found)


def test_why_prints_the_arithmetic(offload: Offload, policy: str) -> None:
    text = offload("plan", policy, *MODEL, *HERE, "--why").stdout
    for title in ("memory tiers", "what training holds on one rank", "what hides copies"):
        assert f"\n{title}\n" in text
    data = offload("plan", policy, *MODEL, *HERE, "--why", "--format", "json").document["data"]
    assert data["why"]["hardware"] == "h200-pcie5"


def test_why_and_the_first_line_say_one_window(offload: Offload, policy: str) -> None:
    text = offload("plan", policy, *MODEL, *HERE, "--why").stdout
    said = re.search(r"x ([\d.]+) ms from the first saved byte", text.splitlines()[0])
    line = next(line for line in text.splitlines() if "activations that leave for free" in line)
    repeated = re.search(r"x ([\d.]+) ms", line)
    assert said is not None
    assert repeated is not None
    assert float(repeated[1]) == pytest.approx(float(said[1]), abs=0.1)
    assert "window" not in text


def test_the_peak_of_an_eager_loop_is_printed(offload: Offload, policy: str) -> None:
    assert "\n  eager PyTorch, not compiled: a peak of " in offload("plan", policy, *MODEL, *HERE).stdout
    data = offload("plan", policy, *MODEL, *HERE, "--format", "json").document["data"]
    assert data["eager_peak_device_bytes"] > data["resident_bytes"]["parameters"]


def test_master_weights_are_counted_and_said(offload: Offload) -> None:
    args = (*("plan", "balanced", "--model", "builtin:llama-tiny", *HERE, "--dtype", "bfloat16"), "--why")
    finished = offload(*args, "--master-weights")
    assert "adamw with float32 master weights" in finished.stdout
    assert "12 B" not in offload(*args).stdout.partition("what training holds")[2].partition("\n\n")[0]
    assert "+ 4 B master weights + 8 B moments" in finished.stdout
    assert "offload apply" not in finished.stderr


def test_a_second_capture_that_agrees_is_one_line(offload: Offload, policy: str) -> None:
    finished = offload("plan", policy, *MODEL, *HERE, "--check-capture")
    assert finished.exit_code == 0
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("capture check: ")]
    assert line.endswith("holds the same 18 tensors, by module, operator and bytes")
    data = offload("plan", policy, *MODEL, *HERE, "--check-capture", "--format", "json").document["data"]
    check = data["capture_check"]
    assert (check["agrees"], check["num_in_step"], check["differences"]) == (True, 18, [])
    assert "capture_check" not in offload("plan", policy, *MODEL, *HERE, "--format", "json").document["data"]


def test_where_a_second_capture_differs_is_printed_by_tensor(offload: Offload, policy: str) -> None:
    model = ("--model", "tests.models.planned_models:two_outputs", *HERE, "--check-capture")
    finished = offload("plan", policy, *model)
    assert finished.exit_code == 0
    rows = finished.stdout[finished.stdout.index("capture check: ") :].splitlines()
    assert rows[0].startswith("capture check: 17 tensors in the compiled graphs, 23 in the whole step")
    assert rows[1].split() == ["module", "operator", "bytes", "compiled", "step"]
    assert ["(root)", "aten.pow.Tensor_Scalar", "1", "MiB", "0", "2"] in [row.split() for row in rows]
    check = offload("plan", policy, *model, "--format", "json").document["data"]["capture_check"]
    assert not check["agrees"]
    assert {
        "module": "",
        "op": "aten.pow.Tensor_Scalar",
        "num_bytes": 2**20,
        "num_in_compile": 0,
        "num_in_step": 2,
    } in check["differences"]


def test_without_view_replay_what_is_read_through_views_stays(offload: Offload, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(
        "apiVersion: offload/v1\nkind: Policy\nname: all\nschedule: {keep_last: 0}\n"
        "activations: {default: offload}\n"
    )
    args = ("plan", str(path), "--model", "tests.models.planned_models:viewed", "--optimizer", "none", *HERE)
    replayed = offload(*args, "--format", "json").document["data"]
    finished = offload(*args, "--no-view-replay", "--format", "json")
    plain = finished.document["data"]
    assert (replayed["view_replay"], plain["view_replay"]) == (True, False)
    assert 0 < plain["num_candidates"] < replayed["num_candidates"]
    assert 0 < plain["offloaded_bytes"] < replayed["offloaded_bytes"]
    assert ", without view replay\n" in offload(*args, "--no-view-replay").stdout


def test_pictures_and_a_trace_are_written(offload: Offload, policy: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = ("--plot", str(tmp_path / "plan.svg"), "--trace-out", str(tmp_path / "trace.json"))
    data = offload("plan", policy, *MODEL, *HERE, *files, "--format", "json").document["data"]
    names = ["trace.json", *(f"plan-{name}.svg" for name in ("frontier", "memory", "timeline", "fates"))]
    assert data["files"] == [str(tmp_path / name) for name in names]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)
    trace = json.loads((tmp_path / "trace.json").read_text())
    copies = [event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    assert sum(event["args"]["bytes"] for event in copies) == 2 * data["offloaded_bytes"]


def test_a_frontier_has_a_row_for_each_target_and_a_file(
    offload: Offload, policy: str, tmp_path: Path
) -> None:
    path = tmp_path / "frontier.json"
    peak = offload("plan", policy, *MODEL, *HERE, "--format", "json").document["data"]["baseline"][
        "peak_device_bytes"
    ]
    targets = [f"{peak}B", "1MiB"]
    finished = offload(
        "plan", policy, *targets, *MODEL, *HERE, "--frontier", "--output", str(path), "--format", "json"
    )
    assert finished.exit_code == 0
    frontier = finished.document["data"]["frontier"]
    assert frontier == json.loads(path.read_text())
    points = frontier["planned"]["points"]
    assert [point["target_bytes"] for point in points] == [peak, 2**20]
    assert [point["feasible"] for point in points] == [True, False]
    assert "the floor is" in points[1]["reason"]
    assert frontier["largest_first"]["policy"] == "wide"


def test_a_frontier_as_text_says_where_it_ends(offload: Offload) -> None:
    text = offload("plan", "fit", "1MiB", "--frontier", *MODEL, *HERE).stdout
    heading = text[text.index("frontier of ") :].splitlines()
    assert heading[1].startswith("floor ")
    assert any(line.split()[:2] == ["1", "MiB"] and "the floor is" in line for line in heading)


def test_the_device_s_memory_can_be_given_and_is_said_to_be(offload: Offload, policy: str) -> None:
    words = ("plan", policy, *MODEL, *HERE, "--device-memory", "24MiB")
    finished = offload(*words)
    assert "on h200-pcie5 with 24 MiB, as given" in finished.stdout
    assert "fits 24 MiB" in finished.stdout
    assert finished.stderr.splitlines()[-1].endswith("--hardware h200-pcie5 --device-memory 24MiB")


@pytest.mark.parametrize(
    ("size", "said"), [("80", "write 80GiB or 80GB"), ("0GB", "no memory"), ("80 Gb", "did you mean")]
)
def test_device_memory_that_is_no_size_is_a_usage_error(
    offload: Offload, policy: str, size: str, said: str
) -> None:
    finished = offload("plan", policy, *MODEL, *HERE, "--device-memory", size)
    assert finished.exit_code == 2
    assert "CLI604" in finished.stderr
    assert said in finished.stderr
