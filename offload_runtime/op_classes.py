"""What kinds of operator a rule can name, and which names are operators at all. No torch.

The overload table is generated from torch itself (``tools/generate_overloads.py``).
"""

from __future__ import annotations

OP_CLASSES: dict[str, str] = {
    "matmul": "Matrix products: mm, addmm, bmm, linear, grouped and scaled products.",
    "attention": "Outputs of scaled dot product attention and flex attention; rotated q and k are elementwise.",
    "convolution": "Convolutions, transposed ones included.",
    "norm": "Layer, RMS, group, batch and instance normalisation.",
    "activation": "Non-linearities: relu, gelu, silu, sigmoid, tanh, softmax.",
    "elementwise": "Pointwise arithmetic, casts and masks.",
    "reduction": "Sums, means, maxima and other reductions over dimensions.",
    "embedding": "Table look-ups by index: embedding, embedding_bag.",
    "routing": "Decisions of a mixture of experts: topk, sort and what chooses by value.",
    "collective": "Communication between ranks, and its waits; never offloaded.",
    "random": "Operators that draw random numbers: dropout, rand, bernoulli.",
    "loss": "Losses: cross entropy, nll, mse and their log-softmax.",
    "copy": "Copies of data without arithmetic: clone, cat, index, gather, contiguous.",
    "view": "Aliases of another tensor's storage.",
    "other": "Whatever no other class claims.",
}
