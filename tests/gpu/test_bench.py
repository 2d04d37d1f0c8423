"""On a GPU: sides are timed, peaks are measured, and a side that does not fit leaves the others as they were."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from offload_runtime.models.bench import BenchPlan, BenchRun, run_bench  # noqa: E402  # after the skip
from offload_runtime.models.bench_file import result_data  # noqa: E402
from offload_runtime.models.bench_sides import plan_sides  # noqa: E402
from offload_runtime.models.bench_statistics import noise, summarise  # noqa: E402
from offload_runtime.models.resolve import ModelRequest  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REQUEST = ModelRequest("builtin:llama3-8b", layers=4, seq=2048, dtype="bfloat16", device="cuda")
# At 2048 tokens gradients hold the peak, whatever becomes of activations; at 8192 activations do.
LONG = replace(REQUEST, seq=8192)


@pytest.fixture
def whole_device() -> Iterator[None]:
    """Give back at the end the share of device memory that a test took away."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def bench(
    *peers: str, mode: str = "graph", request: ModelRequest = REQUEST, output: Path | None = None
) -> BenchRun:
    plan = BenchPlan(
        sides=plan_sides(["balanced"], peers, mode=mode, overrides=["schedule.defer=1"]),
        mode=mode,
        rounds=2,
        steps=2,
        warmup=2,
        time_limit_s=500,
        started_s=time.monotonic(),
        command="offload bench",
        output=output,
    )
    return run_bench(request, plan)


def test_every_side_is_timed_and_its_peak_measured(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    result = bench("eager", "eager-checkpoint", "save-on-cpu", output=output).result
    assert json.loads(output.read_text()) == json.loads(json.dumps(result_data(result)))
    assert result.complete
    assert result.environment.gpu == torch.cuda.get_device_name()
    assert result.environment.driver
    for side in result.sides:
        summary = summarise(result, side.name)
        assert side.fits
        assert summary.num_steps == 4
        assert summary.median_ms is not None
        assert summary.median_ms > 0
        assert summary.ratio is not None
        assert summary.peak_device_bytes is not None
    peaks = {side.name: summarise(result, side.name).peak_device_bytes or 0 for side in result.sides}
    assert peaks["eager-checkpoint"] < peaks["eager"]
    assert peaks["save-on-cpu"] < peaks["eager"]
    assert noise(result).step_fraction is not None
    assert result.side("balanced").moved_bytes == result.side("balanced").planned_bytes != 0


def test_a_recompute_budget_lowers_the_peak_of_its_own_side_alone() -> None:
    # A share of 0 would make the whole forward again at once, which lowers no peak.
    request = replace(LONG, layers=8)
    result = bench("activation-budget:0.6", "activation-budget:1", mode="inductor", request=request).result
    peaks = {side.name: summarise(result, side.name).peak_device_bytes or 0 for side in result.sides}
    assert peaks["activation-budget:0.6"] < peaks["compile"]
    assert peaks["activation-budget:1"] == pytest.approx(peaks["compile"], rel=0.01)


@pytest.mark.usefixtures("whole_device")
def test_a_side_that_does_not_fit_is_recorded_and_the_others_are_measured() -> None:
    result = bench("eager", "eager-checkpoint", request=LONG).result
    peaks = {name: summarise(result, name).peak_device_bytes or 0 for name in ("eager", "eager-checkpoint")}
    # Nearer to what does not fit: the others need room for fragments, too.
    between_bytes = (3 * peaks["eager"] + peaks["eager-checkpoint"]) / 4
    torch.cuda.empty_cache()
    share = between_bytes / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    tight = bench("eager", "eager-checkpoint", request=LONG)
    assert tight.result.side("eager").fits is False
    assert tight.result.side("eager-checkpoint").fits is True
    assert tight.result.complete
    assert "BEN923" in [found.code for found in tight.diagnostics]
