"""From a joint graph and a policy to a rewritten, verified forward-backward pair.

    JointGraph -> judge -> tag -> partition -> candidates -> plan -> offload, reload -> verify

The same way for every capture and both modes. A ``reference`` run stops before the rewrite: the same partition with
each offload replaced by save. A ``baseline`` run has no policy: in mode ``graph`` everything is saved, in mode
``inductor`` torch's min-cut decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from offload_runtime.compiler import CompiledPolicy, Decision, SavedActivation
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.graph.joint import (
    JointGraph,
    ModelNames,
    forward_activations,
    origin_of,
    read_joint_graph,
)
from offload_runtime.graph.storages import tensor_of
from offload_runtime.passes.candidates import (
    SavedStorage,
    collect_candidates,
    count_replayed_views,
    read_timeline,
    saved_storages,
)
from offload_runtime.passes.foreign import foreign_verdicts
from offload_runtime.passes.offload import TransferOps, offload_forward_pass, reload_backward_pass
from offload_runtime.passes.outcome import judge_empty_plan, judge_peak
from offload_runtime.passes.partition import Partition, partition_pass
from offload_runtime.passes.tag import (
    JudgedStorage,
    keep_overwritten_pass,
    recompute_obstacle,
    tag_activations_pass,
)
from offload_runtime.passes.tape import record_tape
from offload_runtime.passes.verify import read_original, verify_partition
from offload_runtime.plan import Candidate, OffloadPlan, TensorVerdict, TransferSource, Variant
from offload_runtime.planner import plan_largest_first, schedule_transfers
from offload_runtime.simulator import Tape, peak_memory

__all__ = ["JointInputs", "RewrittenPair", "rewrite_joint"]


@dataclass(frozen=True)
class JointInputs:
    """What AOTAutograd hands to a partitioner, and what the caller knows of the model."""

    example_inputs: Sequence[Any]
    num_fwd_outputs: int
    static_input_indices: Sequence[int]
    names: ModelNames


@dataclass(frozen=True)
class RewrittenPair:
    """A forward-backward pair ready to compile, with the plan it carries out and the memory it will take."""

    joint: JointGraph
    partition: Partition
    plan: OffloadPlan
    tape: Tape
    judged_activations: tuple[SavedActivation, ...]
    diagnostics: tuple[Diagnostic, ...]


def rewrite_joint(
    gm: fx.GraphModule,
    inputs: JointInputs,
    *,
    policy: CompiledPolicy,
    mode: str,
    variant: Variant,
    ops: TransferOps,
    register: Callable[[TransferSource], int],
) -> RewrittenPair:
    """Apply ``policy`` to an AOTAutograd joint graph and split it.

    ``register`` gives the runtime's key for a transfer. Raises RefusedError where a ``must`` rule cannot hold.
    """
    gm.graph.eliminate_dead_code()
    activations = policy.policy.activations
    joint = read_joint_graph(
        gm,
        num_fwd_outputs=inputs.num_fwd_outputs,
        static_input_indices=inputs.static_input_indices,
        layers_of=activations.layers_of if activations is not None else None,
        names=inputs.names,
    )
    judged = _judge(joint, policy, variant)
    if variant != "baseline":
        tag_activations_pass(gm, inputs.example_inputs, joint=joint, judged=judged)
    else:
        keep_overwritten_pass(gm, inputs.example_inputs, joint=joint)
    partition = partition_pass(
        gm,
        inputs.example_inputs,
        num_fwd_outputs=inputs.num_fwd_outputs,
        static_input_indices=inputs.static_input_indices,
        splitter="save_everything" if variant == "baseline" and mode == "graph" else "min_cut",
    )
    stored = saved_storages(partition, judged)
    candidates = collect_candidates(joint, partition, stored)
    plan, diagnostics = _plan(joint, partition, policy, judged, stored, candidates, variant)
    tape = record_tape(partition)
    if variant == "policy" or ops.keeps_on_device:
        without = peak_memory([tape])
        partition = _rewrite(partition, plan, ops, register, anchored=mode == "inductor")
        tape = record_tape(partition)
        if variant == "policy":
            diagnostics += judge_peak(joint, partition, plan, without=without, peak=peak_memory([tape]))
    needed = tuple(verdict.activation for verdict in plan.verdicts if verdict.fate != "skip")
    return RewrittenPair(joint, partition, plan, tape, needed, diagnostics)


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


def _plan(
    joint: JointGraph,
    partition: Partition,
    policy: CompiledPolicy,
    judged: Sequence[JudgedStorage],
    stored: Sequence[SavedStorage],
    candidates: Sequence[Candidate],
    variant: Variant,
) -> tuple[OffloadPlan, tuple[Diagnostic, ...]]:
    decisions = [item.judged.decision or Decision("auto", source="default") for item in stored]
    limits, schedule = policy.policy.limits, policy.policy.schedule
    assert isinstance(schedule.defer, int), "auto is refused before capture"
    assert isinstance(schedule.prefetch, int), "auto is refused before capture"
    timeline = read_timeline(joint, partition)
    selection = plan_largest_first(
        candidates,
        decisions,
        budget=limits.budget,
        keep_last=schedule.keep_last,
        num_layers=joint.layers.num_layers,
        timeline=timeline,
    )
    transfers = schedule_transfers(
        [candidates[index] for index in selection.chosen],
        timeline,
        defer=schedule.defer,
        prefetch=schedule.prefetch,
    )
    chosen = set(selection.chosen)
    verdicts = [
        _offloaded(item.judged, candidate, count_replayed_views(item, candidate, partition))
        if index in chosen
        else _kept(item.judged, candidate, selection.reasons[index], joint.mutated)
        for index, (item, candidate) in enumerate(zip(stored, candidates, strict=True))
    ]
    saved_names = {node.name for item in stored for node in item.judged.storage.nodes}
    verdicts += _recomputed(partition, judged, saved_names)
    verdicts += foreign_verdicts(joint, partition, policy) if variant != "baseline" else []
    order = {node.name: index for index, node in enumerate(joint.module.graph.nodes)}
    verdicts.sort(key=lambda verdict: order.get(verdict.activation.name, 0))
    broken = [finding for item in verdicts for finding in _broken_must(item, policy, variant)]
    if broken:
        raise RefusedError(*broken)
    plan = OffloadPlan(policy.hash, tuple(verdicts), transfers if variant != "baseline" else ())
    return plan, judge_empty_plan(plan, decisions, selection.reasons) if variant == "policy" else ()


def _offloaded(judged: JudgedStorage, candidate: Candidate, num_views: int) -> TensorVerdict:
    assert judged.decision is not None, "only what a policy decided on is offloaded"
    rule = judged.decision.decided_by
    replay = f"; {num_views} view{'s' if num_views > 1 else ''} replayed" if num_views else ""
    return TensorVerdict(
        judged.activation, "offload", rule, f"offloaded{replay}", candidate.moved_bytes, num_views
    )


def _kept(
    judged: JudgedStorage, candidate: Candidate, reason: str | None, mutated: frozenset[str]
) -> TensorVerdict:
    decision = judged.decision
    if decision is None:
        return TensorVerdict(judged.activation, "skip", None, _foreign_reason(candidate))
    rule = decision.decided_by
    if decision.action == "auto":
        return TensorVerdict(judged.activation, "save", rule, "auto: torch's partitioner saves it")
    if decision.action == "recompute":
        obstacle = recompute_obstacle(judged.storage, mutated) or "torch's partitioner kept it"
        return TensorVerdict(judged.activation, "save", rule, f"not recomputed: {obstacle}")
    if decision.action == "offload":
        return TensorVerdict(judged.activation, "save", rule, f"not offloaded: {reason}")
    return TensorVerdict(judged.activation, "save", rule, "saved")


def _foreign_reason(candidate: Candidate) -> str:
    return candidate.obstacle if candidate.obstacle is not None else "parameter: computed from weights alone"


def _recomputed(
    partition: Partition, judged: Sequence[JudgedStorage], saved_names: set[str]
) -> list[TensorVerdict]:
    computed = {origin_of(node) for node in partition.backward.graph.nodes if node.op == "call_function"}
    verdicts = []
    for item in judged:
        names = {node.name for node in item.storage.nodes}
        if item.decision is None or names & saved_names or not names & computed:
            continue
        wanted = item.decision.action
        reason = (
            "recomputed"
            if wanted == "recompute"
            else f"{wanted}: backward needs it only by way of a cheaper one"
        )
        if wanted == "auto":
            reason = "auto: torch's partitioner recomputes it"
        verdicts.append(TensorVerdict(item.activation, "recompute", item.decision.decided_by, reason))
    return verdicts


def _broken_must(verdict: TensorVerdict, policy: CompiledPolicy, variant: Variant) -> list[Diagnostic]:
    if verdict.rule is None or variant == "baseline":
        return []
    decision = policy.decide(verdict.activation)
    if not decision.must or decision.action == verdict.fate:
        return []
    rule = next((rule for rule in policy.policy.rules if rule.name == decision.rule), None)
    activation = verdict.activation
    where = f"{activation.name} ({activation.op} in {activation.module or 'the root module'})"
    diagnostic = Diagnostic(
        "PLN401",
        "error",
        f"rule {decision.decided_by!r} must {decision.action} {where}, but it cannot: {verdict.reason}",
        hint="drop `must: true`, exclude this tensor from the rule, or raise the limit that stands in the way",
    )
    if rule is None:
        return [diagnostic]
    return [replace(diagnostic, file=rule.span.file, line=rule.span.line, column=rule.span.column)]


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
