"""Recompute beside offload: cases 28 to 30."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.cases.training import assert_exact, offload_everything, policy_of, verdict_of


def batches(*shape: int) -> list[Tensor]:
    """Return three batches."""
    return [torch.randn(shape or (8, 16), generator=torch.Generator().manual_seed(i)) for i in range(3)]


class Dropped(nn.Module):
    """Dropout between products."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.5)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * 2


MIXED = {
    "all offloaded": offload_everything(),
    "all recomputed": policy_of(default="recompute"),
    "products offloaded, the rest recomputed": policy_of(
        {"name": "products", "match": {"op": "matmul"}, "action": "offload"}, default="recompute"
    ),
    "random offloaded, products saved": policy_of(
        {"name": "random", "match": {"op": "random"}, "action": "offload"},
        {"name": "products", "match": {"op": "matmul"}, "action": "save"},
        default="recompute",
    ),
    "masks saved, products offloaded, one layer recomputed": policy_of(
        {"name": "middle", "match": {"layers": 1}, "action": "recompute"},
        {"name": "products", "match": {"op": "matmul"}, "action": "offload"},
    ),
    "torch decides beside": policy_of(
        {"name": "products", "match": {"op": "matmul"}, "action": "offload"}, default="auto"
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_case_28_dropout_draws_the_same_mask_in_recompute(name: str) -> None:
    run = assert_exact(Dropped, MIXED[name], batches())
    assert run.offloaded or name == "all recomputed"


@pytest.mark.parametrize("name", ["all recomputed", "products offloaded, the rest recomputed"])
def test_case_28_dropout_draws_the_same_mask_under_inductor(name: str) -> None:
    assert_exact(Dropped, MIXED[name], batches(), mode="inductor", same_as=["reference"])


class Normed(nn.Module):
    """Batch normalisation between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * 2


NORMED = {
    "all offloaded": offload_everything(),
    "all recomputed": policy_of(default="recompute"),
    "norms recomputed, convolutions offloaded": policy_of(
        {"name": "convolutions", "match": {"op": "convolution"}, "action": "offload"}, default="recompute"
    ),
}


@pytest.mark.parametrize("name", NORMED)
def test_case_29_running_statistics_move_once_a_step(name: str) -> None:
    run = assert_exact(Normed, NORMED[name], batches(4, 8, 16))
    counts = [
        [value.item() for key, value in step.items() if key.endswith("num_batches_tracked")]
        for step in run.steps
    ]
    assert counts == [[1, 1], [2, 2], [3, 3]]
    means = [step["buffer layers.0.1.running_mean"] for step in run.steps]
    assert not torch.equal(means[0], means[1])


class Routed(nn.Module):
    """Top-2 of four experts, with noise in the router: deciding again would decide otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        noisy = scores + torch.randn_like(scores)
        weights, chosen = noisy.topk(2, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        tokens = x.repeat_interleave(2, dim=0)[order]
        picked = self.experts[chosen.flatten()[order]]
        outputs = torch.bmm(tokens.unsqueeze(1), picked).squeeze(1).sin()
        back = torch.zeros_like(outputs).index_copy(0, order, outputs)
        mixed: Tensor = (back.view(-1, 2, 16) * weights.softmax(-1).unsqueeze(-1)).sum(1)
        return mixed * 2


ROUTED = {
    "routing must be saved": policy_of(
        {"name": "routing", "match": {"op": "routing"}, "action": "save", "must": True},
        {"name": "products", "match": {"op": "matmul"}, "action": "offload"},
        default="recompute",
    ),
    "routing offloaded": policy_of(
        {"name": "routing", "match": {"op": "routing"}, "action": "offload"}, default="recompute"
    ),
    "all offloaded": offload_everything(),
    "all recomputed": policy_of(default="recompute"),
}


@pytest.mark.parametrize("name", ROUTED)
def test_case_30_routing_is_replayed_and_never_decided_again(name: str) -> None:
    run = assert_exact(Routed, ROUTED[name], batches())
    if name == "routing must be saved":
        routing = [verdict for verdict in run.report.tensors if verdict.activation.op_class == "routing"]
        assert routing
        assert {verdict.fate for verdict in routing} == {"save"}
        assert verdict_of(run, "aten.bmm.default").fate == "offload"
