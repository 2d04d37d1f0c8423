"""Causal language models in plain PyTorch: Llama, Qwen3 and DeepSeek-V3, dense or with experts.

The loss is part of the module, so that a compiled graph holds all that a training step keeps alive: the
peak of such models sits in the float32 log-softmax over the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.models.attention import Attention, MultiHeadLatentAttention, Rotary
from offload_runtime.models.configs import DecoderConfig, LatentAttention
from offload_runtime.models.layers import Embedding, FeedForward, Linear
from offload_runtime.models.moe import MixtureOfExperts

# Deep models start closer to the identity: the output projections of each residual branch are scaled down.
_INIT_STD = 0.02


class DecoderBlock(nn.Module):
    """One pre-norm block: attention, then a feed-forward network or a mixture of experts."""

    def __init__(self, config: DecoderConfig, layer_id: int) -> None:
        super().__init__()
        dim, eps = config.dim, config.norm_eps
        self.attention_norm = nn.RMSNorm(dim, eps=eps)
        if isinstance(config.attention, LatentAttention):
            self.attention: nn.Module = MultiHeadLatentAttention(dim, config.attention, eps)
        else:
            self.attention = Attention(dim, config.attention, eps, config.adapters)
        self.ffn_norm = nn.RMSNorm(dim, eps=eps)
        if config.experts is not None and layer_id >= config.experts.num_dense_layers:
            self.moe: nn.Module = MixtureOfExperts(dim, config.experts)
        else:
            self.feed_forward: nn.Module = FeedForward(dim, config.ffn_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the block's output, ``[batch, seq, dim]`` like ``x``."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        network = self.moe if hasattr(self, "moe") else self.feed_forward
        output: Tensor = x + network(self.ffn_norm(x))
        return output


class Decoder(nn.Module):
    """A causal language model whose layers are ``layers.0`` ... ``layers.N-1``."""

    def __init__(self, config: DecoderConfig, max_seq: int) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = Embedding(config.vocab_size, config.dim)
        self.rotary = Rotary(config.attention.rotary_dim, config.rope_theta, max_seq)
        self.layers = nn.ModuleList(DecoderBlock(config, layer_id) for layer_id in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.output = Linear(config.dim, config.vocab_size)
        if config.adapters is not None:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".lora_" in name)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss of predicting ``targets``, or the logits where there are none.

        ``tokens`` and ``targets`` are int64 ``[batch, seq]``; logits are ``[batch, seq, vocab_size]``. The
        loss is taken in float32 whatever the type of the model, as trainers do.
        """
        cos, sin = self.rotary(tokens.shape[1])
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.output(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def init_weights(self) -> None:
        """Fill every parameter and buffer in place from torch's default generator."""
        branch_std = _INIT_STD / (2 * self.config.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.ones_(parameter)
            elif name.endswith("lora_b.weight"):
                nn.init.zeros_(parameter)  # adapters start as nothing
            elif name.endswith(("wo.weight", "w2.weight", "experts.w2")):
                nn.init.normal_(parameter, std=branch_std)
            else:
                nn.init.normal_(parameter, std=_INIT_STD)
        for module in self.modules():
            if isinstance(module, Rotary | MixtureOfExperts):
                module.init_buffers()
