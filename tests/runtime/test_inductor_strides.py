"""Under Inductor an offloaded value comes back with the strides that it was traced with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import offload_runtime as off

POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "all",
    "schedule": {"keep_last": 0},
    "activations": {"default": "offload"},
}


class Permuted(nn.Module):
    """Saves a dense value whose last two dimensions are swapped, made by an operator that Inductor may lay out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).view(2, 32, 64).transpose(1, 2).contiguous().transpose(1, 2)
        product = hidden @ hidden.transpose(1, 2) @ hidden
        return (torch.sin(hidden) * torch.cos(product)).square().mean()


# A graph out of the cache is no test of how this one is compiled.
@inductor_config.patch(fx_graph_cache=False)
@functorch_config.patch(enable_autograd_cache=False)
def test_a_permuted_value_comes_back_as_the_tensor_that_was_saved() -> None:
    torch.manual_seed(0)
    model, x = Permuted(), torch.randn(64, 64)
    model(x).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    torch.compiler.reset()
    options = {"policy": POLICY, "mode": "inductor", "model": model}
    compiled = torch.compile(model, backend="offload", options=options)
    for _ in range(2):
        model.zero_grad()
        compiled(x).backward()
    report = off.report(compiled)
    (graph,) = report.graphs
    moved = {transfer.source.node for transfer in graph.plan.transfers}
    layouts = {v.activation.layout for v in graph.plan.verdicts if v.activation.name in moved}
    assert "dense" in layouts, "a permuted tensor is among those that move"
    assert report.moved_bytes == report.planned_bytes > 0
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found, expected)


class Packed(nn.Module):
    """Projects to query, key and value at once: with torch 2.13 permuted thirds of what moves are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention's output."""
        y: Tensor = self.attention(x, x, x)[0]
        return y


@inductor_config.patch(fx_graph_cache=False)
def test_views_of_another_rank_than_their_base_come_back() -> None:
    gradients = {}
    for variant in ("policy", "reference"):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = Packed()
        options = {"policy": POLICY, "mode": "inductor", "model": model, "variant": variant}
        compiled = torch.compile(model, backend="offload", options=options)
        compiled(torch.randn(4, 8, 32)).square().sum().backward()
        gradients[variant] = [parameter.grad for parameter in model.parameters()]
        report = off.report(compiled)
        assert report.moved_bytes == report.planned_bytes
        assert bool(report.moved_bytes) == (variant == "policy")
    assert all(map(torch.equal, gradients["policy"], gradients["reference"]))
