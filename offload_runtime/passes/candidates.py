"""Read a partition the way the planner needs it: saved storages, when they are used, what a copy would move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.operators import is_collective, operator_of
from offload_runtime.graph.storages import Storage, find_storages, hint, layout_of, tensor_bytes, tensor_of
from offload_runtime.offload_plan import Candidate, Timeline, TransferSource
from offload_runtime.passes.partition import Partition, Saved
from offload_runtime.passes.tag import MIN_SLICED_SHARE, JudgedStorage

__all__ = [
    "SavedStorage",
    "collect_candidates",
    "computed_again",
    "count_replayed_views",
    "read_timeline",
    "saved_storages",
]


@dataclass(frozen=True)
class SavedStorage:
    """A forward storage that backward reads: its nodes in the forward graph and the saved values on it."""

    storage: Storage
    saved: tuple[Saved, ...]
    judged: JudgedStorage


def saved_storages(partition: Partition, judged: Sequence[JudgedStorage]) -> list[SavedStorage]:
    """Match the saved values of a partition with the storages that the policy judged, in forward order."""
    by_name = {node.name: item for item in judged for node in item.storage.nodes}
    crossing = {saved.forward: saved for saved in partition.saved}
    found = []
    for storage in find_storages(list(partition.forward.graph.nodes)):
        saved = tuple(crossing[node] for node in storage.nodes if node in crossing)
        item = next((by_name[name] for node in storage.nodes if (name := origin_of(node)) in by_name), None)
        if saved and item is not None:
            found.append(SavedStorage(storage, saved, item))
    return found


def read_timeline(joint: JointGraph, partition: Partition) -> Timeline:
    """Return the layer of every node of both graphs; nodes outside the model's modules follow their neighbours."""

    def layers(graph: fx.Graph) -> tuple[int | None, ...]:
        return tuple(joint.layer_of(node) if node.op == "call_function" else None for node in graph.nodes)

    return Timeline(layers(partition.forward.graph), layers(partition.backward.graph))


def collect_candidates(
    joint: JointGraph, partition: Partition, stored: Sequence[SavedStorage], *, view_replay: bool = True
) -> list[Candidate]:
    """Describe every saved storage as a candidate, with the obstacle that forbids to offload it, if any.

    Without ``view_replay`` no view can be rebuilt from a reloaded base, and a storage that is read through one stays.
    """
    forward = {node: index for index, node in enumerate(partition.forward.graph.nodes)}
    backward = {node: index for index, node in enumerate(partition.backward.graph.nodes)}
    returned = partition.returned_to_caller
    device = _compute_device(forward)
    candidates = []
    for item in stored:
        sources = _sources(item)
        nodes = {node.name: node for node in item.storage.nodes}
        ready = max(item.storage.writes, default=0)
        ready = max([ready, *(forward[nodes[source.node]] for source in sources if source.node in nodes)])
        uses = [backward[user] for saved in item.saved for user in saved.backward.users]
        reads = [read for read in item.storage.reads if read < len(forward) - 1]
        candidates.append(
            Candidate(
                activation=item.judged.activation,
                sources=sources,
                ready=ready,
                last_forward_use=max([ready, *reads]),
                first_backward_use=min(uses),
                obstacle=_obstacle(item, joint, returned, device, sources),
            )
        )
    return candidates if view_replay else _without_view_replay(stored, candidates, partition)


def computed_again(partition: Partition) -> dict[str, list[fx.Node]]:
    """Return the tensors that backward computes, by the node of the joint graph that each is a copy of."""
    found: dict[str, list[fx.Node]] = defaultdict(list)
    for node in partition.backward.graph.nodes:
        origin = origin_of(node)
        if node.op == "call_function" and origin is not None and tensor_of(node) is not None:
            found[origin].append(node)
    return found


