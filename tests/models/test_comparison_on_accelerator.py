"""On an accelerator memory and time are measured in runs of their own, and numbers compared where they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from offload_runtime.compiler import load_policy
from offload_runtime.errors import RunError
from offload_runtime.models import comparison
from offload_runtime.models.comparison import compare_training
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import ApplyResult
from offload_runtime.models.training import Training, TrainingPlan, train
from tests.models.test_comparison import TINY, policy


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


class SmallDevice:
    """Stand in for `train`: a device on which runs above some number of layers do not fit."""

    def __init__(self, canned: dict[str, Training], **most_layers: int) -> None:
        self.canned = canned
        self.most_layers = most_layers
        self.runs: list[tuple[str, int | None]] = []

    def __call__(self, request: ModelRequest, plan: TrainingPlan, advance: Any) -> Training | None:
        self.runs.append((plan.variant, request.layers))
        layers = request.layers or 8
        if layers > self.most_layers.get(plan.variant, 8):
            return None
        return replace(self.canned[plan.variant], num_layers=layers)


@pytest.fixture(scope="module")
def canned() -> dict[str, Training]:
    """Return one real training of each variant."""
    plan = TrainingPlan("policy", load_policy(policy()), "graph", steps=2, numbers=True)
    runs = {
        variant: train(TINY, replace(plan, variant=variant), lambda done, total: None)
        for variant in ("baseline", "policy", "reference")
    }
    return {variant: run for variant, run in runs.items() if run is not None}


def compared_on(device: SmallDevice, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ApplyResult:
    monkeypatch.setattr(comparison, "train", device)
    return compare_training(replace(TINY, layers=None, device="cuda"), policy(), steps=2, **options)


def test_a_baseline_that_does_not_fit_is_said_and_the_numbers_still_compared(
    canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compared_on(SmallDevice(canned, baseline=7), monkeypatch)
    assert not result.baseline.fits
    assert result.baseline.peak_device_bytes is None
    assert result.losses.baseline == ()
    assert (result.bitwise_identical, result.bitwise_scope) == (True, "full")
    assert "trains where the baseline runs out of memory" in result.verdict


def test_losses_of_measured_and_of_compared_runs_are_told_apart(
    canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_with_other_rounding(request: ModelRequest, plan: TrainingPlan, advance: Any) -> Training | None:
        run = replace(canned[plan.variant], num_layers=8)
        return run if plan.deterministic else replace(run, losses=tuple(loss + 1e-3 for loss in run.losses))

    monkeypatch.setattr(comparison, "train", train_with_other_rounding)
    losses = compare_training(replace(TINY, layers=None, device="cuda"), policy(), steps=2).losses
    assert losses.compared == losses.reference == canned["policy"].losses
    assert losses.policy == tuple(loss + 1e-3 for loss in canned["policy"].losses)


def test_predictions_stand_beside_what_the_device_measured(
    canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {name: replace(run, step_ms=2.0, peak_device_bytes=10**8) for name, run in canned.items()}
    device = SmallDevice(measured, baseline=0)
    predicted = compared_on(device, monkeypatch, hardware="h200-pcie5").predicted
    assert predicted.hardware == "h200-pcie5"
    # What does not fit is predicted all the same, and has nothing to be compared with.
    assert predicted.baseline.peak_device_bytes is not None
    assert predicted.baseline.step_ms is not None
    assert predicted.baseline.peak_relative_error is predicted.baseline.step_relative_error is None
    assert predicted.policy.peak_device_bytes is not None
    assert predicted.policy.step_ms is not None
    assert predicted.policy.peak_relative_error == predicted.policy.peak_device_bytes / 10**8 - 1
    assert predicted.policy.step_relative_error == predicted.policy.step_ms / 2.0 - 1


@pytest.mark.parametrize("most", range(1, 8))
def test_numbers_are_proven_at_the_most_layers_that_fit(
    most: int, canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SmallDevice(canned, baseline=0, reference=most)
    result = compared_on(device, monkeypatch)
    assert (result.bitwise_identical, result.bitwise_scope, result.bitwise_layers) == (True, "reduced", most)
    assert f"bitwise identical at {most} layers" in result.verdict.lower()
    assert len(device.runs) <= 8


def test_numbers_that_can_be_compared_at_no_size_are_a_warning(
    canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compared_on(SmallDevice(canned, baseline=0, reference=0), monkeypatch)
    assert result.bitwise_identical is None
    assert "MOD742" in {d.code for d in result.diagnostics}
    assert not [d for d in result.diagnostics if d.severity == "error"]
    assert result.exit_code == 0


def test_a_policy_that_does_not_fit_either_fails_the_run(
    canned: dict[str, Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="runs out of device memory with policy tiny, as it does without"):
        compared_on(SmallDevice(canned, baseline=0, policy=0), monkeypatch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_a_small_model_on_the_device_is_bitwise_and_timed(mode: str) -> None:
    request = replace(TINY, layers=4, seq=256, dtype="bfloat16", device="cuda")
    result = compare_training(request, policy(), steps=6, mode=mode)
    assert result.bitwise_identical is True
    assert result.deterministic
    assert result.engine == "cuda"
    assert result.moved_bytes == result.planned_bytes > 0
    for run in (result.baseline, result.policy):
        assert run.fits
        assert run.step_ms is not None
        assert run.step_ms > 0
        assert run.peak_device_bytes is not None
    assert result.num_pins == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_what_was_predicted_of_a_device_is_near_what_it_takes(mode: str) -> None:
    """A step of several milliseconds: launches, which the host may not keep up with, hardly count."""
    request = ModelRequest("builtin:llama3-8b", batch=1, seq=4096, layers=2, device="cuda", optimizer="sgd")
    result = compare_training(request, "balanced", steps=8, mode=mode)
    if result.predicted.hardware is None:
        pytest.skip("no profile of this device is shipped")
    for predicted in (result.predicted.baseline, result.predicted.policy):
        assert predicted.peak_relative_error == pytest.approx(0, abs=0.05)
        assert predicted.step_relative_error == pytest.approx(0, abs=0.15)
