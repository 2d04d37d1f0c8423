"""Capture the joint graphs of a model without a device, without weights, without running it.

The model goes through the very entry points that a run uses (Dynamo, AOTAutograd, Inductor's graph passes), with fake
tensors in place of its own:

    module, args -> fake copies -> Dynamo -> AOTAutograd -> joint graph, and what the partitioner is told of it

Fake tensors stand on the CPU, because fake CUDA tensors cannot run backward in a torch without CUDA. Operators that
torch decomposes or replaces on the CPU alone are called by the names they have on the accelerator (attention, RMS
norm), so that the graph is that of the accelerator. The only module that names ``torch._subclasses`` and
``torch._inductor.compile_fx`` for capture; all are present in torch 2.11 and 2.13.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode

from offload_runtime.graph.joint import ModelNames
from offload_runtime.passes.partition import copy_graph
from offload_runtime.passes.pipeline import JointInputs
from offload_runtime.runtime.accelerator_calls import ACCELERATOR_CALLS, accelerator_operators
from offload_runtime.runtime.eager_parts import is_broken_off, root_frame
from offload_runtime.runtime.graph_names import locate_graph

__all__ = ["CapturedGraph", "as_fake", "capture_joint_graphs", "fake_module"]


@dataclass(frozen=True)
class CapturedGraph:
    """One joint graph of a model, as AOTAutograd hands it to a partitioner."""

    module: fx.GraphModule
    inputs: JointInputs

    def copy(self) -> fx.GraphModule:
        """Return a copy of the graph that a pass may change; values (fake tensors) are shared."""
        return copy_graph(self.module)


def capture_joint_graphs(
    module: nn.Module,
    args: Sequence[Any],
    *,
    mode: str = "graph",
    accelerator: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    fake: bool = True,
) -> tuple[CapturedGraph, ...]:
    """Trace ``module(*args, **kwargs)`` and its backward, one joint graph for each graph that Dynamo makes.

    ``module`` and ``args`` hold fake tensors (see ``fake_module``) or real ones on any device; nothing is computed.
    ``mode`` is ``graph`` or ``inductor``. With ``accelerator`` the graphs are those of a CUDA device. Without ``fake``
    they are those of the device that the tensors are on: what a graph break leaves to Python runs with their values,
    and what forward changes is changed. Raises what torch.compile raises for a model that it cannot trace.

    With ``fake`` the call ends as soon as one graph holds all of the module's forward: nothing else would be captured.
    """
    kwargs = kwargs or {}
    context: AbstractContextManager[Any] = nullcontext()
    if fake:
        module, args, kwargs, context = as_fake(module, args, kwargs)
    accelerator = accelerator and fake
    collector = _Collector(module, mode, accelerator, is_whole_call=not fake)
    whole_operators = accelerator_operators() if accelerator else nullcontext()
    with context, functorch_config.patch(enable_autograd_cache=False), whole_operators:
        torch.compiler.reset()
        try:
            torch.compile(module, backend=collector.compile, dynamic=False)(*args, **kwargs)
        except _AllCaptured:
            pass
        finally:
            torch.compiler.reset()
    return tuple(collector.graphs)


def fake_module(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of ``module`` whose parameters and buffers are fake tensors on the CPU: it takes no memory."""
    with FakeCopyMode(mode):
        faked = copy.deepcopy(module)
    moved: dict[int, torch.Tensor] = {}
    for part in faked.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.device.type != "cpu":
                    if id(tensor) not in moved:
                        moved[id(tensor)] = _on_cpu(tensor, mode)
                    table[name] = moved[id(tensor)]  # type: ignore[assignment]  # a parameter stays one
    return faked


