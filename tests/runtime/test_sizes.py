"""What a forward plans to move is counted in the sizes that it is called with, wherever a call carries them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime.runtime.sizes import SizeSource

POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "everything",
    "schedule": {"keep_last": 0},
    "activations": {"default": "offload"},
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Perceptron(nn.Module):
    """Two layers around a function."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.between = nn.Linear(16, 16), nn.Linear(16, 16), between

    def forward(self, x: Tensor) -> Tensor:
        """Return the second layer's output."""
        y: Tensor = self.second(self.between(self.first(x)))
        return y


def train(
    model: nn.Module, inputs: list[Tensor], loss_of: Callable[[Tensor], Tensor], variant: str
) -> tuple[list[Tensor], list[int], off.Report]:
    """Run a backward for each input; return all gradients and the planned bytes of each step."""
    options: dict[str, Any] = {"policy": POLICY, "model": model, "variant": variant}
    compiled = torch.compile(model, backend="offload", options=options)
    gradients, planned = [], []
    for x in inputs:
        loss_of(compiled(x)).backward()
        gradients += [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]
        model.zero_grad()
        found = off.report(model)
        planned.append(found.planned_bytes)
        assert found.moved_bytes == (found.planned_bytes if variant == "policy" else 0)
    torch._dynamo.reset()
    return gradients, planned, found


def test_a_size_that_depends_on_data_stays_on_the_device_and_says_so() -> None:
    def kept(y: Tensor) -> Tensor:
        return y[y[:, 0] > 0].exp()

    inputs = [torch.randn(8, 16), torch.randn(8, 16)]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        ours, planned, report = train(Perceptron(kept), inputs, lambda y: y.square().sum(), "policy")
        theirs, _, _ = train(Perceptron(kept), inputs, lambda y: y.square().sum(), "reference")
    assert all(map(torch.equal, ours, theirs))
    (graph,) = report.graphs
    reasons = {v.activation.op: v.reason for v in graph.plan.verdicts if "depends on data" in v.reason}
    assert "aten.exp.default" in reasons
    assert planned[-1] > 0, "what has a known size moves"


def test_a_nested_tensor_moves_as_many_bytes_as_its_rows_have() -> None:
    def ragged(*rows: int) -> Tensor:
        return torch.nested.nested_tensor([torch.randn(row, 16) for row in rows], layout=torch.jagged)

    inputs = [ragged(3, 5), ragged(7, 2), ragged(1, 1)]

    def loss_of(y: Tensor) -> Tensor:
        return y.values().square().sum()

    ours, planned, _ = train(Perceptron(torch.sigmoid), inputs, loss_of, "policy")
    theirs, _, _ = train(Perceptron(torch.sigmoid), inputs, loss_of, "reference")
    assert all(map(torch.equal, ours, theirs))
    per_row = planned[0] // 8
    assert per_row > 0
    assert planned == [8 * per_row, 9 * per_row, 2 * per_row]


def test_a_size_is_read_from_an_integer_a_dimension_or_a_tensor_inside() -> None:
    row = torch.randn(3, 16)
    nested = torch.nested.nested_tensor([row, row], layout=torch.jagged)
    call = (5, torch.randn(7, 2), nested)
    assert SizeSource(0).read(call) == 5
    assert SizeSource(1, dim=1).read(call) == 2
    assert SizeSource(2, ("_values",), 0).read(call) == 6
