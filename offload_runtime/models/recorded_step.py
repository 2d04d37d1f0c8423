"""The first training step of a training loop that was written for something else, as a model and its loss.

    main() -> the first call of a model that trains -> what is computed from its output -> backward, where it ends

The loop runs as it is until its first backward. The module, its arguments and the computation from the module's output
to the loss are kept, and computed again on other outputs of the same module. Nothing is saved for that backward, which
never runs, so that a step which does not fit the device is recorded too; nothing of it stays in memory afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["RecordedLoss", "RecordedStep", "record_step"]


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor that follows from the module's output, by the order in which such tensors came up."""

    index: int


@dataclass(frozen=True)
class LossCall:
    """One call on the way from the output to the loss; arguments that follow from the output are slots."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Slot | None, ...]


@dataclass(frozen=True, eq=False)
class RecordedLoss:
    """Computes the loss of the recorded step from an output of the same module."""

    outputs: tuple[Slot | None, ...]
    calls: tuple[LossCall, ...]
    loss: Slot

    def __call__(self, output: Any) -> Tensor:
        """Return the loss of ``output``, which has the structure of the recorded one; targets follow its device."""
        tensors: dict[Slot | None, Tensor] = dict(zip(self.outputs, _tensors(output), strict=True))
        device = next(iter(tensors.values())).device

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return tensors[leaf]
            return leaf.to(device) if isinstance(leaf, Tensor) and leaf.device != device else leaf

        for call in self.calls:
            result = call.function(*tree_map(value, call.args), **tree_map(value, dict(call.kwargs)))
            tensors.update(zip(call.results, _tensors(result), strict=True))
        return tensors[self.loss]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """The module that the loop trains, how it was called, and its loss; None where its output is or holds that."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: RecordedLoss | None


def record_step(run: Callable[[], object]) -> RecordedStep:
    """Call ``run`` until its first backward, and return the training step that led there.

    ``torch.compile`` is off meanwhile. Raises RuntimeError where there is no such step, where it is of more than one
    module that trains, and where it takes gradients on its way from a module's output to the loss.
    """
    recorder = _Recorder()
    with torch.compiler.set_stance("force_eager"), recorder.watching(), recorder:
        try:
            run()
        except _FirstBackwardError:
            return recorder.step()
    raise RuntimeError("it ended without a backward: call what trains, and let it train at least one step")


class _FirstBackwardError(BaseException):
    """Ends the loop; no handler of ordinary exceptions stops it."""


@dataclass(frozen=True, eq=False)
class _Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


class _Recorder(TorchFunctionMode):
    """Sees each call of a torch function and of an outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.model: _Call | None = None
        self.after: list[_Call] = []
        self.loss: Tensor | None = None
        self.depth = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_after = self.model is not None and self.depth == 0
        with _nothing_saved() if is_after else nullcontext():
            result = func(*args, **kwargs)
        if is_after:
            self.after.append(_Call(func, tuple(args), kwargs, result))
        return result

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See calls of modules, and the first backward."""
        call_module = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return call_module(module, *args, **kwargs)
            self.depth += 1
            try:
                result = _called_without_saving(call_module, module, args, kwargs)
            finally:
                self.depth -= 1
            self._saw(_Call(module, args, kwargs, result), module)
            return result

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            (self.loss,) = [tensors] if isinstance(tensors, Tensor) else tensors
            raise _FirstBackwardError

        with mock.patch.object(nn.Module, "__call__", call), mock.patch("torch.autograd.backward", backward):
            yield

    def _saw(self, call: _Call, module: nn.Module) -> None:
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if trains and self.model is not None:
            names = f"{type(self.model.function).__name__} and {type(module).__name__}"
            raise RuntimeError(
                f"the step calls {names} one after the other: a policy is for one module that is called once a step; "
                "make them parts of one module, whose forward calls both"
            )
        if trains:
            self.model = call
        elif self.model is not None:
            self.after.append(call)

    def step(self) -> RecordedStep:
        """Return what was seen, without the tensors of the recorded step itself."""
        if self.model is None or self.loss is None:
            raise RuntimeError("its backward is not of a torch.nn.Module that was called before it")
        module = self.model.function
        assert isinstance(module, nn.Module), "only modules are taken for the model"
        loss = None if _holds(self.model.result, self.loss) else _loss(self.model, self.after, self.loss)
        return RecordedStep(_unwrapped(module), self.model.args, self.model.kwargs, loss)


class _NotSavedError(RuntimeError):
    """Raised where something does take gradients before the loop's backward."""

    def __init__(self) -> None:
        super().__init__(
            "it takes gradients between the model's output and the loss: give the model, a batch and the loss by "
            "functions"
        )


def _nothing_saved() -> saved_tensors_hooks:
    def pack(_: Tensor) -> None:
        return None

    def unpack(_: None) -> Tensor:
        raise _NotSavedError

    return saved_tensors_hooks(pack, unpack)


def _called_without_saving(
    call: Callable[..., Any], module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call ``module``, and again with what it saves where it takes gradients itself, as models of forces do."""
    try:
        with _nothing_saved():
            return call(module, *args, **kwargs)
    except _NotSavedError:
        return call(module, *args, **kwargs)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        return call(module, *args, **kwargs)  # transforms of torch.func run under no hooks


def _holds(output: Any, loss: Tensor) -> bool:
    """Tell whether ``output`` is the loss, or has it as ``loss``, as the models of transformers do with labels."""
    return output is loss or (isinstance(output, Mapping) and output.get("loss") is loss)


def _loss(model: _Call, after: Sequence[_Call], loss: Tensor) -> RecordedLoss:
    """Keep the calls that lead to ``loss``, in their order, with slots in place of the step's own tensors."""
    needed = {id(loss)}
    kept: list[_Call] = []
    for call in reversed(after):
        # What returns nothing may write into what it was given, as out[mask] = 0 does.
        written = _tensors(call.result) or _tensors((call.args, call.kwargs))
        if any(id(tensor) in needed for tensor in written):
            kept.append(call)
            needed |= {id(tensor) for tensor in _tensors((call.args, call.kwargs))}
    if not any(id(tensor) in needed for tensor in _tensors(model.result)):
        raise RuntimeError("the loss does not follow from the output of the module that was called before it")
    kept.reverse()
    slots: dict[int, Slot] = {}
    for call in (model, *kept):
        for tensor in _tensors(call.result):
            slots.setdefault(id(tensor), Slot(len(slots)))

    def slotted(leaf: Any) -> Any:
        return slots.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

    def results(call: _Call) -> tuple[Slot | None, ...]:
        return tuple(slots[id(tensor)] for tensor in _tensors(call.result))

    calls = tuple(
        LossCall(
            call.function, tree_map(slotted, call.args), tree_map(slotted, dict(call.kwargs)), results(call)
        )
        for call in kept
    )
    return RecordedLoss(results(model), calls, slots[id(loss)])


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile or data parallelism has wrapped."""
    while True:
        if isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod  # type: ignore[assignment]  # as just checked
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
