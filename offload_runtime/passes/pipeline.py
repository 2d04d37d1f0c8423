"""From a joint graph and a policy to a rewritten, verified forward-backward pair.

    JointGraph -> judge -> select (tag, partition, plan) -> offload, reload -> verify

The same way for every capture and both modes. A ``reference`` run stops before the rewrite: the same partition with
each offload replaced by save. A ``baseline`` run has no policy: in mode ``graph`` everything is saved, in mode
``inductor`` torch's min-cut decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from offload_runtime.compiler import CompiledPolicy, Decision, SavedActivation
from offload_runtime.errors import Diagnostic
from offload_runtime.graph.joint import (
    JointGraph,
    ModelNames,
    forward_activations,
    read_joint_graph,
)
from offload_runtime.graph.norm_statistics import correct_norm_statistics
from offload_runtime.graph.storages import tensor_of
from offload_runtime.offload_plan import Forecast, OffloadPlan, TransferSource, Variant
from offload_runtime.passes.forecast import forecast_of
from offload_runtime.passes.offload import TransferOps, offload_forward_pass, reload_backward_pass
from offload_runtime.passes.outcome import judge_empty_plan, judge_peak
from offload_runtime.passes.partition import Partition, copy_graph, partition_pass
from offload_runtime.passes.selection import (
    Selected,
    Setting,
    select_largest_first,
    select_planned,
    split_without_policy,
)
from offload_runtime.passes.tag import JudgedStorage, keep_overwritten_pass
from offload_runtime.passes.tape import record_tape
from offload_runtime.passes.verdicts import collect_verdicts
from offload_runtime.passes.verify import read_original, verify_partition
from offload_runtime.simulator import Tape, peak_memory

__all__ = ["JointInputs", "PlannedPair", "RewrittenPair", "plan_joint", "rewrite_joint"]


@dataclass(frozen=True)
class JointInputs:
    """What AOTAutograd hands to a partitioner, and what the caller knows of the model."""

    example_inputs: Sequence[Any]
    num_fwd_outputs: int
    static_input_indices: Sequence[int]
    names: ModelNames


@dataclass(frozen=True)
class PlannedPair:
    """A partitioned pair with its plan, not rewritten yet: nothing of it has an effect."""

    joint: JointGraph
    selected: Selected
    plan: OffloadPlan
    forecast: Forecast | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def judged_activations(self) -> tuple[SavedActivation, ...]:
        """What the policy decided on."""
        return tuple(verdict.activation for verdict in self.plan.verdicts if verdict.fate != "skip")


@dataclass(frozen=True)
class RewrittenPair:
    """A forward-backward pair ready to compile, with the plan it carries out and the memory it will take."""

    planned: PlannedPair
    partition: Partition
    tape: Tape
    diagnostics: tuple[Diagnostic, ...]

    @property
    def joint(self) -> JointGraph:
        """The joint graph that was split."""
        return self.planned.joint

    @property
    def plan(self) -> OffloadPlan:
        """The plan that the pair carries out."""
        return self.planned.plan


def plan_joint(
    gm: fx.GraphModule,
    inputs: JointInputs,
    *,
    policy: CompiledPolicy,
    mode: str,
    variant: Variant,
    setting: Setting | None = None,
) -> PlannedPair:
    """Split an AOTAutograd joint graph under ``policy`` and plan its transfers.

    ``setting`` None is one of which nothing but the policy's limits is known. Raises RefusedError where a ``must``
    rule, or a limit, cannot hold.
    """
    setting = setting or Setting(policy.policy.limits)
    gm.graph.eliminate_dead_code()
    correct_norm_statistics(gm)
    is_planned = variant != "baseline" and policy.policy.schedule.select == "planned"
    splitter = "save_everything" if variant == "baseline" and mode == "graph" else "min_cut"

    def split(module: fx.GraphModule) -> Partition:
        return partition_pass(
            module,
            inputs.example_inputs,
            num_fwd_outputs=inputs.num_fwd_outputs,
            static_input_indices=inputs.static_input_indices,
            splitter=splitter,  # type: ignore[arg-type]  # one of the two literals above
        )

    if is_planned:
        planned = select_planned(
            lambda: _read(copy_graph(gm), inputs, policy, variant), policy, split, mode=mode, setting=setting
        )
        joint, judged, selected = planned.joint, planned.judged, planned.selected
    else:
        joint, judged = _read(gm, inputs, policy, variant)
        if variant == "baseline":
            keep_overwritten_pass(gm, inputs.example_inputs, joint=joint)
            selected = split_without_policy(joint, judged, split, mode=mode, setting=setting)
        else:
            selected = select_largest_first(joint, judged, policy, split, mode=mode, setting=setting)
    plan = _plan_of(joint, policy, judged, selected)
    decisions = [item.judged.decision or Decision("auto", source="default") for item in selected.stored]
    diagnostics = judge_empty_plan(plan, decisions, selected.reasons) if variant == "policy" else ()
    return PlannedPair(joint, selected, plan, forecast_of(selected, setting.profile), diagnostics)


def rewrite_joint(
    gm: fx.GraphModule,
    inputs: JointInputs,
    *,
    policy: CompiledPolicy,
    mode: str,
    variant: Variant,
    ops: TransferOps,
    register: Callable[[TransferSource], int],
    setting: Setting | None = None,
) -> RewrittenPair:
    """Apply ``policy`` to an AOTAutograd joint graph and split it.

    ``register`` gives the runtime's key for a transfer. Raises RefusedError as `plan_joint` does.
    """
    planned = plan_joint(gm, inputs, policy=policy, mode=mode, variant=variant, setting=setting)
    partition, diagnostics = planned.selected.partition, planned.diagnostics
    fused = mode == "inductor"
    tape = record_tape(partition, fused=fused)
    if variant == "policy" or (variant == "reference" and ops.keeps_on_device):
        without = peak_memory([tape])
        partition = _rewrite(partition, planned.plan, ops, register, anchored=fused)
        tape = record_tape(partition, fused=fused)
        if variant == "policy":
            peak = peak_memory([tape])
            diagnostics += judge_peak(planned.joint, partition, planned.plan, without=without, peak=peak)
    return RewrittenPair(planned, partition, tape, diagnostics)


def _read(
    gm: fx.GraphModule, inputs: JointInputs, policy: CompiledPolicy, variant: Variant
) -> tuple[JointGraph, list[JudgedStorage]]:
    activations = policy.policy.activations
    joint = read_joint_graph(
        gm,
        num_fwd_outputs=inputs.num_fwd_outputs,
        static_input_indices=inputs.static_input_indices,
        layers_of=activations.layers_of if activations is not None else None,
        names=inputs.names,
    )
    return joint, _judge(joint, policy, variant)


def _plan_of(
    joint: JointGraph, policy: CompiledPolicy, judged: Sequence[JudgedStorage], selected: Selected
) -> OffloadPlan:
    return OffloadPlan(policy.hash, collect_verdicts(joint, policy, judged, selected), selected.transfers)


def _judge(joint: JointGraph, policy: CompiledPolicy, variant: Variant) -> list[JudgedStorage]:
    judged = []
    derived = _parameter_derived(joint)
    for storage, activation in forward_activations(joint):
        foreign = storage.is_input or storage.base.name in derived or variant == "baseline"
        decision = None if foreign else policy.decide(activation)
        judged.append(JudgedStorage(storage, activation, decision))
    return judged


def _parameter_derived(joint: JointGraph) -> set[str]:
    """Names of forward nodes computed from parameters and buffers alone: casts and views of weights."""
    derived = set(joint.parameters)
    for node in joint.forward_nodes():
        arguments = [argument for argument in node.all_input_nodes if tensor_of(argument) is not None]
        if (
            node.op == "call_function"
            and arguments
            and all(argument.name in derived for argument in arguments)
        ):
            derived.add(node.name)
    return derived


def _rewrite(
    partition: Partition,
    plan: OffloadPlan,
    ops: TransferOps,
    register: Callable[[TransferSource], int],
    *,
    anchored: bool,
) -> Partition:
    original = read_original(partition)
    keys = {transfer.source.node: register(transfer.source) for transfer in plan.transfers}
    forward = offload_forward_pass(partition.forward, plan=plan, keys=keys, ops=ops, anchored=anchored)
    backward = reload_backward_pass(
        partition.backward, plan=plan, keys=keys, ops=ops, anchored=anchored, forward=forward
    )
    verify_partition(forward, backward, original=original, ops=ops)
    offloaded = {
        name for transfer in plan.transfers for name in (*transfer.source.views, transfer.source.node)
    }
    remaining = tuple(saved for saved in partition.saved if saved.forward.name not in offloaded)
    return Partition(forward, backward, partition.num_fwd_outputs, remaining)
