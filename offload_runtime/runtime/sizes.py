"""What a graph with symbolic sizes plans to move, for the sizes that it is called with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

__all__ = ["PlannedBytes", "planned_bytes_of"]


@dataclass(frozen=True)
class PlannedBytes:
    """The bytes that one forward copies to the host: a number, or an expression in the graph's integer inputs.

    ``total`` is an int or a sympy expression; ``inputs`` pairs positions in the call with the symbols they bind.
    """

    total: Any
    inputs: tuple[tuple[int, object], ...] = ()
    _known: dict[tuple[object, ...], int] = field(default_factory=dict, compare=False, repr=False)

    def for_call(self, arguments: Sequence[object]) -> int:
        """Return the bytes for one call of the graph."""
        if isinstance(self.total, int):
            return self.total
        sizes = tuple(arguments[position] for position, _ in self.inputs)
        if sizes not in self._known:
            symbols = (symbol for _, symbol in self.inputs)
            self._known[sizes] = int(self.total.subs(dict(zip(symbols, sizes, strict=True))))
        return self._known[sizes]


def planned_bytes_of(starts: Iterable[fx.Node], example_inputs: Sequence[object]) -> PlannedBytes:
    """Sum the copies of a forward graph (its ``d2h_start`` nodes), symbolic sizes and all.

    ``example_inputs`` are those of the Dynamo graph; its integers bind the symbols.
    """
    tensors = [node.meta["val"] for node in starts]
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    symbols = [
        (position, value.node.expr)
        for position, value in enumerate(example_inputs)
        if isinstance(value, torch.SymInt)
    ]
    return PlannedBytes(total.node.expr if isinstance(total, torch.SymInt) else total, tuple(symbols))
