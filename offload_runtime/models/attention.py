"""Attention of the built-in decoders, through ``F.scaled_dot_product_attention`` with ``is_causal``.

No mask is ever materialised: the batches have no padding, and the fused kernels keep their fast path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.models.configs import Adapters, GroupedQueryAttention, LatentAttention
from offload_runtime.models.layers import Linear, projection


class Rotary(nn.Module):
    """Cosines and sines of rotary position embedding, kept as float32 buffers that are not saved.

    Element ``i`` of the first half of a head turns together with element ``i`` of the second half, as in
    Hugging Face's models.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, theta: float, max_seq: int) -> None:
        super().__init__()
        self.dim, self.theta, self.max_seq = dim, theta, max_seq
        shape = (max_seq, dim)
        self.register_buffer("cos", torch.empty(shape, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(shape, dtype=torch.float32), persistent=False)

    def init_buffers(self) -> None:
        """Fill the tables in place."""
        device = self.cos.device
        exponent = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        position = torch.arange(self.max_seq, dtype=torch.float32, device=device)
        angle = torch.outer(position, self.theta**-exponent).repeat(1, 2)
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())

    def forward(self, seq: int) -> tuple[Tensor, Tensor]:
        """Return the float32 tables ``[seq, dim]`` of the first ``seq`` positions."""
        return self.cos[:seq], self.sin[:seq]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x``, ``[batch, heads, seq, dim]``, by its positions: in float32, returned in its own type."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with grouped heads."""

    def __init__(
        self, dim: int, config: GroupedQueryAttention, eps: float, adapters: Adapters | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.wq = projection(dim, config.num_heads * config.head_dim, adapters)
        self.wk = projection(dim, config.num_kv_heads * config.head_dim, adapters)
        self.wv = projection(dim, config.num_kv_heads * config.head_dim, adapters)
        self.wo = projection(config.num_heads * config.head_dim, dim, adapters)
        self.q_norm: nn.Module = nn.RMSNorm(config.head_dim, eps=eps) if config.qk_norm else nn.Identity()
        self.k_norm: nn.Module = nn.RMSNorm(config.head_dim, eps=eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``, ``[batch, seq, dim]``."""
        heads = (*x.shape[:2], -1, self.config.head_dim)
        q = self.q_norm(self.wq(x).view(heads)).transpose(1, 2)
        k = self.k_norm(self.wk(x).view(heads)).transpose(1, 2)
        v = self.wv(x).view(heads).transpose(1, 2)
        output = F.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            is_causal=True,
            enable_gqa=self.config.num_kv_heads != self.config.num_heads,
        )
        projected: Tensor = self.wo(output.transpose(1, 2).flatten(2))
        return projected


class MultiHeadLatentAttention(nn.Module):
    """Causal self-attention whose keys and values are rebuilt from one small latent per token (DeepSeek)."""

    def __init__(self, dim: int, config: LatentAttention, eps: float) -> None:
        super().__init__()
        self.config = config
        heads = config.num_heads
        self.wq = Linear(dim, heads * (config.nope_dim + config.rotary_dim))
        self.wkv_a = Linear(dim, config.kv_rank + config.rotary_dim)
        self.kv_norm = nn.RMSNorm(config.kv_rank, eps=eps)
        self.wkv_b = Linear(config.kv_rank, heads * (config.nope_dim + config.value_dim))
        self.wo = Linear(heads * config.value_dim, dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``, ``[batch, seq, dim]``."""
        config = self.config
        batch, seq, _ = x.shape
        heads = (batch, seq, config.num_heads, -1)
        q_nope, q_rope = (
            self.wq(x).view(heads).transpose(1, 2).split((config.nope_dim, config.rotary_dim), dim=-1)
        )
        latent, k_rope = self.wkv_a(x).split((config.kv_rank, config.rotary_dim), dim=-1)
        k_nope, v = (
            self.wkv_b(self.kv_norm(latent))
            .view(heads)
            .transpose(1, 2)
            .split((config.nope_dim, config.value_dim), dim=-1)
        )
        k_rope = rotate(k_rope.unsqueeze(1), cos, sin).expand(-1, config.num_heads, -1, -1)
        output = F.scaled_dot_product_attention(
            torch.cat((q_nope, rotate(q_rope, cos, sin)), dim=-1),
            torch.cat((k_nope, k_rope), dim=-1),
            v,
            is_causal=True,
        )
        projected: Tensor = self.wo(output.transpose(1, 2).flatten(2))
        return projected
