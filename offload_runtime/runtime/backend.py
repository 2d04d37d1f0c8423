"""The ``torch.compile`` back end: ``torch.compile(model, backend="offload", options={"policy": ...})``.

Both modes hand AOTAutograd one and the same partitioner, which applies the policy: mode ``graph`` runs the rewritten FX
graphs as they are, mode ``inductor`` compiles them. The only module that names torch's
private entry points for a run: ``aot_autograd`` and ``boxed_nop`` of
``torch._dynamo.backends``, ``torch._inductor.compile_fx``, ``config`` and ``custom_partitioner_fn``,
``torch._functorch.config``, ``torch._guards``, ``torch._C._current_graph_task_id``; all are present in torch 2.11 and
2.13.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomPartitionerFn

import offload_runtime
from offload_runtime.errors import Diagnostic, UnreadableError, UsageError
from offload_runtime.graph.joint import ModelNames
from offload_runtime.offload_plan import TransferSource
from offload_runtime.passes.offload import TransferOps
from offload_runtime.passes.pipeline import JointInputs, rewrite_joint
from offload_runtime.runtime import ops as transfer_ops
from offload_runtime.runtime import reference_ops
from offload_runtime.runtime.agreement import agree_on_largest, agree_on_limits, check_same_plan
from offload_runtime.runtime.eager_parts import graph_break_of
from offload_runtime.runtime.exit_report import report_at_exit
from offload_runtime.runtime.given_options import GivenOptions
from offload_runtime.runtime.graph_names import locate_graph
from offload_runtime.runtime.options import read_options
from offload_runtime.runtime.session import CompiledGraph, Session, living_sessions, remember_session
from offload_runtime.runtime.setting import judge_unknown_state, limits_left, setting_for
from offload_runtime.runtime.sizes import PlannedBytes, planned_bytes_of, sizes_of

__all__ = ["OffloadBackend", "offload_backend"]

OPS = TransferOps(
    transfer_ops.d2h_start, transfer_ops.d2h_wait, transfer_ops.h2d_start, transfer_ops.h2d_wait
)
# Under Inductor a transfer bounds what fuses, and fusion shows in the last bits: its reference has the same bounds.
REFERENCE_OPS = TransferOps(
    reference_ops.save_start,
    reference_ops.save_wait,
    reference_ops.load_start,
    reference_ops.load_wait,
    keeps_on_device=True,
)
_sessions_by_options: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()


class OffloadBackend:
    """The back end, as ``torch.compile(backend=...)`` takes it; ``offload_backend`` is the one there is.

    Before torch runs code that it compiled in one call for another, it compares their back ends and options, as they
    are. What options name may have changed since it was read: a policy file, the environment, a mapping. So while any
    of that differs from what a living session read, this back end is not equal even to itself, and torch compiles anew.
    """

    __name__ = "offload_backend"

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        """Compile one Dynamo graph under a policy.

        ``options``: ``policy`` (compiled policy, path, shipped name, mapping, or a Python callable
        ``SavedActivation -> action``), ``mode`` (``graph`` or ``inductor``), ``hardware`` (a profile to plan for, by
        name, path or value), ``optimizer_state_bytes`` (what the optimizer will keep on the device, as a number or a
        size such as 12GiB), ``verify``, ``model`` (the root module).
        Raises UsageError, PolicyError or RefusedError; torch.compile wraps them in ``BackendCompilerFailed``.
        """
        if mode is not None:
            message = f"torch.compile(mode={mode!r}) means nothing to the offload back end"
            hint = 'leave it out; options={"mode": "inductor"} compiles the graphs, torch._inductor.config tunes how'
            raise UsageError(Diagnostic("CLI612", "error", message, hint=hint))
        return _compile(gm, example_inputs, _session_for(options))

    def __eq__(self, other: object) -> bool:
        return self is other and all(session.given.is_unchanged() for session in living_sessions())

    def __hash__(self) -> int:
        return id(self)


offload_backend = OffloadBackend()


def _compile(gm: fx.GraphModule, example_inputs: Sequence[Any], session: Session) -> Callable[..., Any]:
    names = _model_names(gm, example_inputs, session)
    partitioner = _PolicyPartitioner(session, names, gm, example_inputs)
    session.parameters.note((*example_inputs, *gm.parameters()))
    # An AOTAutograd cache hit would never call the partitioner.
    with functorch_config.patch(enable_autograd_cache=False):
        if session.options.mode == "graph":
            compile_graph = aot_autograd(
                fw_compiler=partitioner.compile_graph, bw_compiler=boxed_nop, partition_fn=partitioner
            )
            compiled: Any = compile_graph(gm, list(example_inputs))
        else:
            compiled = inductor.compile_fx(
                gm,
                list(example_inputs),
                inner_compile=partitioner.compile_inductor,
                config_patches=_inductor_settings(partitioner),
            )
    parameters = [
        index for index, value in enumerate(example_inputs) if isinstance(value, torch.nn.Parameter)
    ]
    return _counted(compiled, session, partitioner, parameters)


def _session_for(options: Mapping[str, Any] | None) -> Session:
    """Return the session of this ``torch.compile`` call: it hands every graph the same options object.

    Sessions live as long as the code that was compiled for them. Where the same object says something else by now, or
    a file that it names does, the session is a new one, and says so.
    """
    key = id(options) if options is not None else 0
    known = _sessions_by_options.get(key)
    if known is not None and known.given.options is not options:
        known = None  # of an object that is gone, whose identity was given again
    if known is not None and known.given.is_unchanged():
        return known
    given = GivenOptions.read(options)
    try:
        session = Session(read_options(options), given)
    except UnreadableError:
        if known is None:
            raise
        # The policy was a temporary file, or the process went to another folder: no reason to break off its training.
        return known
    if known is not None and known.graphs:
        message = (
            "the options, the environment or a file that they name changed after graphs were compiled by them: those "
            f"keep policy {known.options.policy.name!r} ({known.options.policy.hash[:12]}), these follow "
            f"{session.options.policy.name!r} ({session.options.policy.hash[:12]})"
        )
        hint = "torch.compiler.reset() before the change leaves one policy"
        session.note_findings(Diagnostic("RUN547", "warning", message, hint=hint))
    _sessions_by_options[key] = session
    remember_session(session)
    report_at_exit()
    return session


def _inductor_settings(partitioner: _PolicyPartitioner) -> dict[str, Any]:
    settings: dict[str, Any] = {"custom_partitioner_fn": _PartitionerOfInductor(partitioner)}
    if partitioner.session.options.variant != "baseline":
        # Inductor's own memory ordering would move transfers away from where the plan put them.
        settings["reorder_for_peak_memory"] = False
        # A transfer bounds what may fuse. Without this, a value that stays in a kernel keeps more bits than one that is
        # stored, and fusion would show in the last bits of the result.
        settings["emulate_precision_casts"] = True
    return settings


class _PartitionerOfInductor(CustomPartitionerFn):
    """Stand for a partitioner in Inductor's configuration, which is kept, copied, hashed and pickled.

    torch remembers its last configuration when all that was compiled with it is gone: so this holds the partitioner,
    with its session, pinned memory and model, weakly.
    """

    def __init__(self, partitioner: _PolicyPartitioner) -> None:
        self._partitioner = weakref.ref(partitioner)

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        partitioner = self._partitioner()
        assert partitioner is not None, "what is being compiled holds its partitioner"
        return partitioner(gm, joint_inputs, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _PartitionerOfInductor:
        """Stay one object: the graph that is compiled belongs to one session."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the identity: Inductor hashes its configuration, and must not drag the model into that."""
        return tuple, (self.uuid(),)

    def uuid(self) -> Any:
        """Identify the policy and plan to Inductor's caches."""
        partitioner = self._partitioner()
        return partitioner.uuid() if partitioner is not None else ()


