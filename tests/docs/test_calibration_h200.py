"""The parts of the calibration script that need no GPU, and the file that it writes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from offload_runtime.hardware import load_hardware

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
sys.path.insert(0, str(EVIDENCE))

import calibration_h200 as calibration  # noqa: E402 - a script beside its result, in no package

FILE = json.loads((EVIDENCE / "calibration-h200.json").read_text())


def test_the_script_measures_the_products_of_the_file() -> None:
    shapes = [f"{m}x{k}x{n}{suffix}" for m, k, n in calibration.MATMULS for suffix in ("", "t")]
    assert shapes == [row["shape"] for row in FILE["matmul"]]


def test_the_script_measures_the_attentions_of_the_file() -> None:
    assert [str(shape) for shape in calibration.ATTENTIONS] == [
        row["batch_heads_kvheads_seq_dim"] for row in FILE["attention"]
    ]


def test_the_script_measures_the_steps_of_the_file() -> None:
    jobs = [(job.model, job.layers, job.how) for job in calibration.STEPS.values()]
    assert jobs == [(row["model"], row["layers"], row["how"]) for row in FILE["steps"]]


@pytest.mark.parametrize("row", FILE["matmul"], ids=lambda row: row["shape"])
def test_rates_in_the_file_follow_from_its_times(row: dict[str, Any]) -> None:
    m, k, n = map(int, row["shape"].rstrip("t").split("x"))
    assert calibration.tflops(2 * m * k * n, row["ms"]) == pytest.approx(row["tflops"], rel=1e-3)


@pytest.mark.parametrize("row", FILE["attention"], ids=lambda row: row["batch_heads_kvheads_seq_dim"])
def test_rates_of_attention_follow_from_its_times_and_the_dimensions_of_queries_and_values(
    row: dict[str, Any],
) -> None:
    (shape,) = (shape for shape in calibration.ATTENTIONS if str(shape) == row["batch_heads_kvheads_seq_dim"])
    assert calibration.tflops(shape.forward_flops, row["forward_ms"]) == pytest.approx(
        row["forward_tflops"], rel=1e-3
    )
    assert calibration.tflops(shape.backward_flops, row["backward_ms"]) == pytest.approx(
        row["backward_tflops"], rel=1e-3
    )


def test_the_profile_names_the_range_of_the_attentions_that_were_measured() -> None:
    figures = {figure.key: figure for figure in load_hardware("h200-pcie5").figures}
    for side in ("forward", "backward"):
        rates = [row[f"{side}_tflops"] for row in FILE["attention"]]
        source = figures[f"device.attention_{side}_share"].source
        ((low, high),) = re.findall(r"\b(\d+)(?: \([^)]*\))? to (\d+) TFLOP/s alone", source)
        assert (float(low), float(high)) == pytest.approx((min(rates), max(rates)), abs=0.51)


@pytest.mark.parametrize("shape", calibration.ATTENTIONS, ids=str)
def test_causal_attention_counts_half_of_what_torch_counts(shape: Any) -> None:
    query = (shape.batch, shape.heads, shape.seq, shape.dim)
    value = (shape.batch, shape.heads, shape.seq, shape.value_dim)
    assert shape.forward_flops == sdpa_flop_count(query, query, value) / 2
    assert shape.backward_flops == sdpa_backward_flop_count(value, query, query, value) / 2


def test_kernels_are_added_up_by_name_longest_first() -> None:
    launched = [("short", 10.0), ("x" * 61 + "one", 400.0), ("x" * 61 + "two", 500.0), ("short", 20.0)]
    assert calibration.longest_kernels(launched) == [
        {"name": "x" * 60, "count": 2, "ms": 0.9},
        {"name": "short", "count": 2, "ms": 0.03},
    ]


def test_one_measurement_replaces_its_own_place_in_the_file() -> None:
    first, *others = FILE["steps"]
    merged = calibration.merge(FILE, "llama-compile", {**first, "step_ms": 1.0})
    assert list(merged) == list(FILE)
    assert merged["steps"] == [{**first, "step_ms": 1.0}, *others]
    rates = {"environment": {}, "matmul": [], "attention": [], "hbm_gbps_of_eager_copies": {}}
    merged = calibration.merge(FILE, calibration.RATES, rates)
    assert list(merged) == list(FILE)
    assert (merged["matmul"], merged["steps"]) == ([], FILE["steps"])


def test_measurements_of_a_new_file_come_in_the_order_of_the_table() -> None:
    by_how = {(row["model"], row["how"]): row for row in FILE["steps"]}
    result: dict[str, Any] = {}
    for name in reversed(calibration.STEPS):
        job = calibration.STEPS[name]
        result = calibration.merge(result, name, by_how[job.model, job.how])
    assert result["steps"] == FILE["steps"]
