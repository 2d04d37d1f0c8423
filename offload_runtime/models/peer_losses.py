"""How each side runs a model forward: a function from a batch to its loss, which shares the model with all others.

Every compiled side gets a function with a code object of its own, because torch keeps compiled code there: so that a
side can be dropped without the others. The only module that names ``torch._dynamo.eval_frame.remove_from_cache`` and
torch's settings for recompute and offload; all are present in torch 2.11 and 2.13.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import eval_frame
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.graph.layers import tabulate_layers
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.bench_sides import SidePlan
from offload_runtime.models.peers import (
    ActivationBudget,
    Compile,
    Eager,
    EagerCheckpoint,
    Peer,
    SaveOnCpu,
    TorchOffload,
)
from offload_runtime.models.under_test import Batch, ModelUnderTest
from offload_runtime.runtime.backend import offload_backend

__all__ = ["FrontEnd", "SideLoss", "side_loss"]

LossFunction = Callable[[Batch], Tensor]
Backend = Callable[[fx.GraphModule, Sequence[Any]], Any]


@dataclass(frozen=True)
class FrontEnd:
    """How policies run: the back end's ``mode``, and the profile they plan for, None for that of the device."""

    mode: str
    hardware: HardwareProfile | None = None


@dataclass(frozen=True)
class SideLoss:
    """The loss of a batch under one side; ``code_of`` is the function on whose code torch keeps what it compiled."""

    loss: LossFunction
    code_of: Callable[..., Any] | None = None

    def forget(self) -> None:
        """Free what was compiled for this side. After a graph break some of it stays with the model's own code."""
        if self.code_of is not None:
            eval_frame.remove_from_cache(self.code_of)


def side_loss(side: SidePlan, model: ModelUnderTest, front_end: FrontEnd) -> SideLoss:
    """Return how ``side`` computes the loss of ``model``; compilation happens at the first call.

    Raises RefusedError (BEN931) for a peer that this torch or this model cannot have.
    """
    if side.policy is not None:
        return _under_policy(side.name, side.policy, model, front_end)
    assert side.peer is not None, "a side is a policy or a peer"
    return _PEER_LOSSES[type(side.peer)](side.peer, model)


def _under_policy(name: str, policy: CompiledPolicy, model: ModelUnderTest, front_end: FrontEnd) -> SideLoss:
    options = {
        "policy": policy,
        "mode": front_end.mode,
        "model": model.module,
        "hardware": front_end.hardware,
    }
    return _compiled(name, model, backend=offload_backend, options=options)


def _compiled(name: str, model: ModelUnderTest, **settings: Any) -> SideLoss:
    forward = _own_forward(name, model.module)
    compiled = torch.compile(forward, **settings)
    return SideLoss(lambda batch: model.loss(compiled(*batch)), code_of=forward)


def _own_forward(name: str, module: nn.Module) -> Callable[..., Any]:
    def forward(*args: Any) -> Any:
        return module(*args)

    own_code = forward.__code__.replace(co_name=f"forward of {name}")
    return types.FunctionType(own_code, forward.__globals__, name, None, forward.__closure__)


def _eager(peer: Peer, model: ModelUnderTest) -> SideLoss:
    return SideLoss(lambda batch: model.loss(model.module(*batch)))


def _save_on_cpu(peer: Peer, model: ModelUnderTest) -> SideLoss:
    def loss(batch: Batch) -> Tensor:
        with save_on_cpu(pin_memory=model.device.type != "cpu"):
            return model.loss(model.module(*batch))

    return SideLoss(loss)


def _eager_checkpoint(peer: Peer, model: ModelUnderTest) -> SideLoss:
    layers = [model.module.get_submodule(path) for path in _layer_paths(model.module)]
    if not layers:
        message = f"{model.name} has no repeated layers to checkpoint"
        hint = "keep the layers of the model in a ModuleList or a Sequential"
        raise RefusedError(Diagnostic("BEN931", "error", message, hint=hint))

    def loss(batch: Batch) -> Tensor:
        with _checkpointed(layers):
            return model.loss(model.module(*batch))

    return SideLoss(loss)


def _layer_paths(module: nn.Module) -> tuple[str, ...]:
    return tabulate_layers(name for name, _ in module.named_modules()).paths


@contextmanager
def _checkpointed(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Run each layer under a checkpoint while the context is open; the other sides see the model as it was.

    Backward may follow outside: each checkpoint holds the layer's own forward.
    """
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        vars(layer)["forward"] = _checkpointing(layer.forward)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = own


def _checkpointing(forward: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed


def _compile(peer: Peer, model: ModelUnderTest) -> SideLoss:
    return _compiled(peer.title, model)


def _activation_budget(peer: Peer, model: ModelUnderTest) -> SideLoss:
    assert isinstance(peer, ActivationBudget)
    return _compiled(peer.title, model, backend=_inductor_under(activation_memory_budget=peer.share))


def _torch_offload(peer: Peer, model: ModelUnderTest) -> SideLoss:
    return _compiled(peer.title, model, backend=_inductor_under(enable_activation_offloading=True))


def _inductor_under(**settings: Any) -> Backend:
    """Return a back end that is Inductor with torch's ``settings`` on while it compiles.

    Each call gives one of its own: torch shares compiled code between back ends that are equal, and does not look
    at these settings. Raises RefusedError (BEN931) for a setting that this torch does not have.
    """
    for setting in settings:
        if not hasattr(functorch_config, setting):
            message = f"torch {torch.__version__} has no setting {setting}"
            hint = "leave this peer out, or use a torch that has it"
            raise RefusedError(Diagnostic("BEN931", "error", message, hint=hint))

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        with functorch_config.patch(**settings):
            return inductor.compile_fx(gm, list(example_inputs))

    return backend


_PEER_LOSSES: dict[type[Peer], Callable[[Peer, ModelUnderTest], SideLoss]] = {
    Compile: _compile,
    Eager: _eager,
    EagerCheckpoint: _eager_checkpoint,
    SaveOnCpu: _save_on_cpu,
    ActivationBudget: _activation_budget,
    TorchOffload: _torch_offload,
}
