from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.models.recorded_step import record_step

WIDTH = 4


class Net(nn.Module):
    """A linear layer whose output is in a mapping, and scaled by a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        return {"logits": self.linear(x) * scale}


TARGET = torch.tensor([0, 1, 2, 3, 0])


def functional(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, TARGET)


def criterion(logits: Tensor) -> Tensor:
    return nn.CrossEntropyLoss()(logits.view(-1, WIDTH), TARGET)


def arithmetic(logits: Tensor) -> Tensor:
    unused = logits.sum().item()
    assert isinstance(unused, float)
    return ((logits - 1).abs()[:, 1:].mean() + 1e-3 * (logits**2).sum()) / 2


def written_in_place(logits: Tensor) -> Tensor:
    scaled = logits * 2
    scaled[TARGET == 0] = 0
    scaled.add_(1)
    return torch.stack([scaled.square().mean(), logits.mean()]).sum()


@pytest.mark.parametrize("loss_of", [functional, criterion, arithmetic, written_in_place])
def test_the_recorded_loss_is_that_of_the_loop_on_any_output(loss_of: Callable[[Tensor], Tensor]) -> None:
    model, batch = Net(), torch.randn(5, WIDTH)

    def loop() -> None:
        with torch.no_grad():
            model(batch)
        loss_of(model(batch, scale=0.5)["logits"]).backward()
        raise AssertionError("the loop went on")

    step = record_step(loop)
    assert step.module is model
    assert (step.args, step.kwargs) == ((batch,), {"scale": 0.5})
    other = Net()(torch.randn(5, WIDTH))
    torch.testing.assert_close(step.loss(other), loss_of(other["logits"]), rtol=0, atol=0)
    step.loss(model(batch)).backward()
    assert model.linear.weight.grad is not None


def test_the_loops_own_step_is_not_kept_in_memory() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def loop() -> None:
        logits = Net()(torch.randn(5, WIDTH))["logits"]
        seen.append(weakref.ref(logits))
        functional(logits).backward()

    step = record_step(loop)
    gc.collect()
    assert seen[0]() is None
    assert step.loss(Net()(torch.randn(5, WIDTH))).ndim == 0


def test_wrappers_of_compilation_and_parallelism_are_taken_off() -> None:
    model = Net()
    compiled: Any = torch.compile(nn.DataParallel(model))
    step = record_step(lambda: compiled(torch.randn(5, WIDTH))["logits"].sum().backward())
    assert step.module is model


def test_what_is_patched_is_as_before_afterwards() -> None:
    before = nn.Module.__call__, torch.autograd.backward
    record_step(lambda: Net()(torch.randn(5, WIDTH))["logits"].sum().backward())
    assert (nn.Module.__call__, torch.autograd.backward) == before


def no_backward() -> None:
    Net()(torch.randn(5, WIDTH))


def two_modules() -> None:
    Net()(Net()(torch.randn(5, WIDTH))["logits"])["logits"].sum().backward()


def no_module() -> None:
    torch.ones(3, requires_grad=True).sum().backward()


def unrelated_loss() -> None:
    Net()(torch.randn(5, WIDTH))
    torch.ones(3, requires_grad=True).detach().requires_grad_().backward(torch.ones(3))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (no_backward, "ended without a backward"),
        (two_modules, "calls Net and Net one after the other"),
        (no_module, r"not of a torch\.nn\.Module"),
        (unrelated_loss, "does not follow from the output"),
    ],
)
def test_a_loop_without_one_step_of_one_module_is_refused(loop: Callable[[], None], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        record_step(loop)


class Chain(nn.Module):
    """Products in a row, each of which saves its input; counts how many of these are alive at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.num_alive = 0

    def forward(self, x: Tensor) -> Tensor:
        inputs: list[weakref.ref[Tensor]] = []
        for _ in range(10):
            x = x * self.weight
            inputs.append(weakref.ref(x))
        self.num_alive = sum(each() is not None for each in inputs)
        return x


def test_nothing_is_saved_for_the_backward_that_never_runs() -> None:
    model = Chain()
    model(torch.randn(5))
    assert model.num_alive == 10
    step = record_step(lambda: model(torch.randn(5)).square().sum().backward())
    assert model.num_alive == 1  # what the next product is made of
    assert step.loss is not None
    assert step.loss(torch.full((5,), 2.0)).item() == 20


class Forces(nn.Module):
    """Takes a gradient in its forward, by autograd or by a transform of torch.func, which wants no hooks."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.by = by

    def energy(self, x: Tensor) -> Tensor:
        return self.linear(x).square().sum()

    def forward(self, x: Tensor) -> Tensor:
        if self.by == "func":
            return torch.func.grad(self.energy)(x)
        (force,) = torch.autograd.grad(self.energy(x), x, create_graph=True)
        return force


@pytest.mark.parametrize("by", ["autograd", "func"])
def test_a_model_that_takes_gradients_itself_is_recorded_with_what_it_saves(by: str) -> None:
    model, batch = Forces(by), torch.randn(5, WIDTH, requires_grad=True)
    step = record_step(lambda: model(batch).square().sum().backward())
    assert step.module is model
    assert step.loss is not None
    force = model(batch)
    torch.testing.assert_close(step.loss(force), force.square().sum(), rtol=0, atol=0)


def test_gradients_between_output_and_loss_are_refused() -> None:
    model, batch = Net(), torch.randn(5, WIDTH, requires_grad=True)

    def loop() -> None:
        logits = model(batch)["logits"]
        (slope,) = torch.autograd.grad(logits.sum(), batch, create_graph=True)
        (logits.sum() + slope.square().sum()).backward()

    with pytest.raises(RuntimeError, match="takes gradients between the model's output and the loss"):
        record_step(loop)
