"""Call operators as an accelerator does, on fake tensors that stand on the CPU.

Torch takes other operators for attention and RMS norm on the CPU, and a graph traced there would be another graph. Here
they are called by the names that they have on a CUDA device of the Hopper generation, which have kernels without data
(meta kernels) for every device.
"""

# torch leaves the constructor of a library untyped.
# mypy: untyped-calls-exclude="torch"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["ACCELERATOR_CALLS", "AcceleratorCalls", "accelerator_operators"]

_aten = torch.ops.aten
_WHOLE_OPERATORS = (_aten._fused_rms_norm.default, _aten._fused_rms_norm_backward.default)


class AcceleratorCalls(TorchFunctionMode):
    """While it is entered, functions of ``ACCELERATOR_CALLS`` are called as on an accelerator."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return ACCELERATOR_CALLS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def accelerator_operators() -> Iterator[None]:
    """Keep whole what only accelerators have a kernel for; on the CPU it would be traced as its composition.

    A kernel registered for the CPU tells the dispatcher that the operator is there. Fake tensors never call it. The
    registration is the process's: no other thread may trace meanwhile.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        for operator in _WHOLE_OPERATORS:
            library.impl(operator, _not_called, "CPU")
        _forget_dispatch()
        yield
    finally:
        library._destroy()
        _forget_dispatch()


def _forget_dispatch() -> None:
    """Let torch look up anew which kernels the operators have.

    Its dispatcher in Python keeps what it once found, through registrations (torch 2.11 and 2.13): a trace for the CPU
    would keep operators whole that have no kernel there, and the other way round.
    """
    for operator in _WHOLE_OPERATORS:
        operator._dispatch_cache.clear()


def _not_called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a capture computes nothing")


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Call attention as a CUDA device of the Hopper generation does: cuDNN, or the efficient kernel for float32."""
    if query.dtype in (torch.bfloat16, torch.float16):
        results = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, True, dropout_p, is_causal, False, scale=scale
        )
    else:
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        results = _aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
        )
    output: torch.Tensor = results[0]
    return output


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    output: torch.Tensor = _aten._fused_rms_norm(input, list(normalized_shape), weight, eps)[0]
    return output


ACCELERATOR_CALLS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {torch._C._nn.scaled_dot_product_attention: _attention, torch.rms_norm: _rms_norm}
)
"""Functions of torch and what to call in their place."""
