"""What a graph with symbolic sizes plans to move, for the sizes that it is called with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from offload_runtime.graph.storages import hint
from offload_runtime.graph.wrappers import inner_tensors

__all__ = ["PlannedBytes", "SizeSource", "planned_bytes_of", "sizes_of"]


@dataclass(frozen=True)
class SizeSource:
    """Where a call of a graph carries a size: an integer argument, or a dimension of a tensor, perhaps a wrapped one.

    ``attributes`` lead from the argument to the tensor inside it; ``dim`` is None for an integer argument.
    """

    position: int
    attributes: tuple[str, ...] = ()
    dim: int | None = None

    def read(self, arguments: Sequence[Any]) -> int:
        """Return the size that a call has."""
        value = arguments[self.position]
        for attribute in self.attributes:
            value = getattr(value, attribute)
        return int(value if self.dim is None else value.shape[self.dim])


@dataclass(frozen=True)
class PlannedBytes:
    """The bytes that one forward copies to the host: a number, or an expression in sizes of its arguments.

    ``total`` is an int or a sympy expression; ``inputs`` says where its symbols are read.
    """

    total: Any
    inputs: tuple[tuple[SizeSource, object], ...] = ()
    _known: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False, repr=False)

    def for_call(self, arguments: Sequence[object]) -> int:
        """Return the bytes for one call of the graph."""
        if isinstance(self.total, int):
            return self.total
        sizes = tuple(source.read(arguments) for source, _ in self.inputs)
        if sizes not in self._known:
            symbols = (symbol for _, symbol in self.inputs)
            self._known[sizes] = int(self.total.subs(dict(zip(symbols, sizes, strict=True))))
        return self._known[sizes]


def planned_bytes_of(starts: Iterable[fx.Node], sizes: Mapping[object, SizeSource]) -> PlannedBytes:
    """Sum the copies of a forward graph (its ``d2h_start`` nodes), symbolic sizes and all.

    ``sizes`` says where a call carries which symbol. A symbol that it never carries leaves the
    number that torch traced.
    """
    tensors = [node.meta["val"] for node in starts]
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if not isinstance(total, torch.SymInt):
        return PlannedBytes(total)
    expression = total.node.expr
    symbols = expression.free_symbols
    if not symbols <= sizes.keys():
        return PlannedBytes(hint(total))
    return PlannedBytes(expression, tuple((sizes[symbol], symbol) for symbol in symbols))


def sizes_of(gm: fx.GraphModule) -> dict[object, SizeSource]:
    """Return where a call of a Dynamo graph carries each symbol: an integer rather than a dimension of a tensor."""
    traced = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    found: dict[object, SizeSource] = {}
    for position, value in enumerate(traced):
        if isinstance(value, torch.SymInt):
            found.setdefault(value.node.expr, SizeSource(position))
    for position, value in enumerate(traced):
        for attributes, tensor in _tensors_in(value):
            for dim, size in enumerate(tensor.shape):
                if not isinstance(size, int):
                    found.setdefault(size.node.expr, SizeSource(position, attributes, dim))
    return found


def _tensors_in(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a plain tensor itself, a wrapper's inner tensors with the attributes that lead to them."""
    inner = inner_tensors(value)
    if inner:
        for name, held in inner.items():
            yield from _tensors_in(held, (*path, name))
    elif isinstance(value, torch.Tensor):
        yield path, value
