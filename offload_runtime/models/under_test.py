"""A model with everything that training it needs: what each kind of model specification resolves to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offload_runtime.errors import Diagnostic, RefusedError

Batch = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ModelUnderTest:
    """A module, its data, its loss and its optimizer, on one device.

    ``example_args`` is the batch of step 0, and ``make_batch(step)`` that of any step; equal for equal
    seeds. ``loss_fn`` takes the module's output; None where the output holds the loss (see `loss`).
    ``num_layers`` is None where nothing says how to change it. A step of the optimizer takes the gradients of
    ``gradient_accumulation_steps`` batches.
    """

    name: str
    description: str
    module: nn.Module
    example_args: Batch
    loss_fn: Callable[[Any], Tensor] | None
    make_batch: Callable[[int], Batch]
    num_parameters: int
    num_layers: int | None
    dtype: str
    device: torch.device
    optimizer: str
    learning_rate: float
    gradient_accumulation_steps: int = 1

    def loss(self, output: Any) -> Tensor:
        """Return the scalar loss of the module's ``output``.

        Without a ``loss_fn`` it is the output itself where that is a scalar, its ``loss`` where it has one
        (as Hugging Face's models do), else the mean square of all floating-point tensors in it.
        """
        if self.loss_fn is not None:
            return self.loss_fn(output)
        if isinstance(output, Tensor) and output.ndim == 0:
            return output
        if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
            loss: Tensor = output["loss"]
            return loss
        terms = [t.float().square().mean() for t in tensors_in(output) if t.is_floating_point()]
        if not terms:
            raise RefusedError(
                Diagnostic(
                    "MOD721",
                    "error",
                    f"the output of {self.name} holds no floating-point tensor to take a loss of: "
                    f"{type(output).__name__}",
                    hint="return a loss_fn as the third value of the function",
                )
            )
        return torch.stack(terms).sum()

    def make_optimizer(self) -> torch.optim.Optimizer | None:
        """Return a new optimizer over the module's trainable parameters, or None for ``none``."""
        trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if self.optimizer == "adamw":
            return torch.optim.AdamW(trainable, lr=self.learning_rate)
        if self.optimizer == "adamw-fused":
            return torch.optim.AdamW(trainable, lr=self.learning_rate, fused=True)
        if self.optimizer == "sgd":
            return torch.optim.SGD(trainable, lr=self.learning_rate)
        return None


@dataclass(frozen=True)
class StateBytes:
    """Bytes of what a model is made of; ``trainable`` are the parameters that get a gradient.

    ``trainable_half`` are those of them that 16-bit parameters make up.
    """

    parameters: int
    trainable: int
    buffers: int
    batch: int
    trainable_half: int = 0

    @classmethod
    def of(cls, model: ModelUnderTest) -> StateBytes:
        """Count the module's parameters and buffers (tied ones once), and its example batch."""
        parameters = list(model.module.parameters())
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        return cls(
            parameters=sum(parameter.nbytes for parameter in parameters),
            trainable=sum(parameter.nbytes for parameter in trainable),
            trainable_half=sum(parameter.nbytes for parameter in trainable if parameter.itemsize == 2),
            buffers=sum(buffer.nbytes for buffer in model.module.buffers()),
            batch=sum(tensor.nbytes for tensor in tensors_in(model.example_args)),
        )


def described_inputs(value: Any) -> tuple[str, ...]:
    """Return type and shape of each tensor in ``value``, such as ``int64[2, 8192]``."""
    return tuple(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def moved_to(value: Any, device: torch.device) -> Any:
    """Return ``value`` with the tensors in its nested tuples, lists and dicts on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved_to(item, device) for item in value))
    if type(value) in (tuple, list):
        return type(value)(moved_to(item, device) for item in value)
    if type(value) is dict:
        return {key: moved_to(item, device) for key, item in value.items()}
    return value


def count_parameters(module: nn.Module) -> int:
    """Return the number of elements of the module's parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def parameter_dtype(parameters: Iterable[nn.Parameter]) -> str:
    """Return the type of the parameters, such as ``bfloat16``; types that differ are joined by ``+``."""
    names = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters}
    return "+".join(sorted(names)) or "none"