class _PolicyPartitioner:
    """Apply the session's policy to each joint graph that AOTAutograd traces for one Dynamo graph."""

    def __init__(
        self, session: Session, names: ModelNames, gm: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> None:
        self.session = session
        self.names = names
        self.sizes = sizes_of(gm)
        self.graph: CompiledGraph | None = None
        self.planned_bytes = PlannedBytes(0)
        self.host_inputs: set[int] = set()
        self.has_transfers = False
        self.trains = any(
            isinstance(value, torch.nn.Parameter) and value.requires_grad for value in example_inputs
        )

    def compile_graph(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Run a graph as it is. It reuses no saved buffer, so ``retain_graph=True`` is allowed."""
        _set_donated(lambda index: False)
        return boxed_nop(gm, list(example_inputs))

    def compile_inductor(self, gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        """Compile a graph with Inductor, which may compute into saved buffers, but never into host copies."""
        _set_donated(lambda index: index not in self.host_inputs)
        # Beside convolutions Inductor would save in channels_last what was traced otherwise: a transfer would copy a
        # copy, and backward get a copy of the host buffer. So layouts stay as traced, those of convolutions too; a
        # model whose convolutions are faster in channels_last has it from model.to(memory_format=torch.channels_last).
        changed = {"layout_optimization": False} if self.has_transfers else {}
        with inductor_config.patch(changed):
            return inductor.compile_fx_inner(gm, example_inputs, **kwargs)

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        options = self.session.options
        keys: list[int] = []
        saves_on_device = options.variant == "reference" and options.mode == "inductor"
        numbers = itertools.count()

        def register(source: TransferSource) -> int:
            if saves_on_device:
                return next(numbers)
            keys.append(self.session.register(source))
            return keys[-1]

        device, frame = _device_of(gm), _current_frame()
        is_first_step = self.session.step <= 1 and not self.session.saw_backward
        setting = setting_for(
            options.policy.policy,
            options.hardware,
            device,
            optimizer_state_bytes=options.optimizer_state_bytes,
            is_first_step=is_first_step,
        )
        limits = setting.limits
        if options.variant != "baseline":
            others, is_partial = self.session.planned_by_others(frame), self.session.partial
            limits = limits_left(options.policy.policy, limits, others, is_partial=is_partial)
            self.session.note_findings(
                *judge_unknown_state(
                    options.policy.policy,
                    options.optimizer_state_bytes,
                    is_first_step=is_first_step,
                    trains=self.trains,
                )
            )
        setting = replace(
            setting,
            limits=agree_on_limits(limits),
            resident_bytes=agree_on_largest(setting.resident_bytes),
            allocated_bytes=agree_on_largest(setting.allocated_bytes),
        )
        pair = rewrite_joint(
            gm,
            JointInputs(
                joint_inputs,
                kwargs["num_fwd_outputs"],
                kwargs.get("static_lifetime_input_indices") or (),
                self.names,
            ),
            policy=options.policy,
            mode=options.mode,
            variant=options.variant,
            ops=REFERENCE_OPS if saves_on_device else OPS,
            register=register,
            setting=setting,
        )
        check_same_plan(pair.plan.hash)
        self.has_transfers = bool(pair.plan.transfers)
        self.graph = self.session.add_graph(pair, keys, device, frame)
        starts = pair.partition.forward.graph.find_nodes(op="call_function", target=OPS.d2h_start)
        self.planned_bytes = planned_bytes_of(starts, self.sizes)
        inputs = pair.partition.backward.graph.find_nodes(op="placeholder")
        self.host_inputs = {
            i for i, node in enumerate(inputs) if any(u.target is OPS.h2d_start for u in node.users)
        }
        return pair.partition.forward, pair.partition.backward

    def uuid(self) -> Any:
        """Identify this partitioner to Inductor's caches: no two policies or plans ever share a compiled graph.

        What one policy plans depends on the hardware and on what is free there. Graphs are looked up once they are
        planned; before that nothing is.
        """
        options = self.session.options
        plan = self.graph.report.plan.hash if self.graph is not None else None
        return (offload_runtime.__version__, options.policy.hash, options.variant, options.mode, plan)


def _set_donated(keep: Callable[[int], bool]) -> None:
    """Restrict the backward inputs that the graph being compiled may overwrite: its donated buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    donated = getattr(metadata, "bw_donated_idxs", None)
    if metadata is not None and donated:
        metadata.bw_donated_idxs = [index for index in donated if keep(index)]


def _current_frame() -> object:
    """Return what identifies the Dynamo frame that is being compiled; a recompilation has the same."""
    compile_id = torch._guards.CompileContext.current_compile_id()
    return getattr(compile_id, "frame_id", None)


def _device_of(gm: fx.GraphModule) -> torch.device:
    devices = [
        node.meta["val"].device for node in gm.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)
    ]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _counted(
    compiled: Callable[..., Any],
    session: Session,
    partitioner: _PolicyPartitioner,
    parameters: Sequence[int],
) -> Callable[..., Any]:
    """Tell the session when this graph runs forward, with which ``parameters``, and when its backward begins."""

    def run(*args: Any) -> Any:
        session.parameters.note_call(args, parameters)
        graph = partitioner.graph
        if graph is None:
            return compiled(*args)
        planned_bytes = partitioner.planned_bytes.for_call(args)
        session.on_forward(graph, planned_bytes, in_backward=_in_backward())
        with session.engine_for_step(graph.device):
            results = compiled(*args)
        for result in results if isinstance(results, (list, tuple)) else (results,):
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                result.register_hook(lambda grad: session.on_backward())
                break
        return results

    return run


def _in_backward() -> bool:
    """Whether autograd's engine runs in this thread: what runs forward there was checkpointed from outside."""
    return bool(torch._C._current_graph_task_id() != -1)


def _model_names(gm: fx.GraphModule, example_inputs: Sequence[Any], session: Session) -> ModelNames:
    broken = graph_break_of(gm)
    if broken is not None:
        session.partial = True
        session.graph_breaks[broken] = None
    return locate_graph(gm, example_inputs, session.options.root(), partial=session.partial)


# torch loads this module when it looks the back end up: a run of which nothing is captured has a report, too.
report_at_exit()