def _on_cpu(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        moved = tensor.detach().to("cpu")
        return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def as_fake(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, Sequence[Any], Mapping[str, Any], FakeTensorMode]:
    """Return fake counterparts of a module and its arguments, and their mode; what is fake already stays."""
    tensors = [*module.parameters(), *module.buffers(), *torch.utils._pytree.tree_leaves((args, kwargs))]
    modes = {id(item.fake_mode): item.fake_mode for item in tensors if isinstance(item, FakeTensor)}
    if modes:
        return module, args, kwargs, next(iter(modes.values()))
    mode = FakeTensorMode()

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return mode.from_tensor(value, static_shapes=True).to("cpu")

    args, kwargs = torch.utils._pytree.tree_map(fake, (tuple(args), dict(kwargs)))
    return fake_module(module, mode), args, kwargs, mode


class _AllCaptured(BaseException):
    """Ends a capture. No ``Exception``: torch would wrap it, or take it for a failure of the back end."""


class _Collector:
    """The back end of a capture: keeps each joint graph, and lets fake tensors run through it where others follow."""

    def __init__(self, module: nn.Module, mode: str, accelerator: bool, *, is_whole_call: bool) -> None:
        self.module = module
        self.mode = mode
        self.accelerator = accelerator
        self.is_whole_call = is_whole_call
        self.partial = False
        self.graphs: list[CapturedGraph] = []

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.partial = self.partial or is_broken_off(gm)
        if self.accelerator:
            _call_as_on_accelerator(gm)
        is_last = not self.is_whole_call and not self.partial and _is_whole_forward(gm, self.module)
        names = locate_graph(gm, example_inputs, self.module, partial=self.partial)
        partitioner = _KeepJoint(self, names, is_last)
        if self.mode == "inductor":
            # Importing it takes two seconds, and mode graph has no use for it.
            from torch._inductor import compile_fx as inductor

            compiled: Any = inductor.compile_fx(
                gm,
                list(example_inputs),
                inner_compile=_run_as_it_is,
                config_patches={"custom_partitioner_fn": partitioner},
            )
        else:
            compile_graph = aot_autograd(
                fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partitioner
            )
            compiled = compile_graph(gm, list(example_inputs))
        return compiled  # type: ignore[no-any-return]  # compile_fx is typed for its other uses


def _run_as_it_is(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    return boxed_nop(gm, list(example_inputs))


def _is_whole_forward(gm: fx.GraphModule, module: nn.Module) -> bool:
    """Whether Dynamo traced the forward of ``module`` itself from its begin to its return, and no hook follows it.

    What goes on after a graph break, or begins within a frame that Dynamo left alone, has another code at its root.
    """
    root = root_frame(gm)
    code = getattr(module.forward, "__code__", None)
    if root is None or code is None:
        return False
    if module._forward_hooks or torch.nn.modules.module._global_forward_hooks:
        return False
    lines = {line for _, _, line in code.co_lines()}
    return (root.filename, root.name) == (code.co_filename, code.co_name) and root.lineno in lines


class _KeepJoint(CustomPartitionerFn):
    """Keep the joint graph: of the last one itself, of others a copy, and these are split in torch's simplest way."""

    def __init__(self, collector: _Collector, names: ModelNames, is_last: bool) -> None:
        self.collector = collector
        self.names = names
        self.is_last = is_last

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        static = kwargs.get("static_lifetime_input_indices") or ()
        inputs = JointInputs(joint_inputs, kwargs["num_fwd_outputs"], static, self.names)
        gm.graph.eliminate_dead_code()
        whole = CapturedGraph(gm, inputs)
        if self.is_last:
            self.collector.graphs.append(whole)
            raise _AllCaptured
        self.collector.graphs.append(replace(whole, module=whole.copy()))
        forward, backward = partitioners.default_partition(
            gm,
            joint_inputs,
            num_fwd_outputs=inputs.num_fwd_outputs,
            static_lifetime_input_indices=list(static),
        )
        return forward, backward

    def __deepcopy__(self, memo: dict[int, Any]) -> _KeepJoint:
        """Stay one object: Inductor copies its configuration."""
        return self

    def uuid(self) -> Any:
        """Never share a compiled graph: nothing is compiled here."""
        return None


def _call_as_on_accelerator(gm: fx.GraphModule) -> None:
    """Call attention and RMS norm by the operators that an accelerator runs; on the CPU torch takes others."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function" and node.target in ACCELERATOR_CALLS:
                    node.target = ACCELERATOR_CALLS[node.target]
            module.recompile()
