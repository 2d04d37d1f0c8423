"""`offload bench` and `offload compare` from end to end, on the CPU, where nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from offload_runtime.cli.bench import say_untimed
from offload_runtime.models import live_side
from offload_runtime.models.bench_file import read_result, write_result
from offload_runtime.models.bench_result import Round, Turn
from offload_runtime.shape import load_schema
from tests.cli.conftest import Finished, Offload

TINY = ["--model", "builtin:llama-tiny", "--layers", "2", "--batch", "1", "--seq", "64", "--device", "cpu"]
STACK = ["--model", "tests.cli.small_models:stack", "--device", "cpu"]
SHORT = ["--rounds", "2", "--steps", "1", "--warmup", "1"]
EAGER = ["--baseline", "eager", *STACK, *SHORT]  # nothing to compile


def bench(offload: Offload, *args: str) -> Finished:
    return offload("bench", *args)


def test_policies_and_peers_are_measured_on_one_tiny_llama(offload: Offload, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    peers = ["eager", "eager-checkpoint", "save-on-cpu", "largest-first:1MiB"]
    asked = [word for peer in peers for word in ("--peer", peer)]
    finished = bench(offload, "balanced", *TINY, *SHORT, *asked, "--output", str(output), "--format", "json")
    assert finished.exit_code == 0, finished.stdout
    data = finished.document["data"]
    jsonschema.Draft7Validator(load_schema("result")).validate(data)
    assert data == json.loads(output.read_text())
    assert data["complete"] is True
    assert [side["name"] for side in data["sides"]] == [
        "sac-default",
        "balanced",
        *peers,
        "sac-default again",
    ]
    assert all(side["fits"] for side in data["sides"])
    by_name = {side["name"]: side for side in data["sides"]}
    assert by_name["balanced"]["moved_bytes"] == by_name["balanced"]["planned_bytes"] > 0
    assert 0 < by_name["largest-first:1MiB"]["moved_bytes"] <= 2**20
    # On a CPU no time says anything, and the simulator knows what goes through the back end alone.
    for side in data["sides"]:
        assert side["compile_s"] == []
        assert side["summary"]["median_ms"] is side["summary"]["ratio"] is None
        simulated = side["name"] not in {"eager", "eager-checkpoint", "save-on-cpu"}
        assert (side["summary"]["peak_device_bytes"] is not None) is simulated
    first, second = ([turn["side"] for turn in taken["turns"]] for taken in data["rounds"])
    assert first == [side["name"] for side in data["sides"]] == second[::-1]
    assert str(tmp_path) not in data["command"]


def test_mode_inductor_measures_against_torch_compile_alone(offload: Offload) -> None:
    finished = bench(offload, *STACK, *SHORT, "--mode", "inductor", "--peer", "torch-offload")
    assert finished.exit_code == 0
    assert [line.split("  ")[1] for line in finished.stdout.splitlines() if line.startswith("  ")] == [
        "side",
        "compile",
        "torch-offload",
        "compile again",
    ]
    assert "without an accelerator nothing was timed" in finished.stdout
    assert finished.stderr == ""


@pytest.mark.parametrize(
    ("is_watched", "said"), [(True, "no accelerator here: nothing will be timed"), (False, "")]
)
def test_who_watches_is_told_at_the_start_that_nothing_will_be_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_watched: bool, said: str
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_watched)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    say_untimed("auto")
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert bool(told) is bool(said)


def test_a_result_is_continued_by_the_rounds_it_lacks(offload: Offload, tmp_path: Path) -> None:
    output = str(tmp_path / "result.json")
    assert bench(offload, *EAGER, "--output", output).exit_code == 0
    again = bench(offload, *EAGER, "--output", output, "--resume", "--rounds", "3", "--format", "json")
    rounds = again.document["data"]["rounds"]
    assert [(taken["number"], taken["run"]) for taken in rounds] == [(1, 1), (2, 1), (3, 2)]
    # What is complete is shown again, and nothing is measured.
    shown = bench(offload, *EAGER, "--output", output, "--resume", "--rounds", "3", "--format", "json")
    assert shown.document["data"]["rounds"] == rounds


def test_a_result_of_another_measurement_is_not_continued(offload: Offload, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    bench(offload, *EAGER, "--output", str(output))
    before = output.read_text()
    finished = bench(offload, *EAGER, "--output", str(output), "--resume", "--steps", "2")
    assert finished.exit_code == 4
    assert "BEN912" in finished.stderr
    assert "steps is 2 now and 1 there" in finished.stderr
    assert output.read_text() == before


def test_a_file_that_is_no_result_is_not_continued(offload: Offload, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    output.write_text("{}")
    finished = bench(offload, *EAGER, "--output", str(output), "--resume")
    assert finished.exit_code == 3
    assert "BEN911" in finished.stderr


def test_without_a_file_there_is_nothing_to_continue_and_the_measurement_begins(
    offload: Offload, tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    assert bench(offload, *EAGER, "--output", str(output), "--resume").exit_code == 0
    assert read_result(output).complete


class SlowMeter(live_side.NoMeter):
    """A meter to which each step seems to take a second."""

    def seconds(self, action: Callable[[], None]) -> float:
        super().seconds(action)
        return 1.0


def test_the_time_limit_leaves_rounds_out_and_says_which(
    offload: Offload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "result.json"
    assert bench(offload, *EAGER, "--output", str(output)).exit_code == 0
    monkeypatch.setattr(live_side, "NoMeter", SlowMeter)
    args = [*EAGER, "--output", str(output), "--resume", "--rounds", "5", "--time-limit", "3"]
    finished = bench(offload, *args, "--format", "json")
    assert finished.exit_code == 0
    document = finished.document
    assert document["data"]["complete"] is False
    (found,) = document["diagnostics"]
    assert (found["code"], found["severity"]) == ("BEN922", "warning")
    assert found["message"] == "the time limit of 3 s came first: 3 of 5 rounds are missing"
    (again,) = document["next"]
    assert again.endswith(f"--time-limit=3 --output {output} --resume")


def test_a_time_limit_without_one_round_is_a_failure(
    offload: Offload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_side, "NoMeter", SlowMeter)
    output = tmp_path / "result.json"
    finished = bench(offload, *EAGER, "--time-limit", "0.5", "--output", str(output))
    assert finished.exit_code == 5
    assert "BEN921 the time limit of 0.5 s came before one round of all sides" in finished.stderr
    assert not output.exists()


def out_of_memory(output: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def broken_under(names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device run out of memory under the sides called ``names``."""
    built = live_side.side_loss

    def side_loss(plan: Any, model: Any, front_end: Any) -> Any:
        return built(plan, replace(model, loss_fn=out_of_memory) if plan.name in names else model, front_end)

    monkeypatch.setattr(live_side, "side_loss", side_loss)


