"""Capture a whole training step without Dynamo: module, loss and backward as one joint graph.

    module, loss_fn, args -> fake copies -> forward called as Python, AOTAutograd traces -> joint graph

A second source for the same analysis: it needs no bytecode capture, so that it sees through what breaks Dynamo's
graphs, and it holds the loss wherever that is computed. Modules are told by hooks that annotate what they trace. For
models that Dynamo captures whole, both sources give the same saved tensors. The only module that names
``torch._functorch.aot_autograd``; present in torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import aot_autograd, partitioners
from torch.fx import traceback

from offload_runtime.graph.joint import ModelNames
from offload_runtime.passes.partition import copy_graph
from offload_runtime.passes.pipeline import JointInputs
from offload_runtime.runtime.accelerator_calls import AcceleratorCalls, accelerator_operators
from offload_runtime.runtime.capture import CapturedGraph, as_fake

__all__ = ["capture_step"]

_MODULE = "module"


def capture_step(
    module: nn.Module,
    args: Sequence[Any],
    loss_fn: Callable[[Any], torch.Tensor] | None = None,
    *,
    accelerator: bool = True,
) -> CapturedGraph:
    """Trace ``loss_fn(module(*args))`` and its backward as one graph; without ``loss_fn`` the module returns the loss.

    ``module`` and ``args`` hold fake tensors, or real ones on any device; nothing is computed. With ``accelerator``
    the graph is that of a CUDA device, as mode ``graph`` runs it. Raises what the model's own forward raises for
    inputs without data.
    """
    module, args, _, fake_mode = as_fake(module, args, {})
    kept: list[CapturedGraph] = []
    names = ModelNames("", tuple(name for name, _ in module.named_modules()))
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def step(state: Mapping[str, torch.Tensor], args: Sequence[Any]) -> Any:
        with AcceleratorCalls() if accelerator else nullcontext():
            output = torch.func.functional_call(module, dict(state), tuple(args))
        if loss_fn is None:
            return output
        with traceback.annotate({_MODULE: ""}):
            return loss_fn(output)

    def keep(
        gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        _name_modules(gm)
        gm.graph.eliminate_dead_code()
        inputs = JointInputs(joint_inputs, kwargs["num_fwd_outputs"], range(len(state)), names)
        kept.append(CapturedGraph(copy_graph(gm), inputs))
        forward, backward = partitioners.default_partition(
            gm, joint_inputs, num_fwd_outputs=inputs.num_fwd_outputs
        )
        return forward, backward

    traced = aot_autograd.aot_function(
        step, fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=keep, num_params_buffers=len(state)
    )
    operators = accelerator_operators() if accelerator else nullcontext()
    with fake_mode, operators, traceback.preserve_node_meta(), _annotated(module):
        traced(state, tuple(args))
    return kept[0]


def _as_it_is(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return boxed_nop(gm, list(example_inputs))


@contextmanager
def _annotated(root: nn.Module) -> Iterator[None]:
    """Let every module annotate what is traced while it runs with its name."""
    running: list[AbstractContextManager[None]] = []
    hooks = []

    def enters(name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            annotation = traceback.annotate({_MODULE: name})
            annotation.__enter__()
            running.append(annotation)

        return enter

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    for name, module in root.named_modules():
        hooks.append(module.register_forward_pre_hook(enters(name)))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _name_modules(gm: fx.GraphModule) -> None:
    """Write the annotated module of every node where the analysis of captured graphs looks for it."""
    for node in gm.graph.nodes:
        name = (node.meta.get("custom") or {}).get(_MODULE)
        if name is not None:
            node.meta["nn_module_stack"] = {name: (name, None)}