def count_replayed_views(
    item: SavedStorage, candidate: Candidate, computed: Mapping[str, Sequence[fx.Node]]
) -> int:
    """Count the views of a storage that backward's own operations read and that are rebuilt from what moves.

    Saved views are replayed from their base; views that were not saved are ``computed`` again in backward.
    """
    again = {copy for node in item.judged.storage.nodes for copy in computed.get(node.name, ())}
    read = [node for node in again if any(user not in again for user in node.users)]
    return len(read) + sum(len(source.views) for source in candidate.sources)


def _without_view_replay(
    stored: Sequence[SavedStorage], candidates: Sequence[Candidate], partition: Partition
) -> list[Candidate]:
    computed = computed_again(partition)
    return [
        replace(
            candidate,
            obstacle=candidate.obstacle or "backward reads it through views, and view replay is off",
        )
        if count_replayed_views(item, candidate, computed)
        else candidate
        for item, candidate in zip(stored, candidates, strict=True)
    ]


def _sources(item: SavedStorage) -> tuple[TransferSource, ...]:
    """Decide what travels: a lone dense saved value itself, few small slices by themselves, else the base, once."""
    dense = [saved.forward for saved in item.saved if _is_dense(saved.forward)]
    sizes = {node: _bytes_of(node) for node in dense}
    if len(dense) == len(item.saved) and (
        len(dense) == 1 or sum(sizes.values()) <= MIN_SLICED_SHARE * item.storage.num_bytes
    ):
        return tuple(TransferSource(node.name, sizes[node]) for node in dense)
    base = item.storage.base
    views = tuple(saved.forward.name for saved in item.saved)
    return (TransferSource(base.name, _bytes_of(base), views),)


def _obstacle(
    item: SavedStorage,
    joint: JointGraph,
    returned: frozenset[fx.Node],
    device: str,
    sources: Sequence[TransferSource],
) -> str | None:
    nodes = item.storage.nodes
    if any(origin_of(node) in joint.parameters for node in nodes):
        return "parameter"
    if item.storage.is_input:
        return "graph input: the caller owns it"
    if any(node in returned for node in nodes):
        return "returned to the caller: freeing it would save nothing"
    if any(is_collective(operator_of(node)) for node in nodes):
        return "collective: communication buffers stay on the device"
    tensors = [tensor for tensor in map(tensor_of, nodes) if tensor is not None]
    if len(tensors) < len(nodes):
        return "not a plain strided tensor"
    if tensors[0].device.type != device:
        return f"already on {tensors[0].device.type}"
    if item.storage.num_bytes == 0:
        return "empty"
    moved = {source.node for source in sources}
    if any(free_unbacked_symbols(node.meta["val"]) for node in nodes if node.name in moved):
        return "its size depends on data: no host memory can be set aside for it"
    if sources[0].views:
        return _replay_obstacle(item)
    return None


def _replay_obstacle(item: SavedStorage) -> str | None:
    base = item.storage.base
    whole = tensor_of(base)
    assert whole is not None
    if not _is_dense(base) or _bytes_of(base) < item.storage.num_bytes:
        return "its base does not cover its storage densely"
    for saved in item.saved:
        tensor = tensor_of(saved.forward)
        assert tensor is not None
        if tensor.dtype != whole.dtype or tensor.is_conj() or tensor.is_neg():
            return f"a saved view reinterprets it as {tensor.dtype}"
        geometry = (*tensor.shape, *tensor.stride(), tensor.storage_offset(), whole.storage_offset())
        if any(isinstance(value, torch.SymInt) for value in geometry):
            return "a saved view has a symbolic shape"
    return None


def _compute_device(nodes: Mapping[fx.Node, int]) -> str:
    types = {tensor.device.type for tensor in map(tensor_of, nodes) if tensor is not None}
    return next(iter(sorted(types - {"cpu", "meta"})), "cpu")


def _is_dense(node: fx.Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and layout_of(tensor) != "strided" and hint(tensor.numel()) > 0


def _bytes_of(node: fx.Node) -> int:
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor_bytes(tensor)
