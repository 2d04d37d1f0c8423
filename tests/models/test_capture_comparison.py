"""A whole step, traced without Dynamo, and the graphs of a compilation hold the same tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from offload_runtime.compiler import load_policy
from offload_runtime.models import resolve_model
from offload_runtime.models.capture_check import CaptureDifference
from offload_runtime.models.capture_comparison import check_captures, compare_captures
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.traced_model import trace_request
from offload_runtime.passes.selection import Setting
from offload_runtime.runtime.capture import capture_joint_graphs
from offload_runtime.runtime.step_capture import capture_step
from tests.models.planned_models import Stack


def _differences(
    spec: str, layers: int | None, policy_names: Sequence[str]
) -> dict[str, tuple[CaptureDifference, ...]]:
    with FakeTensorMode():
        model = resolve_model(spec, layers=layers)
    compiled = capture_joint_graphs(model.module, model.example_args, mode="graph")
    step = capture_step(model.module, model.example_args, model.loss)
    policies = {name: load_policy(name) for name in policy_names}
    return {
        name: compare_captures(compiled, step, policy, Setting(policy.policy.limits))
        for name, policy in policies.items()
    }


@pytest.mark.parametrize(
    ("spec", "layers", "policies"),
    [
        ("builtin:llama3-8b", 2, ["sac-default", "max-savings"]),
        ("builtin:moe-tiny", 1, ["max-savings"]),
        ("builtin:dsv3-16b", 2, ["balanced"]),
        ("builtin:unet-tiny", None, ["max-savings"]),
    ],
)
def test_both_captures_of_a_model_give_the_same_tensors_and_fates(
    spec: str, layers: int | None, policies: list[str]
) -> None:
    assert _differences(spec, layers, policies) == dict.fromkeys(policies, ())


class _TwoParts(torch.nn.Module):
    """Dynamo breaks its graph between the two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).sin()
        torch._dynamo.graph_break()
        return self.second(x).cos()


def test_a_step_is_one_graph_where_dynamo_breaks_it() -> None:
    module, batch = _TwoParts(), torch.randn(4, 8)
    compiled = capture_joint_graphs(module, (batch,), mode="graph")
    step = capture_step(module, (batch,), lambda output: output.sum())
    assert len(compiled) == 2
    names = {
        node.meta["nn_module_stack"].popitem()[0]
        for node in step.module.graph.nodes
        if node.meta.get("nn_module_stack")
    }
    assert {"first", "second"} <= names


@pytest.mark.parametrize("mode", ["graph", "inductor"])
@pytest.mark.parametrize("model", ["broken", "nested", "without_loss"])
def test_a_traced_model_agrees_with_its_whole_step_whatever_its_graphs_and_loss(
    model: str, mode: str
) -> None:
    traced = trace_request(ModelRequest(f"tests.models.planned_models:{model}"), mode=mode)
    check = check_captures(traced)
    assert check.agrees, check.differences
    assert check.num_in_step == check.num_in_compile >= 10


def test_a_loss_that_only_the_step_holds_is_a_difference() -> None:
    traced = trace_request(ModelRequest("tests.models.planned_models:two_outputs"), mode="graph")
    assert not traced.loss_graphs
    check = check_captures(traced)
    assert not check.agrees
    assert {(found.module, found.num_in_compile) for found in check.differences} == {("", 0)}
    assert check.num_in_step - check.num_in_compile == sum(found.num_in_step for found in check.differences)


def test_a_step_that_cannot_be_captured_is_said_and_breaks_nothing() -> None:
    traced = trace_request(ModelRequest("tests.models.planned_models:stack"), mode="graph")
    unseen = Stack(lambda x: x.sum() if x.sum().item() else x.mean())
    check = check_captures(replace(traced, model=replace(traced.model, module=unseen)))
    assert not check.agrees
    assert "DataDependent" in check.reason


def test_tensors_that_only_one_capture_holds_are_told_with_their_numbers() -> None:
    module, batch = _TwoParts(), torch.randn(4, 8)
    policy = load_policy("sac-default")
    compiled = capture_joint_graphs(module, (batch,), mode="graph")
    step = capture_step(module.second, (batch,), lambda output: output.sum())
    differences = compare_captures(compiled, step, policy, Setting(policy.policy.limits))
    assert differences
    assert all(difference.num_in_compile != difference.num_in_step for difference in differences)
    assert any(difference.module == "first" and difference.num_in_step == 0 for difference in differences)


def test_a_capture_takes_the_hooks_away_and_computes_nothing() -> None:
    module = _TwoParts()
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    capture_step(module, (torch.randn(4, 8),), lambda output: output.sum())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