def test_a_side_that_does_not_fit_is_recorded_and_the_others_go_on(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_under({"save-on-cpu"}, monkeypatch)
    finished = bench(
        offload, *EAGER, "--peer", "save-on-cpu", "--peer", "eager-checkpoint", "--format", "json"
    )
    assert finished.exit_code == 0
    fits = {side["name"]: side["fits"] for side in finished.document["data"]["sides"]}
    assert fits == {"eager": True, "save-on-cpu": False, "eager-checkpoint": True, "eager again": True}
    assert [found["code"] for found in finished.document["diagnostics"]] == ["BEN923"]


def test_where_nothing_fits_the_command_fails(offload: Offload, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_under({"eager", "save-on-cpu"}, monkeypatch)
    finished = bench(offload, *EAGER, "--peer", "save-on-cpu")
    assert finished.exit_code == 5
    assert "BEN926 no side runs here: side eager runs out of device memory" in finished.stderr


def test_a_policy_that_fits_nothing_in_the_model_is_a_finding_at_its_own_line(
    offload: Offload, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: offload/v1\nkind: Policy\nname: mine\nactivations:\n  default: save\n  rules:\n"
        "    - name: conv\n      match: {op: convolution}\n      action: offload\n"
    )
    finished = bench(offload, str(policy), *EAGER, "--format", "json")
    assert finished.exit_code == 1
    assert finished.document["data"]["command"].startswith("offload bench policy.yaml --model tests.cli")
    (found,) = finished.document["diagnostics"]
    assert (found["code"], found["file"], found["line"]) == ("BEN924", str(policy), 8)
    mine = finished.document["data"]["sides"][1]
    assert mine["refused"].startswith("POL180")
    assert finished.document["data"]["complete"] is True


def test_a_picture_needs_times(offload: Offload, tmp_path: Path) -> None:
    plot = tmp_path / "frontier.png"
    finished = bench(offload, *EAGER, "--plot", str(plot))
    assert finished.exit_code == 0
    assert "BEN927" in finished.stderr
    assert not plot.exists()


@pytest.mark.parametrize(
    ("args", "exit_code", "said"),
    [
        (["--peer", "eagr"], 2, "did you mean eager?"),
        (["--peer", "activation-budget:60"], 2, "BEN902"),
        (["--baseline", "nobody"], 2, "BEN904"),
        (["balanced", "balanced"], 2, "BEN903"),
        (["--resume"], 2, "BEN905"),
        (["--plot", "frontier.jpg"], 2, "CLI621"),
        (["--hardware", "h20"], 3, "HWP801"),
        (["--rounds", "0"], 2, "CLI604"),
        (["--time-limit", "0"], 2, "CLI604"),
        (["--output", "no/such/folder/result.json"], 5, "BEN914"),
        (["balanced", "--set", "limits.budget=12"], 1, "--set:1"),
        (["no-such-policy"], 3, "YAML002"),
        (["--model", "builtin:lama-tiny"], 4, "MOD701"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_finding_in_both_formats(
    offload: Offload, args: list[str], exit_code: int, said: str
) -> None:
    text = bench(offload, *STACK, *args)
    assert (text.exit_code, text.stdout) == (exit_code, "")
    assert said in text.stderr
    assert "Traceback" not in text.stderr
    document = bench(offload, *STACK, *args, "--format", "json").document
    assert document["exit_code"] == exit_code
    assert len(document["diagnostics"]) == 1


def measured(path: Path, side_ms: float) -> str:
    """Turn the result at ``path`` into one of an accelerator, on which its second side takes ``side_ms``."""
    result = read_result(path)
    names = [side.name for side in result.sides]
    turns = tuple(Turn(name, (side_ms if name == names[1] else 10.0,), 100) for name in names)
    timed = path.with_name(f"{side_ms}.json")
    write_result(timed, replace(result, device="cuda", rounds=(Round(1, 1, turns),)))
    return str(timed)


def test_two_results_are_compared_and_a_regression_fails_where_it_is_asked_to(
    offload: Offload, tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    bench(offload, *EAGER, "--peer", "save-on-cpu", "--output", str(output))
    before, after = measured(output, 11.0), measured(output, 12.0)
    plain = offload("compare", before, after)
    assert plain.exit_code == 0
    assert plain.stdout.splitlines()[-1] == "verdict: B is worse in save-on-cpu"
    failed = offload("compare", before, after, "--fail-on-regression", "--format", "json")
    assert failed.exit_code == 1
    (found,) = failed.document["diagnostics"]
    assert found["code"] == "BEN941"
    assert found["message"] == "side save-on-cpu is worse: step time 1.0909x"
    assert failed.document["data"]["regressions"] == ["save-on-cpu"]
    assert offload("compare", after, before, "--fail-on-regression").exit_code == 0
    assert offload("compare", before, before, "--fail-on-regression").exit_code == 0
    unlike = offload("compare", str(output), before)
    assert unlike.exit_code == 4
    assert "device is cpu" in unlike.stderr
    missing = offload("compare", before, str(tmp_path / "none.json"))
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "BEN911" in missing.stderr


def test_the_error_of_a_broken_peer_is_no_traceback(
    offload: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(plan: Any, model: Any, front_end: Any) -> Any:
        if plan.name == "save-on-cpu":
            raise AttributeError("torch has changed")
        return built(plan, model, front_end)

    built = live_side.side_loss
    monkeypatch.setattr(live_side, "side_loss", failing)
    finished = bench(offload, *EAGER, "--peer", "save-on-cpu")
    assert finished.exit_code == 0
    assert (
        "save-on-cpu was refused: MOD733 save-on-cpu on tests.cli.small_models:stack failed"
        in finished.stdout
    )
    assert "BEN925" in finished.stderr
    assert "Traceback" not in finished.stderr + finished.stdout


_LOADED = """
import sys
from offload_runtime.cli import run
run(sys.argv[1:])
print(*sorted(sys.modules.keys() & {"torch", "matplotlib", "scipy"}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "args",
    [
        ["bench", "--help"],
        ["bench", *STACK, "--peer", "eagr"],
        ["bench", *STACK, "--plot", "frontier.jpg"],
        ["compare", "a.json", "b.json"],
    ],
    ids=lambda args: " ".join(args),
)
def test_what_runs_no_model_loads_no_torch(args: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _LOADED, *args],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=True,
    )
    assert finished.stderr.splitlines()[-1] == ""


def test_a_result_says_that_the_device_s_memory_was_given(offload: Offload, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    words = (*EAGER, "--peer", "save-on-cpu", "--hardware", "h200-pcie5", "--output", str(output))
    assert bench(offload, *words, "--device-memory", "80GB").exit_code == 0
    result = read_result(output)
    assert result.environment.device_memory_bytes == 80_000_000_000
    assert "--device-memory 80GB" in result.command
    again = bench(offload, *words, "--resume")
    assert again.exit_code == 4
    assert "device memory is none now and 80000000000 there" in again.stderr
