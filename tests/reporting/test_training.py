import dataclasses
import math
import re
from typing import Any

import pytest

from offload_runtime.models.layer_runs import LayerRun
from offload_runtime.models.result import ApplyResult, Losses, PredictedRuns, Prediction, RunResult
from offload_runtime.reporting.training import SIMULATED, render_training
from tests.models.bench_results import ENVIRONMENT

MIB = 1024**2


@pytest.fixture
def simulated() -> ApplyResult:
    falling = tuple(5.5 - 0.1 * step for step in range(20))
    return ApplyResult(
        model="builtin:llama-tiny",
        inputs=("int64[2, 64]",),
        environment=ENVIRONMENT,
        policy_name="balanced",
        policy_hash="0" * 64,
        mode="graph",
        device="cpu",
        engine="simulated",
        dtype="float32",
        optimizer="adamw",
        num_parameters=853_120,
        steps=20,
        seed=0,
        bitwise_identical=True,
        bitwise_scope="full",
        bitwise_layers=4,
        deterministic=True,
        first_difference=None,
        losses=Losses(falling, falling, falling, falling),
        baseline=RunResult(True, 100 * MIB, None),
        policy=RunResult(True, 75 * MIB, None),
        reference=RunResult(True, 90 * MIB, None),
        predicted=PredictedRuns(),
        planned_bytes=4 * MIB,
        moved_bytes=4 * MIB,
        host_bytes=5 * MIB,
        host_waste_bytes=MIB,
        hidden_fraction=None,
        stall_ms=None,
        stalls=(),
        num_pins=1,
        numa="off: no GPU",
        num_graphs=1,
        layer_runs=(
            LayerRun("0-2", "offload", "heavy", 6, 4 * MIB, 4 * MIB),
            LayerRun("3", "save", None, 2, MIB, 0),
        ),
        diagnostics=(),
    )


def rows(text: str) -> list[str]:
    return [" | ".join(re.split(" {2,}", line.strip())) for line in text.splitlines()]


def test_a_run_without_an_accelerator_says_so_and_gives_no_times(simulated: ApplyResult) -> None:
    text = render_training(simulated)
    assert SIMULATED in text
    assert "step time | not measured | not measured | -" in rows(text)
    assert "transfer hidden | not measured" in rows(text)


def test_each_run_of_layers_has_fate_tensors_bytes_and_rule(simulated: ApplyResult) -> None:
    text = rows(render_training(simulated))
    assert "0-2 | offload | 6 | 4 MiB | 4 MiB | heavy" in text
    assert "3 | save | 2 | 1 MiB | - | -" in text


def test_peak_and_host_memory_are_compared_with_the_baseline(simulated: ApplyResult) -> None:
    text = rows(render_training(simulated))
    assert "peak device memory | 100 MiB | 75 MiB | -25.0 %" in text
    assert "host memory | 5 MiB, 1 MiB of it rounding" in text


def test_the_first_and_the_last_loss_are_shown_for_all_three_runs(simulated: ApplyResult) -> None:
    text = rows(render_training(simulated))
    assert "1 | 5.500000 | 5.500000 | 5.500000" in text
    assert "20 | 3.600000 | 3.600000 | 3.600000" in text


def test_the_verdict_is_the_last_line(simulated: ApplyResult) -> None:
    assert render_training(simulated).splitlines()[-1] == f"verdict: {simulated.verdict}"


def test_a_measured_run_shows_time_hidden_share_and_its_worst_stalls(simulated: ApplyResult) -> None:
    measured = dataclasses.replace(
        simulated,
        engine="cuda",
        device="NVIDIA H200",
        baseline=RunResult(True, 100 * MIB, 700.0),
        policy=RunResult(True, 75 * MIB, 707.0),
        hidden_fraction=0.985,
        stall_ms=7.0,
        stalls=tuple((f"mm_{i}", float(i)) for i in range(8)),
    )
    text = rows(render_training(measured))
    assert SIMULATED not in text
    assert "step time | 700.0 ms | 707.0 ms | +1.0 %" in text
    assert "transfer hidden | 98.5 %" in text
    assert [row for row in text if row.startswith("mm_")] == [f"mm_{i} | {i}.00" for i in (7, 6, 5, 4, 3)]


