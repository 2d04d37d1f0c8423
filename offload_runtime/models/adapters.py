"""What an adapter of a training script is made of: the script as a module, and its model as `package.module:function`.

`offload init --model-adapter` writes an adapter that calls these; an adapter can be written by hand as well::

    def build():
        with running_script("train.py") as train:
            return model_and_batch(train.make_model(), train.make_batch())
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offload_runtime.models.recorded_step import record_step

__all__ = ["first_training_step", "model_and_batch", "running_script", "trainer_step"]

BuiltModel = tuple[nn.Module, tuple[Any, ...]] | tuple[nn.Module, tuple[Any, ...], Callable[[Any], Tensor]]


@contextmanager
def running_script(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> Iterator[ModuleType]:
    """Import a script from its file, as if it was started with ``arguments``, for as long as the block lasts.

    It is imported anew each time, so that what it builds at its top level is new too; its own folder can be imported
    from, and what it does under ``if __name__ == "__main__"`` is not done. Python's and numpy's random numbers follow
    torch's seed: two runs of one step must see the same weights and data. The module stays importable under its name:
    torch.compile looks up what the model's code refers to.
    """
    path = Path(path).resolve()
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no Python script {path}")
    module = importlib.util.module_from_spec(spec)
    arguments_before, path_before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.argv, sys.path[:] = arguments_before, path_before


def first_training_step(run: Callable[[], object]) -> BuiltModel:
    """Call ``run``, which trains, until its first backward; return its model, that batch and the loss of both.

    A loss that the model itself returns, alone or as ``loss`` of its output, is left to it.

    Raises RuntimeError as `record_step` does.
    """
    step = record_step(run)
    if not step.kwargs:
        return _with_loss(step.module, step.args, step.loss)
    module = KeywordModel(step.module, len(step.args), tuple(step.kwargs))
    return _with_loss(module, (*step.args, *step.kwargs.values()), step.loss)


def model_and_batch(model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None = None) -> BuiltModel:
    """Return ``model`` with one batch as its arguments.

    A mapping gives keyword arguments, a tuple or list positional ones, anything else the only one. A ``loss`` of one
    argument gets the output; one of two gets the output and the last value of the batch, which the model then does not
    get. Without ``loss`` the model returns its loss, or its output has one called ``loss``.
    """
    if isinstance(batch, Mapping):
        return _with_loss(KeywordModel(model, 0, tuple(batch)), tuple(batch.values()), loss)
    values = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if loss is not None and _num_required(loss) == 2:
        *inputs, target = values
        return model, tuple(inputs), TargetLoss(loss, target)
    return _with_loss(model, values, loss)


def trainer_step(trainer: Any) -> BuiltModel:
    """Return the model of a ``transformers.Trainer`` with the first batch that it would train on.

    The model returns its own loss, as the models of transformers do where the batch has labels. A trainer with a
    ``compute_loss`` of its own needs `first_training_step` of its ``train``.
    """
    batch = next(iter(trainer.get_train_dataloader()))
    return model_and_batch(trainer.model, dict(batch))


class KeywordModel(nn.Module):
    """Calls ``model`` with its last arguments by keyword: a model under test is called with positional ones."""

    def __init__(self, model: nn.Module, num_positional: int, keywords: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.num_positional = num_positional
        self.keywords = keywords

    def forward(self, *values: Any) -> Any:
        """Return what the model returns."""
        named = dict(zip(self.keywords, values[self.num_positional :], strict=True))
        return self.model(*values[: self.num_positional], **named)


class TargetLoss:
    """A loss of an output alone: ``loss(output, target)``, with the target on the output's device."""

    def __init__(self, loss: Callable[..., Tensor], target: Any) -> None:
        self.loss = loss
        self.target = target

    def __call__(self, output: Any) -> Tensor:
        """Return the loss."""
        if isinstance(output, Tensor) and isinstance(self.target, Tensor):
            return self.loss(output, self.target.to(output.device))
        return self.loss(output, self.target)


def _with_loss(model: nn.Module, values: tuple[Any, ...], loss: Callable[..., Tensor] | None) -> BuiltModel:
    return (model, values) if loss is None else (model, values, loss)


def _num_required(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(
        function.forward if isinstance(function, nn.Module) else function
    ).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters.values())
