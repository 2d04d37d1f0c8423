"""A model traced for planning: its joint graphs, and those of a loss that is taken outside of it.

    module, args, loss_fn -> joint graphs of the module + joint graph of the loss -> what a plan is made for

Most models hold their loss. One that does not returns its output, and the loss is taken eagerly: memory and time that
a prediction has to count, though no policy acts there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from offload_runtime.errors import Diagnostic, OffloadError, RefusedError, RunError
from offload_runtime.models.failures import explain_failure
from offload_runtime.models.fake_capture import NotTraceable, capture_request
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.under_test import (
    ModelUnderTest,
    StateBytes,
    count_parameters,
    parameter_dtype,
    tensors_in,
)
from offload_runtime.runtime.capture import CapturedGraph, capture_joint_graphs

__all__ = ["StateBytes", "TracedModel", "capture", "trace_request"]


@dataclass(frozen=True, eq=False)
class TracedModel:
    """A model and the graphs of one training step, traced with fake tensors as a CUDA device runs them.

    ``graphs`` are those of the module: one, or several after graph breaks. ``loss_graphs`` are of a loss outside of
    it. ``mode`` is the front end whose graphs they are. Planning changes copies of them, never the graphs.
    """

    model: ModelUnderTest
    mode: str
    graphs: tuple[CapturedGraph, ...]
    loss_graphs: tuple[CapturedGraph, ...]
    diagnostics: tuple[Diagnostic, ...]
    state: StateBytes


def capture(
    module: nn.Module,
    args: Sequence[Any],
    loss_fn: Callable[[Any], Tensor] | None = None,
    *,
    fake: bool = True,
    mode: str = "graph",
) -> TracedModel:
    """Trace ``module(*args)``, its loss and its backward, with fake tensors: nothing is computed, nothing allocated.

    ``loss_fn`` takes the module's output; it may be left out where that is the loss. ``mode`` is ``graph`` or
    ``inductor``. The graphs are those of a CUDA device, whatever device the tensors are on.

    ``fake=False`` is for a model whose forward computes with values outside of its graphs: it is called once with the
    tensors as they are, without backward, and the graphs are those of their device. Buffers and random states are
    restored. Raises RefusedError for a model that torch.compile cannot trace, RunError where forward fails, ValueError
    for ``fake=False`` with tensors that have no values.
    """
    if mode not in ("graph", "inductor"):
        raise ValueError(f"mode={mode!r} must be one of graph, inductor")
    name = type(module).__name__
    parameters = list(module.parameters())
    model = ModelUnderTest(
        name=name,
        description=name,
        module=module,
        example_args=tuple(args),
        loss_fn=loss_fn,
        make_batch=lambda step: tuple(args),
        num_parameters=count_parameters(module),
        num_layers=None,
        dtype=parameter_dtype(parameters),
        device=torch.device("cpu"),
        optimizer="none",
        learning_rate=0.0,
    )
    if not fake:
        _require_values([*module.parameters(), *module.buffers(), *tensors_in(tuple(args))])
    try:
        with nullcontext() if fake else _restored(module):
            graphs = capture_joint_graphs(module, args, mode=mode, fake=fake)
    except Exception as error:
        failure = explain_failure(error, name)
        raise (_needs_values(failure) if fake and isinstance(failure, RunError) else failure) from error
    return _traced(model, mode, graphs)


def _needs_values(failure: OffloadError) -> RefusedError:
    """Return what a forward that failed with fake tensors means to whoever captures it."""
    message = f"it cannot be traced with fake tensors: {failure.diagnostics[0].message}"
    hint = "make module(*args) work first; one that computes with values is captured by fake=False"
    return RefusedError(Diagnostic("MOD732", "error", message, hint=hint))


def _require_values(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.untyped_storage().device.type == "meta":  # that of a fake tensor, too
            raise ValueError(
                f"fake=False calls the module, and a tensor of shape {list(tensor.shape)} has no values"
            )


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Put buffers and random states back to what they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {parameter.device for parameter in module.parameters() if parameter.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def trace_request(request: ModelRequest, *, mode: str) -> TracedModel:
    """Trace the model of ``request``.

    Raises as ``ModelRequest.resolve`` does, and RefusedError for a model that cannot be traced.
    """
    try:
        captured = capture_request(request, mode=mode, accelerator=True)
    except NotTraceable as error:
        message = f"{request.spec} cannot be traced with fake tensors: {error}"
        hint = "make torch.compile(module)(*example_args) work first, and compute with no values outside the graph"
        raise RefusedError(Diagnostic("MOD732", "error", message, hint=hint)) from error
    return _traced(captured.model, mode, captured.graphs)


def _traced(model: ModelUnderTest, mode: str, graphs: tuple[CapturedGraph, ...]) -> TracedModel:
    if not graphs:
        message = f"no graph of {model.name} could be captured: all of it runs outside torch.compile"
        hint = "look for what breaks the graph with TORCH_LOGS=graph_breaks"
        raise RefusedError(Diagnostic("MOD731", "error", message, hint=hint))
    loss_graphs, diagnostics = _trace_loss(model, graphs)
    return TracedModel(model, mode, graphs, loss_graphs, diagnostics, StateBytes.of(model))


def _trace_loss(
    model: ModelUnderTest, graphs: Sequence[CapturedGraph]
) -> tuple[tuple[CapturedGraph, ...], tuple[Diagnostic, ...]]:
    """Trace the loss of a module that does not hold it, from the output that its last graph returns."""
    outputs = _forward_values(graphs[-1])
    if model.loss_fn is None and any(output.ndim == 0 for output in outputs if output.is_floating_point()):
        return (), ()
    if len(graphs) == 1 and len(outputs) == 1 and outputs[0].is_floating_point():
        try:
            return capture_joint_graphs(_Loss(model), [_leaf_like(outputs[0])], mode="graph"), ()
        except OffloadError:
            raise
        except Exception as error:  # noqa: BLE001 - a loss runs eagerly, it need not be traceable
            return (), (_loss_left_out(model, f"{type(error).__name__} while it was traced"),)
    return (), (_loss_left_out(model, "the module returns more than one tensor, or has several graphs"),)


def _loss_left_out(model: ModelUnderTest, reason: str) -> Diagnostic:
    message = f"the loss of {model.name} is not part of the prediction: {reason}"
    hint = "let the module return its loss, alone or as `loss` of its output: memory and time of it are then predicted"
    return Diagnostic("PLN417", "note", message, hint=hint)


class _Loss(nn.Module):
    """The loss of a model's output, as a module of its own."""

    def __init__(self, model: ModelUnderTest) -> None:
        super().__init__()
        self.loss = model.loss

    def forward(self, output: Tensor) -> Tensor:
        return self.loss(output)


def _forward_values(graph: CapturedGraph) -> list[Tensor]:
    results = graph.module.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    forward = results[: graph.inputs.num_fwd_outputs]
    return [node.meta["val"] for node in forward if isinstance(node, fx.Node) and _is_tensor(node)]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _leaf_like(value: Tensor) -> Tensor:
    """Return a fake tensor like ``value`` that a backward can begin at."""
    with value.fake_mode:  # type: ignore[attr-defined]  # values of a captured graph are fake tensors
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device, requires_grad=True
        )