def test_a_baseline_out_of_memory_has_no_change_to_show(simulated: ApplyResult) -> None:
    alone = dataclasses.replace(
        simulated,
        baseline=RunResult(False, None, None),
        losses=Losses((), simulated.losses.policy, (), ()),
    )
    text = rows(render_training(alone))
    assert "peak device memory | out of memory | 75 MiB | -" in text
    assert "1 | - | 5.500000 | -" in text


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"deterministic": True}, ", on deterministic kernels"),
        ({"deterministic": False}, ""),
        (
            {"deterministic": True, "bitwise_scope": "reduced", "bitwise_layers": 3},
            ", on deterministic kernels, of 3 layers",
        ),
    ],
)
def test_losses_of_the_compared_runs_stand_beside_each_other(
    simulated: ApplyResult, changes: dict[str, Any], note: str
) -> None:
    measured = dataclasses.replace(simulated, losses=Losses((5.0,), (5.25,), (5.5,), (5.5,)), **changes)
    text = rows(render_training(measured))
    assert "1 | 5.000000 | 5.250000 | 5.500000 | 5.500000" in text
    assert f"the last two columns are the runs that were compared bitwise{note}" in text
    assert "compared bitwise" not in render_training(simulated)


def test_a_diverged_loss_is_shown_as_it_is(simulated: ApplyResult) -> None:
    nan = (math.nan,)
    assert "1 | nan | nan | nan" in rows(
        render_training(dataclasses.replace(simulated, losses=Losses(nan, nan, nan, nan)))
    )


def test_without_known_hardware_nothing_is_predicted(simulated: ApplyResult) -> None:
    assert "predicted" not in render_training(simulated)


PREDICTED = PredictedRuns(
    "h200-pcie5", Prediction(98 * MIB, 690.0, -0.02, -10 / 700), Prediction(76 * MIB, 710.0, 1 / 75, 3 / 707)
)


def test_predictions_stand_below_what_was_measured_with_their_errors(simulated: ApplyResult) -> None:
    measured = dataclasses.replace(
        simulated,
        engine="cuda",
        baseline=RunResult(True, 100 * MIB, 700.0),
        policy=RunResult(True, 75 * MIB, 707.0),
        predicted=PREDICTED,
    )
    text = rows(render_training(measured))
    first = text.index("peak device memory | 100 MiB | 75 MiB | -25.0 %")
    assert text[first + 1 : first + 7] == [
        "predicted | 98 MiB | 76 MiB | -22.4 %",
        "error | -2.0 % | +1.3 % | -",
        "step time | 700.0 ms | 707.0 ms | +1.0 %",
        "predicted | 690.0 ms | 710.0 ms | +2.9 %",
        "error | -1.4 % | +0.4 % | -",
        "predicted for h200-pcie5, with the optimizer's state and step, and the workspace of libraries",
    ]


def test_without_a_measurement_a_prediction_has_no_error(simulated: ApplyResult) -> None:
    only = dataclasses.replace(PREDICTED, baseline=Prediction(), policy=Prediction(76 * MIB, 710.0))
    text = rows(render_training(dataclasses.replace(simulated, predicted=only)))
    assert "predicted | - | 76 MiB | -" in text
    assert "predicted | - | 710.0 ms | -" in text
    assert not [row for row in text if row.startswith("error")]


def test_beside_a_prediction_the_simulated_peak_is_not_called_the_devices(simulated: ApplyResult) -> None:
    assert "peak device memory" in render_training(simulated)
    beside = dataclasses.replace(
        simulated, predicted=PredictedRuns("h200-pcie5", Prediction(1 << 30), Prediction(1 << 29))
    )
    text = render_training(beside)
    assert "peak of the CPU's graph" in text
    assert "limits are judged by what is predicted" in text
