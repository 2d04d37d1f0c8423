"""Shapes of the built-in models, as values: no torch, so that listing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Attention in which ``num_kv_heads`` key and value heads serve ``num_heads`` query heads.

    ``qk_norm`` normalises each query and key head before the rotation, as Qwen3 does.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qk_norm: bool = False

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated by position: all of them."""
        return self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's attention: keys and values come from one latent of ``kv_rank`` elements per token.

    A query or key head is ``nope_dim`` elements without position and ``rotary_dim`` with; the rotated part of
    the key is shared by all heads. The original compresses queries too; the 16B model does not.
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    rotary_dim: int
    value_dim: int


@dataclass(frozen=True)
class Experts:
    """A mixture of ``num_experts`` feed-forward networks, of which each token goes through ``top_k``.

    ``normalize`` makes the chosen weights sum to one. The first ``num_dense_layers`` layers of the model
    have a plain feed-forward network instead; ``num_shared`` experts see every token.
    """

    num_experts: int
    top_k: int
    hidden_dim: int
    normalize: bool
    num_shared: int = 0
    num_dense_layers: int = 0


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters (LoRA) beside each projection of attention, and nothing else is trained.

    The product of two matrices of rank ``rank``, times ``alpha / rank``, is added to a frozen projection.
    """

    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        """Factor of what the adapters add."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class DecoderConfig:
    """A causal language model: embedding, ``num_layers`` blocks, norm, projection to the vocabulary.

    With ``adapters`` only these are trained. ValueError for adapters beside latent attention: not built here.
    """

    vocab_size: int
    dim: int
    num_layers: int
    ffn_dim: int
    attention: GroupedQueryAttention | LatentAttention
    rope_theta: float
    norm_eps: float
    experts: Experts | None = None
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if self.adapters is not None and not isinstance(self.attention, GroupedQueryAttention):
            raise ValueError("adapters=... goes with attention=GroupedQueryAttention(...) only")


@dataclass(frozen=True)
class UNetConfig:
    """A small denoising U-Net: a down and an up block for each entry of ``channels``, skips between."""

    image_channels: int
    image_size: int
    channels: tuple[int, ...]
    num_groups: int
    time_dim: int
