"""What a policy lets become of each saved storage, as far as it can.

    action      permits under ``select: planned``
    save        save
    offload     offload, save
    recompute   recompute, save
    auto        all three

``must: true`` leaves one. What cannot be done is not permitted (obstacles of candidates, `recompute_options`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import fx

from offload_runtime.compiler import CompiledPolicy, Decision, Fate
from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.kernels import launch_of
from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_plan import Candidate
from offload_runtime.passes.candidates import SavedStorage, read_timeline
from offload_runtime.passes.partition import Partition
from offload_runtime.passes.recompute import recompute_options
from offload_runtime.passes.tag import JudgedStorage
from offload_runtime.passes.trace import Choice
from offload_runtime.planner import start_of_last_layers

__all__ = [
    "collect_choices",
    "decision_of",
    "find_leaders",
    "fixed_as_planned",
    "names_behind_unjudged",
    "start_of",
]

_MIN_PLANNED_BYTES = 2**20  # smaller ones cost a copy and save nothing that an allocator can use


def collect_choices(
    joint: JointGraph,
    partition: Partition,
    stored: Sequence[SavedStorage],
    candidates: Sequence[Candidate],
    policy: CompiledPolicy,
    *,
    mode: str,
    profile: HardwareProfile,
) -> list[Choice]:
    """Return the permitted fates of each storage; ``candidates`` and the result stand in parallel to ``stored``.

    ``schedule.keep_last`` takes offload away, except where a rule says must. Of the results of one operator call the
    largest leads: it may be recomputed if all may, and the others follow it (see `find_leaders`).
    """
    options = recompute_options(joint, partition, stored, mode=mode, profile=profile)
    timeline = read_timeline(joint, partition)
    tail = start_of_last_layers(timeline, policy.policy.schedule.keep_last, joint.layers.num_layers)
    may_recompute = [
        option is not None and item.judged.decision is not None and _permits(item, "recompute")
        for item, option in zip(stored, options, strict=True)
    ]
    must_recompute = [decision_of(item).must and _permits(item, "recompute") for item in stored]
    for leader, followers in _calls(stored).items():
        together = [leader, *followers]
        may_recompute[leader] = all(may_recompute[index] for index in together)
        must_recompute[leader] = any(must_recompute[index] for index in together)
        for index in followers:
            may_recompute[index] = must_recompute[index] = False
    choices = []
    for index, (item, candidate) in enumerate(zip(stored, candidates, strict=True)):
        decision = decision_of(item)
        is_kept = tail is not None and candidate.ready >= tail and not decision.must
        fates: set[Fate] = {"save"}
        if candidate.obstacle is None and not is_kept and _may_offload(item, decision):
            fates.add("offload")
        if may_recompute[index]:
            fates.add("recompute")
        if decision.must and decision.action in fates:
            fates = {decision.action}
        elif must_recompute[index] and "recompute" in fates:
            fates = {"recompute"}
        choices.append(Choice(frozenset(fates), options[index] if may_recompute[index] else None))
    return choices


def decision_of(item: SavedStorage) -> Decision:
    """Return what the policy said of a storage; what is not its to judge is saved."""
    return item.judged.decision or Decision("save", source="default")


def find_leaders(stored: Sequence[SavedStorage]) -> Mapping[int, int]:
    """Return for each storage the largest among the results of the same operator call, as indices of ``stored``.

    Results of one call are computed again together or not at all: what becomes of the largest becomes of all, if that
    is to be recomputed.
    """
    return {index: leader for leader, followers in _calls(stored).items() for index in (leader, *followers)}


def start_of(item: JudgedStorage, mode: str) -> JudgedStorage:
    """Begin with what a run without a policy does with all that the planner may still save or recompute.

    Mode ``graph`` saves it; mode ``inductor`` leaves it to torch's partitioner, which recomputes what costs nothing.
    """
    decision = item.decision
    if decision is None or decision.must or decision.action in ("save", "offload"):
        return item
    return replace(item, decision=replace(decision, action="save" if mode == "graph" else "auto"))


def fixed_as_planned(
    item: JudgedStorage, wanted: Mapping[str, Fate], left_open: Collection[str] | None
) -> JudgedStorage:
    """Fix a storage to its planned fate; ``wanted`` are those of what was stored before, by name.

    Of the others, torch decides on those in ``left_open`` (None: on all), and the rest is recomputed; what a policy
    wants saved stays saved.
    """
    decision, name = item.decision, item.activation.name
    if decision is None or (name not in wanted and decision.action in ("save", "offload")):
        return item
    if name not in wanted and not decision.must and (left_open is None or name in left_open):
        return replace(item, decision=replace(decision, action="auto"))
    keeps = wanted.get(name) in ("save", "offload")
    return replace(item, decision=replace(decision, action="save" if keeps else "recompute"))


def names_behind_unjudged(
    partition: Partition, stored: Sequence[SavedStorage], judged: Sequence[JudgedStorage]
) -> frozenset[str]:
    """Name the activations, not stored themselves, that a saved value is computed from which no policy judged.

    Torch's partitioner may compute in forward, and save, what backward derives from forward values alone: the
    reciprocal of a norm's deviation in place of the deviation.
    """
    names = {node.name: item.activation.name for item in judged for node in item.storage.nodes}
    known = {node for item in stored for node in item.storage.nodes}
    pending = [saved.forward for saved in partition.saved if saved.forward not in known]
    found: set[str] = set()
    seen: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in seen or node in known or node.op != "call_function":
            continue
        seen.add(node)
        name = names.get(origin_of(node) or "")
        found.update([name] if name is not None else [])
        pending.extend(node.all_input_nodes)
    return frozenset(found)


def _calls(stored: Sequence[SavedStorage]) -> dict[int, list[int]]:
    """Return the leader of each operator call with the others, largest first."""
    by_call: dict[fx.Node, list[int]] = defaultdict(list)
    for index, item in enumerate(stored):
        by_call[launch_of(item.storage.writer)].append(index)
    ranked = (sorted(found, key=lambda index: -stored[index].storage.num_bytes) for found in by_call.values())
    return {leader: followers for leader, *followers in ranked}


def _permits(item: SavedStorage, fate: Fate) -> bool:
    return decision_of(item).action in (fate, "auto")


def _may_offload(item: SavedStorage, decision: Decision) -> bool:
    if decision.action == "auto":
        return item.storage.num_bytes >= _MIN_PLANNED_BYTES
    return decision.action == "offload"
