"""The fate of every storage of a partitioned pair, who decided it and why, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import fx

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.storages import tensor_bytes, tensor_of
from offload_runtime.offload_plan import Candidate, TensorVerdict
from offload_runtime.passes.candidates import SavedStorage, computed_again, count_replayed_views
from offload_runtime.passes.foreign import foreign_verdicts
from offload_runtime.passes.partition import Partition
from offload_runtime.passes.selection import Selected
from offload_runtime.passes.tag import JudgedStorage, recompute_obstacle
from offload_runtime.units import format_size_short

__all__ = ["collect_verdicts"]


def collect_verdicts(
    joint: JointGraph, policy: CompiledPolicy, judged: Sequence[JudgedStorage], selected: Selected
) -> tuple[TensorVerdict, ...]:
    """Return the verdicts in forward order. Raises RefusedError where a ``must`` rule does not hold."""
    partition = selected.partition
    planned = selected.planned is not None
    computed = computed_again(partition)
    verdicts = [
        _offloaded(item, candidate, computed)
        if fate == "offload"
        else _kept(item.judged, candidate, reason, joint.mutated, planned)
        for item, candidate, fate, reason in zip(
            selected.stored, selected.candidates, selected.fates, selected.reasons, strict=True
        )
    ]
    saved_names = {node.name for item in selected.stored for node in item.judged.storage.nodes}
    verdicts += _recomputed(partition, judged, saved_names, planned)
    verdicts += foreign_verdicts(joint, partition, policy)
    order = {node.name: index for index, node in enumerate(joint.module.graph.nodes)}
    verdicts.sort(key=lambda verdict: order.get(verdict.activation.name, 0))
    broken = [finding for item in verdicts for finding in _broken_must(item, policy)]
    if broken:
        raise RefusedError(*broken)
    return tuple(verdicts)


def _offloaded(
    item: SavedStorage, candidate: Candidate, computed: Mapping[str, Sequence[fx.Node]]
) -> TensorVerdict:
    decision = item.judged.decision
    assert decision is not None, "only what a policy decided on is offloaded"
    reason, num_views = "offloaded", count_replayed_views(item, candidate, computed)
    if num_views:
        reason += f"; {num_views} view{'s' if num_views > 1 else ''} replayed"
        read_bytes = _bytes_read(item, computed)
        if read_bytes < candidate.moved_bytes:
            read, moved = format_size_short(read_bytes), format_size_short(candidate.moved_bytes)
            reason += f", which read {read} of the {moved} that move: they keep all of it alive"
    return TensorVerdict(
        item.judged.activation, "offload", decision.decided_by, reason, candidate.moved_bytes, num_views
    )


def _bytes_read(item: SavedStorage, computed: Mapping[str, Sequence[fx.Node]]) -> int:
    """Sum the tensors of a storage that backward's own operations read, each with all of its elements."""
    again = {copy for node in item.judged.storage.nodes for copy in computed.get(node.name, ())}
    nodes = [*(saved.backward for saved in item.saved), *again]
    tensors = [tensor_of(node) for node in nodes if any(user not in again for user in node.users)]
    return sum(tensor_bytes(tensor) for tensor in tensors if tensor is not None)


def _kept(
    judged: JudgedStorage,
    candidate: Candidate,
    reason: str | None,
    mutated: frozenset[str],
    planned: bool,
) -> TensorVerdict:
    decision = judged.decision
    if decision is None:
        return TensorVerdict(judged.activation, "skip", None, _foreign_reason(candidate))
    rule = decision.decided_by
    obstacles = {
        "offload": candidate.obstacle,
        "recompute": recompute_obstacle(judged.storage, mutated),
    }
    if planned and decision.action != "save" and obstacles.get(decision.action) is None:
        return TensorVerdict(judged.activation, "save", rule, "planned: saved")
    if decision.action == "auto":
        return TensorVerdict(judged.activation, "save", rule, "auto: torch's partitioner saves it")
    if decision.action == "recompute":
        obstacle = obstacles["recompute"] or "torch's partitioner kept it"
        return TensorVerdict(judged.activation, "save", rule, f"not recomputed: {obstacle}")
    if decision.action == "offload":
        return TensorVerdict(
            judged.activation, "save", rule, f"not offloaded: {reason or candidate.obstacle}"
        )
    return TensorVerdict(judged.activation, "save", rule, "saved")


def _foreign_reason(candidate: Candidate) -> str:
    return candidate.obstacle if candidate.obstacle is not None else "parameter: computed from weights alone"


def _recomputed(
    partition: Partition, judged: Sequence[JudgedStorage], saved_names: set[str], planned: bool
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
            reason = "planned: recomputed" if planned else "auto: torch's partitioner recomputes it"
        verdicts.append(TensorVerdict(item.activation, "recompute", item.decision.decided_by, reason))
    return verdicts


def _broken_must(verdict: TensorVerdict, policy: CompiledPolicy) -> list[Diagnostic]:
    if verdict.rule is None:
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
