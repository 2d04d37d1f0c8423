"""Tensors as the memory they cover: copies move spans of bytes, whatever the dtype and the strides.

The span of a tensor runs from its first to its last element. For a dense tensor it is the tensor; a stride-0
expand covers less than its logical size.
"""

from __future__ import annotations

import torch


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from the first to the last element of ``tensor``; 0 for an empty one."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((1 + last) * tensor.itemsize)


def byte_span(tensor: torch.Tensor) -> torch.Tensor:
    """Return the span of ``tensor`` as flat uint8 over the same storage, outside autograd."""
    start = tensor.storage_offset() * tensor.itemsize
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), start, (span_bytes(tensor),), (1,))


def covered_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return exactly the bytes of the elements of ``tensor``, without the gaps between them."""
    start = tensor.storage_offset() * tensor.itemsize
    sizes = (*tensor.shape, tensor.itemsize)
    strides = (*(stride * tensor.itemsize for stride in tensor.stride()), 1)
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(tensor.untyped_storage(), start, sizes, strides)


def without_lazy_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` with a pending conjugation or negation carried out: bytes alone do not show it."""
    return tensor.resolve_conj().resolve_neg()
