"""The peak of a step that is not compiled: against sums that can be done by hand, and against an H200."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from offload_runtime.hardware import load_hardware
from offload_runtime.models.eager_step import eager_peak_bytes
from offload_runtime.models.fake_capture import NotTraceable, fake_model
from offload_runtime.models.planning import baseline_of
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.under_test import ModelUnderTest, StateBytes
from tests.models.planned_models import LAYER_PARAMETERS, NUM_LAYERS
from tests.models.planned_runs import MODELS, baseline, policy

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
WITHIN_80_GB, WITH_ALL = "eager-llama3-8b-lora-80gb-h200.json", "eager-llama3-8b-lora-h200.json"


class Sines(nn.Module):
    """A chain of operators that each save their input."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.weight = nn.Parameter(torch.ones(1 << 18))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        for _ in range(self.number):
            x = x.sin()
        return x.sum()


def under_test(module: nn.Module, *args: Any, steps: int = 1) -> ModelUnderTest:
    model = fake_model(ModelRequest(f"{MODELS}:stack"))
    return replace(model, module=module, example_args=args, loss_fn=None, gradient_accumulation_steps=steps)


@pytest.mark.parametrize("number", [1, 2, 8])
def test_what_autograd_saves_is_alive_until_backward_has_read_it(number: int) -> None:
    mib = 1 << 20
    model = under_test(Sines(number), torch.ones(1 << 18))
    # Weight, batch, one input saved by each sine; sin' = cos(x) * grad: both are there, and the gradient that comes in.
    # The gradient of the sum is expanded, not allocated.
    first = (2 + number + 2) * mib
    peak = eager_peak_bytes(model)
    assert first <= peak <= first + mib + 2048


def test_gradients_of_earlier_batches_are_there() -> None:
    one, several = (
        eager_peak_bytes(under_test(Sines(8), torch.ones(1 << 18), steps=steps)) for steps in (1, 4)
    )
    assert several == one + (1 << 20)


def test_a_model_is_left_as_it_was() -> None:
    module = Sines(2)
    eager_peak_bytes(under_test(module, torch.ones(1 << 18)))
    assert module.weight.grad is None
    assert module.weight.detach().equal(torch.ones(1 << 18))


class ByValue(nn.Module):
    """A module that asks for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum() * (2 if float(x[0]) > 0 else 3)


def test_a_model_that_reads_values_has_no_known_peak() -> None:
    with pytest.raises(NotTraceable, match="Data"):
        eager_peak_bytes(under_test(ByValue(), torch.ones(4)))


@pytest.mark.parametrize("optimizer", ["adamw", "none"])
def test_a_baseline_adds_what_the_optimizer_keeps(optimizer: str) -> None:
    request = ModelRequest(f"{MODELS}:stack", optimizer=optimizer)
    profile = load_hardware("h200-pcie5")
    found = baseline_of(request, policy(), mode="graph", hardware=profile, with_eager=True)
    counted = eager_peak_bytes(found.traced.model)
    state = (2 if optimizer == "adamw" else 0) * 4 * NUM_LAYERS * LAYER_PARAMETERS
    assert found.eager_peak_bytes == counted + state + profile.workspace_bytes
    assert baseline().eager_peak_bytes is None


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, forward, use_reentrant=False)


def test_runs_on_an_h200_had_the_peaks_that_are_counted() -> None:
    result, with_all = (json.loads((EVIDENCE / name).read_text("utf-8")) for name in (WITHIN_80_GB, WITH_ALL))
    sides = {side["name"]: side for side in result["sides"]}
    assert with_all["model"] == result["model"]
    spec, (batch, _) = result["model"]["spec"], json.loads(result["model"]["inputs"][0].removeprefix("int64"))
    model = fake_model(ModelRequest(spec, batch=batch, optimizer=result["model"]["optimizer"]))
    beside = load_hardware(result["hardware"]).workspace_bytes + 2 * StateBytes.of(model).trainable
    eager = eager_peak_bytes(model) + beside
    # The run that saves everything did not fit into 80 GB.
    assert sides["eager"]["fits"] is False
    assert eager > result["environment"]["device_memory_bytes"]
    (measured,) = {side["summary"]["peak_device_bytes"] for side in with_all["sides"]}
    assert eager == pytest.approx(measured, rel=1e-3)
    for layer in model.module.get_submodule("layers").children():
        vars(layer)["forward"] = checkpointed(layer.forward)
    counted = eager_peak_bytes(model)
    measured = sides["eager-checkpoint"]["summary"]["peak_device_bytes"]
    assert counted + beside == pytest.approx(measured, rel=1e-3)
