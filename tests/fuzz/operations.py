"""Operations that random programs are made of: what each does to real tensors, and which tensors it takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["OPERATIONS", "Operation", "Sample"]

Sample = Callable[[random.Random, list[Tensor]], "tuple[tuple[Tensor, ...], dict[str, Any]] | None"]


@dataclass(frozen=True)
class Operation:
    """One kind of step: its function, how to pick arguments for it among live tensors, and the feature it
    shows.

    ``sample`` returns the tensors and the keyword arguments of one call, or None where no live tensor fits.
    """

    name: str
    feature: str
    function: Callable[..., Any]
    sample: Sample
    weight: int = 1


def _floating(tensors: list[Tensor], min_dim: int = 0, max_dim: int = 4) -> list[Tensor]:
    return [t for t in tensors if t.is_floating_point() and min_dim <= t.dim() <= max_dim and t.numel() > 0]


def _one(min_dim: int = 0, max_dim: int = 4) -> Sample:
    def sample(rng: random.Random, tensors: list[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
        fitting = _floating(tensors, min_dim, max_dim)
        return ((_recent(rng, fitting),), {}) if fitting else None

    return sample


def _one_with_dim(
    rng: random.Random, tensors: list[Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
    fitting = _floating(tensors, 1)
    if not fitting:
        return None
    x = _recent(rng, fitting)
    return (x,), {"dim": rng.randrange(x.dim())}


def _two_of_one_shape(
    rng: random.Random, tensors: list[Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
    fitting = _floating(tensors)
    if not fitting:
        return None
    x = _recent(rng, fitting)
    return (x, rng.choice([t for t in fitting if t.shape == x.shape and t.dtype == x.dtype])), {}


def _slice(rng: random.Random, tensors: list[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
    fitting = [t for t in _floating(tensors, 1) if max(t.shape) > 1]
    if not fitting:
        return None
    x = _recent(rng, fitting)
    dim = rng.choice([d for d in range(x.dim()) if x.shape[d] > 1])
    start = rng.randrange(x.shape[dim])
    return (x,), {"dim": dim, "start": start, "length": rng.randint(1, x.shape[dim] - start)}


def _product(rng: random.Random, tensors: list[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
    fitting = _floating(tensors, 2, 2)
    pairs = [(a, b) for a in fitting for b in fitting if a.shape[1] == b.shape[0] and a.dtype == b.dtype]
    return (rng.choice(pairs), {}) if pairs else None


def _recent(rng: random.Random, tensors: list[Tensor]) -> Tensor:
    """Prefer late tensors, so that programs grow deep; take any at times, so that they skip."""
    return rng.choice(tensors[-3:] if rng.random() < 0.7 else tensors)


def _self_product(x: Tensor) -> Tensor:
    return x @ x.t() / x.shape[1]


def _product_of(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b) / a.shape[1]


def _attention(x: Tensor) -> Tensor:
    heads = x.reshape(1, 1, *x.shape)
    return F.scaled_dot_product_attention(heads, torch.sin(heads), heads).reshape(x.shape)


def _convolution(x: Tensor) -> Tensor:
    signal = x.unsqueeze(0)
    return F.conv1d(signal, torch.sin(signal[:, :, :1]).transpose(0, 1)[: x.shape[0]], groups=x.shape[0])[0]


def _batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True) if x.shape[0] > 1 else torch.tanh(x)


def _gather_sorted(x: Tensor) -> Tensor:
    return x.gather(-1, torch.argsort(x.detach(), dim=-1))


def _lookup(x: Tensor) -> Tensor:
    return F.embedding(torch.argmax(x.detach(), dim=-1) % x.shape[0], x)


def _index_select(x: Tensor, dim: int) -> Tensor:
    return x.index_select(dim, torch.arange(x.shape[dim] - 1, -1, -1))


def _cast(x: Tensor) -> Tensor:
    return torch.sin(x.to(torch.bfloat16)).to(x.dtype)


def _expand(x: Tensor) -> Tensor:
    return x.unsqueeze(0).expand(3, *x.shape)


def _as_strided(x: Tensor) -> Tensor:
    return x.contiguous().clone().as_strided((max(x.numel() // 2, 1),), (1,), x.numel() // 4)


def _step_slice(x: Tensor) -> Tensor:
    return x[..., ::2]


def _relu_in_place(x: Tensor) -> Tensor:
    return x.clone().relu_()


def _add_to_slice(x: Tensor, dim: int) -> Tensor:
    fresh = x * 0.5
    half = fresh.narrow(dim, 0, max(x.shape[dim] // 2, 1))
    half.add_(torch.cos(half))
    return fresh


def _copy_into_fresh(x: Tensor, y: Tensor) -> Tensor:
    fresh = torch.zeros_like(x)
    fresh[: max(x.shape[0] // 2, 1)].copy_(y[: max(x.shape[0] // 2, 1)])
    return fresh + x


def _index_put_in_place(x: Tensor) -> Tensor:
    fresh = torch.sin(x)
    fresh.index_put_((torch.tensor([0, x.shape[0] - 1]),), torch.cos(x[:1]), accumulate=True)
    return fresh


def _write_after_view(x: Tensor) -> Tensor:
    base = torch.sin(x)
    view = base.reshape(-1)
    base.mul_(0.5)
    return view


def _add_in_place(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y, alpha=0.5)


def _split_unevenly(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return x.split([1, x.shape[dim] - 1], dim) if x.shape[dim] > 1 else (x,)


def _top_two(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.topk(x, min(2, x.shape[dim]), dim))


def _largest(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.max(x, dim))


def _sorted(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.sort(x, dim))


def _moments(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.var_mean(x, dim, correction=0))


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _noise(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)


def _coin(x: Tensor) -> Tensor:
    return torch.where(torch.bernoulli(torch.sigmoid(x.detach())) > 0, x, torch.sin(x))


def _class_loss(x: Tensor) -> Tensor:
    return F.cross_entropy(x, torch.argmax(x.detach(), dim=1))


def _unary(name: str, feature: str, function: Callable[[Tensor], Tensor], weight: int = 1) -> Operation:
    return Operation(name, feature, function, _one(), weight)


OPERATIONS: tuple[Operation, ...] = (
    _unary("relu", "pointwise", torch.relu),
    _unary("tanh", "pointwise", torch.tanh, 3),
    _unary("sigmoid", "pointwise", torch.sigmoid, 3),
    _unary("gelu", "pointwise", F.gelu, 3),
    _unary("sin", "pointwise", torch.sin, 2),
    Operation("mul", "pointwise", torch.mul, _two_of_one_shape, 5),
    Operation("add", "pointwise", torch.add, _two_of_one_shape, 2),
    Operation("maximum", "pointwise", torch.maximum, _two_of_one_shape),
    _unary("cast", "cast", _cast),
    Operation("softmax", "pointwise", torch.softmax, _one_with_dim, 2),
    Operation("product", "matmul", _product_of, _product, 6),
    Operation("self_product", "matmul", _self_product, _one(2, 2), 3),
    Operation("attention", "attention", _attention, _one(2, 2), 2),
    Operation("convolution", "convolution", _convolution, _one(2, 2)),
    Operation("layer_norm", "norm", _layer_norm, _one(1), 2),
    Operation("batch_norm", "norm", _batch_norm, _one(2, 2)),
    Operation("lookup", "embedding", _lookup, _one(2, 2)),
    Operation("sum", "reduction", torch.sum, _one_with_dim),
    Operation("mean", "reduction", torch.mean, _one_with_dim),
    Operation("cumsum", "reduction", lambda x, dim: torch.cumsum(x, dim) / x.shape[dim], _one_with_dim),
    Operation("transpose", "view", torch.t, _one(2, 2), 3),
    Operation("movedim", "view", lambda x: torch.movedim(x, 0, -1), _one(2)),
    Operation("flatten", "view", lambda x: x.reshape(-1), _one(2), 2),
    Operation("unflatten", "view", lambda x: x.reshape(*x.shape[:-1], -1, 1), _one(1, 3)),
    Operation("unsqueeze", "view", lambda x: x.unsqueeze(0), _one(0, 3)),
    Operation("squeeze", "view", torch.squeeze, _one(2)),
    Operation("detach", "view", torch.detach, _one()),
    Operation("expand", "expand", _expand, _one(0, 2), 2),
    Operation("narrow", "slice", torch.narrow, _slice, 4),
    Operation("select", "slice", lambda x, dim: x.select(dim, x.shape[dim] - 1), _one_with_dim, 2),
    Operation("step_slice", "slice", _step_slice, _one(1)),
    Operation("diagonal", "diagonal", torch.diagonal, _one(2, 3), 2),
    Operation("as_strided", "as_strided", _as_strided, _one(1), 2),
    Operation("clone", "copy", torch.clone, _one()),
    Operation(
        "cat", "copy", lambda x, y: torch.cat([x, y]), lambda r, t: _two_of_one_shape(r, _floating(t, 1, 2))
    ),
    Operation(
        "stack",
        "copy",
        lambda x, y: torch.stack([x, y]),
        lambda r, t: _two_of_one_shape(r, _floating(t, 0, 2)),
    ),
    Operation("flip", "copy", lambda x, dim: torch.flip(x, [dim]), _one_with_dim),
    Operation("gather_sorted", "copy", _gather_sorted, _one(1)),
    Operation("index_select", "copy", _index_select, _one_with_dim),
    Operation("split", "split", _split_unevenly, _one_with_dim, 3),
    Operation("chunk", "split", lambda x, dim: torch.chunk(x, 2, dim), _one_with_dim, 3),
    Operation("unbind", "split", lambda x, dim: torch.unbind(x, dim)[:3], _one_with_dim, 2),
    Operation("topk", "multi_output", _top_two, _one_with_dim, 2),
    Operation("sort", "multi_output", _sorted, _one_with_dim),
    Operation("max", "multi_output", _largest, _one_with_dim),
    Operation("var_mean", "multi_output", _moments, _one_with_dim, 2),
    Operation("relu_", "in_place", _relu_in_place, _one(), 2),
    Operation("add_to_slice", "in_place", _add_to_slice, _one_with_dim, 2),
    Operation("copy_", "in_place", _copy_into_fresh, lambda r, t: _two_of_one_shape(r, _floating(t, 1))),
    Operation("index_put_", "in_place", _index_put_in_place, _one(1, 2)),
    Operation("write_after_view", "in_place", _write_after_view, _one(1)),
    Operation("add_", "in_place", _add_in_place, _two_of_one_shape),
    Operation("dropout", "random", lambda x: F.dropout(x, 0.4, training=True), _one(), 2),
    Operation("rand_like", "random", _noise, _one()),
    Operation("bernoulli", "random", _coin, _one()),
    Operation("cross_entropy", "loss", _class_loss, _one(2, 2)),
    Operation("mse", "loss", F.mse_loss, _two_of_one_shape),
)
