"""Real training under planned policies: the numbers of the reference, within the limit, as often as it runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.models.comparison import compare_training
from offload_runtime.models.fake_capture import capture_request
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.runtime.capture import CapturedGraph
from tests.cases.training import Run, assert_bitwise, train
from tests.models.configurations import CONFIGURATIONS
from tests.passes.planned import HARDWARE, baseline_of, batch, plan, planned_policy, stack

MODES = ["graph", "inductor"]
PRODUCTS = [
    {
        "name": "products",
        "match": {"op": ["matmul", "convolution"], "bytes": {"min": "4KiB"}},
        "action": "offload",
    }
]


def limited(policy: CompiledPolicy, num_bytes: int) -> CompiledPolicy:
    """Return the policy with a limit on device memory."""
    limits = replace(policy.policy.limits, device_peak=num_bytes)
    return replace(policy, policy=replace(policy.policy, limits=limits))


def limit_of(mode: str, share: float) -> int:
    forecast = baseline_of(mode).forecast
    assert forecast is not None
    return int(forecast.resident_bytes + share * (forecast.peak_bytes - forecast.resident_bytes))


def fates_of(run: Run) -> Counter[str]:
    return Counter(verdict.fate for verdict in run.report.tensors)


def planned_run(mode: str, share: float, variant: Any = "policy") -> Run:
    policy = planned_policy("auto", rules=PRODUCTS, limits={"device_peak": f"{limit_of(mode, share)}B"})
    batches = [batch(step) for step in range(3)]
    return train(
        stack, policy, batches, variant=variant, mode=mode, hardware=HARDWARE, loss_of=lambda loss: loss
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_planned_policy_trains_to_the_bits_of_its_reference(mode: str) -> None:
    run, reference = planned_run(mode, 0.55), planned_run(mode, 0.55, "reference")
    assert_bitwise(run.steps, reference.steps)
    assert fates_of(run)["offload"] > 0
    assert run.report.moved_bytes == run.report.reloaded_bytes == run.report.planned_bytes > 0
    assert run.host_bytes == 0
    (graph,) = run.report.graphs
    assert graph.forecast is not None
    assert graph.forecast.peak_bytes <= limit_of(mode, 0.55)
    if (
        mode == "graph"
    ):  # the walk over the rewritten graphs agrees; it knows nothing of buffers that are reused
        assert run.report.simulated_peak is not None
        assert run.report.simulated_peak.num_bytes <= limit_of(mode, 0.55)
        assert_bitwise(run.steps, planned_run(mode, 1.0, "baseline").steps)
    else:
        assert any(verdict.reason == "planned: recomputed" for verdict in run.report.tensors)


def configuration(name: str, folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    return f"hf:{folder}"


def request_for(name: str, folder: Path) -> ModelRequest:
    if name in CONFIGURATIONS:
        pytest.importorskip("transformers")
        spec = configuration(name, folder)
    else:
        spec = f"builtin:{name}"
    # An optimizer with state takes more after the step than these models ever do in it.
    return ModelRequest(spec, batch=2, seq=32, layers=1, optimizer="sgd")


def limit_for(graph: CapturedGraph, policy: CompiledPolicy, mode: str, share: float) -> int:
    """Return the limit that stands at ``share`` between what the policy cannot go below and no policy."""
    baseline = plan(policy, mode, graph=graph, variant="baseline", device_peak=None).forecast
    assert baseline is not None
    floor = plan(policy, mode, graph=graph, device_peak=None, step_overhead=20.0).forecast
    assert floor is not None
    return int(floor.peak_bytes + share * (baseline.peak_bytes - floor.peak_bytes))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("llama-tiny", "graph"),
        ("moe-tiny", "inductor"),
        ("gpt2", "graph"),
    ],
)
def test_models_train_to_the_bits_of_their_reference(name: str, mode: str, tmp_path: Path) -> None:
    request = request_for(name, tmp_path)
    policy = planned_policy("auto", rules=PRODUCTS)
    (graph,) = capture_request(request, mode=mode, accelerator=False).graphs
    policy = limited(policy, limit_for(graph, policy, mode, 0.3))
    result = compare_training(request, policy, steps=2, mode=mode, hardware=HARDWARE)
    assert result.bitwise_identical, result.first_difference
    assert result.planned_bytes == result.moved_bytes > 0
    assert not torch.isnan(torch.tensor(result.losses.policy)).any()
