"""Captures of modules: what is planned from them, and what they leave as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import offload_runtime as off
from offload_runtime.compiler import load_policy
from offload_runtime.errors import RefusedError
from offload_runtime.hardware import load_hardware
from offload_runtime.models.planning import plan_policy, predict_baseline
from tests.models.planned_models import NUM_LAYERS, WIDE_BYTES, Stack, stack
from tests.models.planned_runs import PARAMETER_BYTES, baseline, policy, refusal


def test_a_captured_module_is_planned_as_it_is_by_request() -> None:
    module, args = stack()
    plan = off.plan(off.capture(module, args), policy(), "h200-pcie5")
    result = plan_policy(baseline(), policy())
    assert plan.planned_bytes == result.offloaded_bytes
    assert [verdict.fate for verdict in plan.verdicts].count("offload") == result.num_offloaded
    assert [(v.activation, v.fate) for v in plan.verdicts if v.fate != "recompute"] == [
        (v.activation, v.fate) for v in result.verdicts if v.fate != "recompute"
    ]


def test_a_capture_takes_no_memory_and_leaves_the_module_as_it_is() -> None:
    with torch.device("meta"):
        module = Stack(lambda x: x.float().square().mean())
        args = (torch.empty(4096, 64),)
    captured = off.capture(module, args, mode="inductor")
    assert captured.state.parameters == PARAMETER_BYTES
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert off.plan(captured, policy(), "h200-pcie5").planned_bytes == (NUM_LAYERS - 1) * WIDE_BYTES


class _Chooses(nn.Module):
    """Takes one way or another by the values that it is given, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(x), 0.5)
        scale = 2.0 if x.sum().item() < 1e9 else -2.0
        return (self.last(x) * scale).square().mean()


def test_a_model_that_computes_with_values_is_captured_with_its_own_tensors() -> None:
    module, args = _Chooses(), (torch.randn(512, 64),)
    with pytest.raises(RefusedError, match=r"DataDependent.*fake=False") as caught:
        off.capture(module, args)
    assert refusal(caught)[0] == "MOD732"
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()
    captured = off.capture(module, args, fake=False)
    assert len(captured.graphs) == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in module.parameters())
    result = plan_policy(predict_baseline(captured, load_hardware("h200-pcie5")), load_policy("sac-default"))
    assert result.num_graphs == 2
    assert result.policy.step_ms > 0


def test_a_capture_with_values_gives_the_plan_of_one_without() -> None:
    module, args = stack()
    plans = [off.plan(off.capture(module, args, fake=fake), policy(), "h200-pcie5") for fake in (True, False)]
    assert plans[0].hash == plans[1].hash


def test_what_capture_and_plan_cannot_do_is_said() -> None:
    module, args = stack()
    with torch.device("meta"):
        empty = Stack(lambda x: x)
    with pytest.raises(ValueError, match=r"fake=False calls the module, and a tensor of shape \[256, 64\]"):
        off.capture(empty, args, fake=False)
    with pytest.raises(ValueError, match="must be one of graph, inductor"):
        off.capture(module, args, mode="eager")
    with pytest.raises(ValueError, match="2 graphs"):
        off.plan(baseline("broken").traced, policy(), "h200-pcie5")
