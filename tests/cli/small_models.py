"""Models that the tests of `explain` and `apply` name as `tests.cli.small_models:FUNCTION`."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn


class Block(nn.Module):
    """A perceptron with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Stack(nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a stack of three layers."""
    return Stack(), (torch.randn(32, 16),)


def noisy() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the stack after printing through Python and straight to the file descriptor."""
    print("a word from Python")  # noqa: T201 - what the test is about
    os.write(1, b"a word from below\n")
    return stack()


def forking() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the stack in two processes."""
    if os.fork():
        os.wait()
    return stack()


def leaving() -> None:
    """End the process."""
    sys.exit(7)


class Cancelled(BaseException):
    """What an event loop raises to unwind."""


def unwinding() -> None:
    """Leave as an event loop does."""
    raise Cancelled


def raising() -> None:
    """Fail."""
    raise ValueError("not today")
