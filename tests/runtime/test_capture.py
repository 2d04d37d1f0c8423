"""Joint graphs without a device: those of the CPU and of an accelerator, in any order, and nothing left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import offload_runtime as off
from offload_runtime.runtime.capture import capture_joint_graphs
from offload_runtime.runtime.step_capture import capture_step

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
