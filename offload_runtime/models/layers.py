"""Layers that the built-in models share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.models.configs import Adapters


class Linear(nn.Linear):
    """A projection without bias that leaves its weight for the model's ``init_weights`` to fill.

    Torch's layer would draw 8 billion random numbers that are overwritten at once.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing: see the class."""


class AdaptedLinear(Linear):
    """A frozen projection and, beside it, a trained one of low rank: ``W x + scale * B (A x)`` (LoRA)."""

    def __init__(self, in_features: int, out_features: int, adapters: Adapters) -> None:
        super().__init__(in_features, out_features)
        self.lora_a = Linear(in_features, adapters.rank)
        self.lora_b = Linear(adapters.rank, out_features)
        self.scale = adapters.scale

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out_features]`` of ``x``, ``[..., in_features]``."""
        added: Tensor = self.lora_b(self.lora_a(x))
        return super().forward(x) + added * self.scale


def projection(in_features: int, out_features: int, adapters: Adapters | None) -> Linear:
    """Return a projection, with adapters where there are some."""
    if adapters is None:
        return Linear(in_features, out_features)
    return AdaptedLinear(in_features, out_features, adapters)


class Embedding(nn.Embedding):
    """A token table that leaves its weight for the model's ``init_weights`` to fill."""

    def reset_parameters(self) -> None:
        """Do nothing: see the class."""


class FeedForward(nn.Module):
    """The gated network of Llama (SwiGLU): ``w2(silu(w1(x)) * w3(x))``."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = Linear(dim, hidden_dim)
        self.w2 = Linear(hidden_dim, dim)
        self.w3 = Linear(dim, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        output: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return output
