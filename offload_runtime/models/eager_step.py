"""The peak of a step as eager PyTorch runs it, without ``torch.compile``: counted operator by operator.

    module, loss -> run forward and backward on fake tensors -> each storage from its allocation to its last reference

Autograd itself decides what is saved, and Python when it is freed, as in a run; operators are those of an accelerator.
What a kernel takes for itself, and what the allocator loses to fragments, is not counted. Uses
``torch.utils._python_dispatch`` and ``torch.autograd.graph._engine_run_backward``, present in torch 2.11 and 2.13.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph as autograd_graph
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from offload_runtime.errors import named_error
from offload_runtime.models.fake_capture import NotTraceable
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.runtime.accelerator_calls import AcceleratorCalls, accelerator_operators
from offload_runtime.runtime.capture import as_fake

__all__ = ["eager_peak_bytes"]

_BLOCK = 512  # CUDACachingAllocator rounds what it is asked for up to this


def eager_peak_bytes(model: ModelUnderTest) -> int:
    """Return the device bytes at the peak of forward and backward.

    Parameters, buffers, the batch and gradients are counted, the optimizer's state and workspaces of libraries are
    not. Where gradients accumulate, those of earlier batches are there. Raises NotTraceable
    for a model that fake tensors cannot run.
    """
    module, args, _, mode = as_fake(model.module, model.example_args, {})
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    live = _LiveStorages()
    try:
        with torch.random.fork_rng(devices=[]), mode, accelerator_operators(), live, AcceleratorCalls():
            if model.gradient_accumulation_steps > 1:
                for parameter in parameters:
                    parameter.grad = torch.zeros_like(parameter)
            live.count([*module.parameters(), *module.buffers(), *tree_leaves(args)])
            _backward(model.loss(module(*args)))
    except Exception as error:  # the model's own code runs here, and may do what fake tensors cannot
        raise NotTraceable(named_error(error)) from error
    finally:
        for parameter in parameters:
            parameter.grad = None
    return live.peak_bytes


def _backward(loss: Tensor) -> None:
    """Run backward as `Tensor.backward` does, but in the modes of the caller: what is checkpointed runs once more."""
    gradient = torch.ones_like(loss)
    autograd_graph._engine_run_backward(
        (loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


class _LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that operators return, while anything refers to them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.peak_bytes = 0
        self._now_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def count(self, values: Iterable[Any]) -> None:
        """Count the storages of the tensors in ``values`` that are not counted yet."""
        for value in values:
            if isinstance(value, Tensor):
                self._count_storage(value.untyped_storage())
        self.peak_bytes = max(self.peak_bytes, self._now_bytes)

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        num_bytes = -(-storage.nbytes() // _BLOCK) * _BLOCK

        def freed(_: object) -> None:
            del self._alive[key]
            self._now_bytes -= num_bytes

        self._alive[key] = weakref.ref(storage, freed)
        self._now_bytes += num_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(tree_leaves(result))
        return result
