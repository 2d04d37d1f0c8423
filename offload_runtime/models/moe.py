"""A mixture of experts whose shapes depend on no data: sort by expert, multiply in groups, sort back.

    scores = softmax(gate(x))                      [tokens, experts]
    top_k  -> weights, expert of each slot         [tokens, k]
    sort slots by expert -> order, group ends      [tokens * k], [experts]
    grouped_mm over the sorted slots               [tokens * k, dim]
    unsort, weight, sum over the k slots           [tokens, dim]

Both index operations are permutations: their backward adds to each place once, so it is bitwise repeatable
without deterministic kernels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offload_runtime.models.configs import Experts
from offload_runtime.models.layers import FeedForward, Linear


class GroupedExperts(nn.Module):
    """The weights of all experts, stacked; each is a gated network as `FeedForward` is."""

    def __init__(self, dim: int, config: Experts) -> None:
        super().__init__()
        shape = (config.num_experts, config.hidden_dim, dim)
        self.w1 = nn.Parameter(torch.empty(shape))
        self.w2 = nn.Parameter(torch.empty(config.num_experts, dim, config.hidden_dim))
        self.w3 = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor, group_ends: Tensor) -> Tensor:
        """Send rows of ``x``, sorted by expert, through their experts.

        ``x`` is ``[rows, dim]``; ``group_ends`` (int32, one per expert) is the row after each expert's
        last. The products are in bfloat16, the only type that the grouped kernel takes under a compiler.
        """
        rows = x.bfloat16()
        gate = _grouped_linear(rows, self.w1, group_ends)
        hidden = F.silu(gate) * _grouped_linear(rows, self.w3, group_ends)
        return _grouped_linear(hidden, self.w2, group_ends).to(x.dtype)


def _grouped_linear(rows: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    return F.grouped_mm(rows, weight.bfloat16().transpose(-2, -1), offs=group_ends)


class MixtureOfExperts(nn.Module):
    """Route each token to ``top_k`` experts by its scores; shared experts, if any, see all tokens.

    ``expert_bias`` shifts the choice and not the weights: trainers move it between steps to balance the load
    (DeepSeek-V3); it stays zero here.
    """

    expert_bias: Tensor

    def __init__(self, dim: int, config: Experts) -> None:
        super().__init__()
        self.config = config
        self.gate = Linear(dim, config.num_experts)
        self.experts = GroupedExperts(dim, config)
        self.register_buffer("expert_bias", torch.empty(config.num_experts, dtype=torch.float32))
        if config.num_shared:
            self.shared_experts: nn.Module = FeedForward(dim, config.num_shared * config.hidden_dim)

    def init_buffers(self) -> None:
        """Start with a balanced load: no bias."""
        self.expert_bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``, ``[batch, seq, dim]``."""
        config = self.config
        tokens = x.flatten(0, 1)
        scores = self.gate(tokens).float().softmax(dim=-1)
        chosen = torch.topk(scores.detach() + self.expert_bias, config.top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if config.normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)

        by_expert, order = chosen.flatten().sort(stable=True)
        experts = torch.arange(config.num_experts, device=x.device, dtype=by_expert.dtype)
        group_ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
        slots = tokens.unsqueeze(1).expand(-1, config.top_k, -1).flatten(0, 1)
        routed = self.experts(slots[order], group_ends)[order.argsort()]

        routed = routed.unflatten(0, (-1, config.top_k)) * weights.unsqueeze(-1).to(routed.dtype)
        output: Tensor = routed.sum(dim=1)
        if config.num_shared:
            output = output + self.shared_experts(tokens)
        return output.view_as(x)
