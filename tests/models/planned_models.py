"""Small models that tests of planning name as `tests.models.planned_models:FUNCTION`; tensors are worth moving."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

TOKENS, DIM, WIDE = 4096, 64, 256
NUM_LAYERS = 4
WIDE_BYTES = TOKENS * WIDE * 4
LAYER_PARAMETERS = 2 * DIM * WIDE + WIDE + DIM


class Block(nn.Module):
    """A perceptron with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, WIDE)
        self.down = nn.Linear(WIDE, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Stack(nn.Module):
    """Four blocks; `breaks` cuts the graph in the middle, `finish` makes the output of what the last block returns."""

    def __init__(self, finish: Callable[[Tensor], object], *, breaks: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
        self.finish = finish
        self.breaks = breaks

    def forward(self, x: Tensor) -> object:
        half = NUM_LAYERS // 2
        for layer in self.layers[:half]:
            x = layer(x)
        if self.breaks:
            torch._dynamo.graph_break()
        for layer in self.layers[half:]:
            x = layer(x)
        return self.finish(x)


def _loss(x: Tensor) -> Tensor:
    return x.float().square().mean()


def _args() -> tuple[Tensor]:
    return (torch.randn(TOKENS, DIM),)


def stack() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model that holds its loss."""
    return Stack(_loss), _args()


def broken() -> tuple[nn.Module, tuple[Tensor]]:
    """Return the same model, cut into two graphs."""
    return Stack(_loss, breaks=True), _args()


def without_loss() -> tuple[nn.Module, tuple[Tensor], Callable[[Tensor], Tensor]]:
    """Return a model whose loss is taken of its output."""
    return Stack(lambda x: x), _args(), _loss


class Cut(nn.Module):
    """Two linear layers; the graph breaks between them, inside of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, WIDE), nn.Linear(WIDE, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x).sin()
        torch._dynamo.graph_break()
        return self.down(x).cos()


class Nested(nn.Module):
    """A module that breaks the graph, between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(DIM, DIM), Cut(), nn.Linear(DIM, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).tanh()
        x = self.body(x)
        x = self.head(x).sigmoid()
        return _loss(x)


def nested() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model that breaks inside of one of its modules: Dynamo compiles parts of that module by themselves."""
    return Nested(), _args()


class Viewed(nn.Module):
    """Three linear layers; backward reads what the second makes through a transposed view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(DIM, WIDE), nn.Linear(WIDE, WIDE)
        self.third = nn.Linear(TOKENS, DIM)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x).sin())
        return self.third(hidden.t()).sin().square().mean()


def viewed() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model of which backward reads one storage through a view, and others as they are."""
    return Viewed(), _args()


def two_outputs() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model of two outputs and no loss."""
    return Stack(lambda x: (x, x.tanh())), _args()


def untraceable() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model that no tracer sees."""
    module = Stack(_loss)
    module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]  # what the test is about
    return module, _args()
