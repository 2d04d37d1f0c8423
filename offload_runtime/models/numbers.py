"""Bitwise comparison of two trainings: fingerprints of the gradients of every step, all bytes at the end.

Values are compared as bytes, so NaN equals the same NaN and -0.0 differs from 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offload_runtime.graph.wrappers import inner_tensors
from offload_runtime.models.result import Difference, TensorKind
from offload_runtime.models.under_test import tensors_in

# Odd 64-bit constants of splitmix64, as the signed integers that torch has.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)
_CHUNK_WORDS = 1 << 22  # bounds the temporaries of a fingerprint to some 100 MiB of device memory


@dataclass(frozen=True)
class StepNumbers:
    """The loss of one step, and a fingerprint of each gradient (None where there is none)."""

    loss: Tensor
    gradients: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class FinalNumbers:
    """Host copies of what training left behind: last gradients, parameters, buffers, by kind and name."""

    tensors: tuple[tuple[TensorKind, str, Tensor], ...]


def step_numbers(module: nn.Module, loss: Tensor) -> StepNumbers:
    """Record the loss and the gradients of ``module``, between backward and the optimizer's step."""
    gradients = tuple(
        (name, None if parameter.grad is None else fingerprint(parameter.grad))
        for name, parameter in module.named_parameters()
    )
    return StepNumbers(loss.detach().cpu().clone(), gradients)


def starting_point(module: nn.Module, batch: object) -> int:
    """Return a fingerprint of all parameters, buffers and the tensors of ``batch``, before the first step."""
    tensors = [*module.parameters(), *module.buffers(), *tensors_in(batch)]
    return hash(tuple(fingerprint(tensor) for tensor in tensors))


def final_numbers(module: nn.Module) -> FinalNumbers:
    """Copy the last gradients, the parameters and the buffers of ``module`` to the host."""
    return FinalNumbers(
        tuple((kind, name, dense(tensor).cpu().clone()) for kind, name, tensor in _state(module))
    )


def _state(module: nn.Module) -> Iterator[tuple[TensorKind, str, Tensor]]:
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield "gradient", name, parameter.grad
    for name, parameter in module.named_parameters():
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers():
        yield "buffer", name, buffer


def dense(tensor: Tensor) -> Tensor:
    """Return the values of ``tensor`` outside autograd, a sparse gradient as a dense tensor."""
    detached = tensor.detach()
    return detached if detached.layout in (torch.strided, torch.jagged) else detached.to_dense()


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the elements of ``tensor`` in logical order as one row of uint8; of a wrapper, what it wraps."""
    inner = inner_tensors(tensor)
    if inner:
        return torch.cat([as_bytes(held) for held in inner.values()])
    return dense(tensor).contiguous().reshape(-1).view(torch.uint8)


def fingerprint(tensor: Tensor) -> int:
    """Return 64 bits that depend on every byte of ``tensor`` and its place; computed where the tensor is.

    Equal bytes give equal fingerprints on every device; different ones collide with a chance of about 2**-64.
    """
    row = as_bytes(tensor)
    if row.numel() % 8:
        row = torch.nn.functional.pad(row, (0, 8 - row.numel() % 8))
    total = torch.zeros((), dtype=torch.int64, device=row.device)
    words = row.view(torch.int64)
    for start in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS]
        place = torch.arange(start + 1, start + 1 + chunk.numel(), dtype=torch.int64, device=chunk.device)
        mixed = (chunk ^ (place * _GOLDEN)) * _MIX
        mixed = (mixed ^ (mixed >> 31)) * _GOLDEN
        total += (mixed ^ (mixed >> 29)).sum()
    return int(total.item())


def first_step_difference(ours: StepNumbers, theirs: StepNumbers, step: int) -> Difference | None:
    """Return the first value of step number ``step`` that differs, or None."""
    if not equal_bytes(ours.loss, theirs.loss):
        return Difference("loss", "loss", step, max_abs_difference(ours.loss, theirs.loss))
    for (name, mine), (_, other) in zip(ours.gradients, theirs.gradients, strict=True):
        if mine != other:
            return Difference("gradient", name, step)
    return None


def first_final_difference(module: nn.Module, theirs: FinalNumbers, step: int) -> Difference | None:
    """Return the first tensor of ``module`` after the last step, number ``step``, that differs, or None.

    Tensors come to the host one at a time: the other training's copies are there already.
    """
    others = {(kind, name): tensor for kind, name, tensor in theirs.tensors}
    for kind, name, tensor in _state(module):
        mine, other = dense(tensor).cpu(), others.pop((kind, name), None)
        if other is None or not equal_bytes(mine, other):
            return Difference(kind, name, step, None if other is None else max_abs_difference(mine, other))
    for kind, name in others:
        return Difference(kind, name, step)
    return None


def equal_bytes(ours: Tensor, theirs: Tensor) -> bool:
    """Tell whether both tensors have the same type, shape and bytes."""
    same_kind = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return same_kind and torch.equal(as_bytes(ours), as_bytes(theirs))


def max_abs_difference(ours: Tensor, theirs: Tensor) -> float | None:
    """Return the largest difference of two tensors on one device, None where NaN or shapes forbid one."""
    if ours.shape != theirs.shape or not ours.numel():
        return None
    wide = torch.complex128 if ours.is_complex() else torch.float64
    largest = float((ours.to(wide) - theirs.to(wide)).abs().max())
    return None if largest != largest else largest
