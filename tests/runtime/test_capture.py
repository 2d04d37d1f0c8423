"""Joint graphs without a device: those of the CPU and of an accelerator, in any order, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import offload_runtime as off
from offload_runtime.graph.joint import forward_activations, read_joint_graph
from offload_runtime.passes.pipeline import plan_joint
from offload_runtime.runtime.capture import capture_joint_graphs
from offload_runtime.runtime.step_capture import capture_step
from tests.models.planned_models import broken, nested

FUSED = {"aten._fused_rms_norm.default", "aten._fused_rms_norm_backward.default"}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8))


def fused_operators(*, accelerator: bool) -> set[str]:
    (graph,) = capture_joint_graphs(normed(), [torch.randn(2, 8)], accelerator=accelerator)
    return {str(node.target) for node in graph.module.graph.nodes} & FUSED


@pytest.mark.parametrize("order", [(False, True, False), (True, False, True)])
def test_each_capture_has_the_operators_of_its_device_whatever_was_captured_before(
    order: tuple[bool, ...],
) -> None:
    assert [fused_operators(accelerator=accelerator) for accelerator in order] == [
        FUSED if accelerator else set() for accelerator in order
    ]


@pytest.mark.parametrize("capture", ["compile", "step"])
def test_a_model_trains_on_the_cpu_after_a_capture_for_an_accelerator(capture: str) -> None:
    if capture == "compile":
        assert fused_operators(accelerator=True) == FUSED
    else:
        capture_step(normed(), [torch.randn(2, 8)], lambda output: output.sum(), accelerator=True)
    module = normed()
    compiled = torch.compile(module, backend="offload", options={"policy": off.load_policy("sac-default")})
    compiled(torch.randn(2, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_model_that_fails_to_trace_leaves_no_registration_behind() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.rms_norm(x, (8,)) @ x

    with pytest.raises(Exception, match=r"size|shape"):
        capture_joint_graphs(Broken(), [torch.randn(2, 8, requires_grad=True)], accelerator=True)
    assert fused_operators(accelerator=False) == set()


def test_a_capture_computes_nothing_and_leaves_the_module_as_it_was() -> None:
    module, x = normed(), torch.randn(2, 8)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    (graph,) = capture_joint_graphs(module, [x], accelerator=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(
        value.untyped_storage().device.type == "meta"
        for node in graph.module.graph.nodes
        if isinstance(value := node.meta.get("val"), torch.Tensor)
    )


@pytest.mark.parametrize("build", [nested, broken])
def test_parts_of_a_broken_graph_are_named_as_a_run_names_them(
    build: Callable[[], tuple[nn.Module, tuple[torch.Tensor]]],
) -> None:
    module, args = build()
    policy = {"apiVersion": "offload/v1", "kind": "Policy", "name": "p", "activations": {"default": "save"}}
    compiled = torch.compile(module, backend="offload", options={"policy": policy, "model": module})
    compiled(*args).backward()
    ran = [
        sorted(
            (verdict.activation.module, verdict.activation.op)
            for verdict in graph.plan.verdicts
            if verdict.fate != "skip"
        )
        for graph in off.report(compiled).graphs
    ]
    captured = capture_joint_graphs(module, args, accelerator=False)
    assert len(captured) > 1
    assert ran == [
        sorted(
            (activation.module, activation.op)
            for activation in plan_joint(
                graph.copy(),
                graph.inputs,
                policy=off.load_policy(policy),
                mode="graph",
                variant="policy",
            ).judged_activations
        )
        for graph in captured
    ]
    assert {graph.inputs.names.modules for graph in captured} == {
        tuple(name for name, _ in module.named_modules())
    }


def test_what_stands_after_a_break_inside_of_a_module_is_named_from_the_root() -> None:
    module, args = nested()
    names = {
        (activation.module, activation.op)
        for graph in capture_joint_graphs(module, args, accelerator=False)
        for _, activation in forward_activations(
            read_joint_graph(
                graph.copy(),
                num_fwd_outputs=graph.inputs.num_fwd_outputs,
                static_input_indices=graph.inputs.static_input_indices,
                names=graph.inputs.names,
            )
        )
    }
    product, seen = "aten.addmm.default", "aten.{}.default".format
    assert {("embed", product), ("", seen("tanh")), ("body.up", product), ("body", seen("sin"))} <= names
    assert {("body.down", product), ("body", seen("cos")), ("head", product), ("", seen("sigmoid"))} <= names


class Part(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_in, num_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Part(8, 16), Part(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.down(self.up(x)))


class Apart(Whole):
    """Dynamo leaves its forward alone, and begins with each of its parts."""

    forward = torch._dynamo.disable(Whole.forward, recursive=False)


def hooked() -> nn.Module:
    module = Whole()
    module.register_forward_hook(lambda module, args, output: torch.cos(output))
    return module


@pytest.mark.parametrize(
    ("build", "operators"),
    [
        (Whole, [["mm", "tanh", "mm", "tanh", "sin"]]),
        (Apart, [["mm", "tanh"], ["mm", "tanh"]]),
        (hooked, [["mm", "tanh", "mm", "tanh", "sin"], ["cos"]]),
    ],
)
def test_all_graphs_of_a_call_are_captured(
    build: Callable[[], nn.Module], operators: list[list[str]]
) -> None:
    graphs = capture_joint_graphs(build(), [torch.randn(2, 8, requires_grad=True)], accelerator=False)
    joints = [
        read_joint_graph(
            graph.copy(),
            num_fwd_outputs=graph.inputs.num_fwd_outputs,
            static_input_indices=graph.inputs.static_input_indices,
            names=graph.inputs.names,
        )
        for graph in graphs
    ]
    forward = [
        [
            activation.op.split(".")[1]
            for storage, activation in forward_activations(joint)
            if not storage.is_input
        ]
        for joint in joints
    ]
    assert forward == operators
