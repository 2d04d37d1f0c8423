"""Turn a partitioned pair into the step that simulator and planner work on, and its positions into those of nodes.

Partition, saved storages, hardware -> StepTrace (kernels, storages, items) + where each kernel stands in the graphs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from offload_runtime.compiler import Fate
from offload_runtime.graph.costs import cost_of_kernel, duration_ms, workspace_bytes
from offload_runtime.graph.joint import JointGraph
from offload_runtime.graph.kernels import group_kernels, is_scatter, is_unfusible, launch_of
from offload_runtime.graph.storages import Storage
from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_plan import Candidate, Transfer
from offload_runtime.passes.candidates import SavedStorage
from offload_runtime.passes.partition import Partition
from offload_runtime.step import Item, Kernel, Move, Recompute, Region, StepTrace

__all__ = ["Choice", "TracedPair", "trace_pair"]


@dataclass(frozen=True)
class Choice:
    """What may become of a saved storage, and what it takes to compute it again (None: it cannot be)."""

    fates: frozenset[Fate]
    recompute: Recompute | None = None


@dataclass(frozen=True)
class TracedPair:
    """A step, and the node positions of its kernels.

    ``positions[k]`` is the position, in the forward or the backward graph, at which kernel ``k`` runs. The
    items of the step stand in the order of the saved storages that it was traced with.
    """

    trace: StepTrace
    positions: tuple[int, ...]

    def transfers(self, moves: Sequence[Move], candidates: Sequence[Candidate]) -> tuple[Transfer, ...]:
        """Return the moves of a plan as transfers between nodes; ``candidates`` are in the order of the items."""
        return tuple(
            Transfer(
                source=source,
                copy_after=candidates[move.item].ready,
                release_after=max(self.positions[move.release_after], candidates[move.item].last_forward_use),
                reload_before=self._before(move.reload_before, candidates[move.item]),
                use_before=candidates[move.item].first_backward_use,
            )
            for move in moves
            for source in candidates[move.item].sources
        )

    def _before(self, kernel: int, candidate: Candidate) -> int:
        """Return the first node position at which nothing of ``kernel`` has run: after what ran before it."""
        previous = kernel - 1
        after = self.positions[previous] + 1 if previous >= self.trace.num_forward else 0
        return min(after, candidate.first_backward_use)

    def moves(self, transfers: Sequence[Transfer], candidates: Sequence[Candidate]) -> tuple[Move, ...]:
        """Return transfers between nodes as moves between kernels: what a schedule by layers means in time."""
        by_source = {
            source.node: index for index, candidate in enumerate(candidates) for source in candidate.sources
        }
        found: dict[int, Move] = {}
        for transfer in transfers:
            index = by_source[transfer.source.node]
            item = self.trace.items[index]
            found.setdefault(
                index,
                Move(
                    item=index,
                    copy_after=item.ready,
                    release_after=max(item.last_forward_use, self._last_kernel(transfer.release_after)),
                    reload_before=min(item.first_backward_use, self._next_kernel(transfer.reload_before)),
                    use_before=item.first_backward_use,
                ),
            )
        return tuple(found.values())

    def _last_kernel(self, position: int) -> int:
        """Return the last forward kernel that is done when the node at ``position`` is."""
        done = [k for k in range(self.trace.num_forward) if self.positions[k] <= position]
        return done[-1] if done else 0

    def _next_kernel(self, position: int) -> int:
        """Return the first backward kernel that begins at the node at ``position`` or later."""
        total = len(self.positions)
        later = (k for k in range(self.trace.num_forward, total) if self.positions[k] >= position)
        return next(later, total - 1)


def trace_pair(
    joint: JointGraph,
    partition: Partition,
    stored: Sequence[SavedStorage],
    candidates: Sequence[Candidate],
    choices: Sequence[Choice],
    *,
    mode: str,
    profile: HardwareProfile,
) -> TracedPair:
    """Describe one forward-backward on ``profile``. ``candidates`` and ``choices`` stand in parallel to ``stored``."""
    forward, backward = list(partition.forward.graph.nodes), list(partition.backward.graph.nodes)
    fused = mode == "inductor"
    first = _Side(joint, forward, fused, profile, 0)
    second = _Side(joint, backward, fused, profile, len(first.kernels))
    total = len(first.kernels) + len(second.kernels)
    returned = partition.returned_to_caller
    items = [
        _item(item, candidate, choice, first, second, is_returned=not returned.isdisjoint(item.storage.nodes))
        for item, candidate, choice in zip(stored, candidates, choices, strict=True)
    ]
    resident, regions = _forward_regions(first, second, partition, stored)
    regions += _backward_regions(second, partition, total)
    regions += first.workspaces + second.workspaces
    if fused:
        regions = _reuse_dying_buffers(regions, items, first, second)
    trace = StepTrace(
        kernels=tuple(first.kernels + second.kernels),
        num_forward=len(first.kernels),
        resident_bytes=resident,
        regions=tuple(regions),
        items=tuple(items),
    )
    return TracedPair(trace, tuple(first.positions + second.positions))


class _Side:
    """The kernels of one graph of a pair; indices count from ``offset``."""

    def __init__(
        self, joint: JointGraph, nodes: list[fx.Node], fused: bool, profile: HardwareProfile, offset: int
    ) -> None:
        self.map = group_kernels(nodes, fused=fused)
        self.storages = self.map.storages
        self.storage_of = {node: storage for storage in self.storages for node in storage.nodes}
        self.offset = offset
        self.written = {id(storage.base) for storage in self.map.written}
        position = {node: index for index, node in enumerate(nodes)}
        self.kernels: list[Kernel] = []
        self.positions: list[int] = []
        self.workspaces: list[Region] = []
        for index, kernel in enumerate(self.map.kernels):
            operators = kernel.operators
            cost = cost_of_kernel(kernel, fused=fused)
            layers = Counter(layer for layer in map(joint.layer_of, operators) if layer is not None)
            layer = layers.most_common(1)[0][0] if layers else None
            name = operators[-1].name
            self.kernels.append(Kernel(name, duration_ms(cost, profile), layer))
            # A fused kernel runs where it stores its first result; its other operators may stand further on.
            stored = [position[node] for node in operators if node in kernel.stored]
            self.positions.append(min(stored) if stored else position[operators[-1]])
            num_bytes = workspace_bytes(kernel)
            if num_bytes:
                at = index + offset
                self.workspaces.append(Region(f"workspace of {name}", num_bytes, at, at))

    def creation(self, storage: Storage) -> int | None:
        """Return the kernel that writes a storage, or the first that reads it; None if nothing touches it."""
        own = self.map.kernel_of.get(launch_of(storage.base))
        found = own if own is not None else min(self.map.readers(storage), default=None)
        return None if found is None else found + self.offset

    def reads(self, storage: Storage) -> list[int]:
        """Return the kernels that read a storage, in order."""
        return sorted(kernel + self.offset for kernel in self.map.readers(storage))

    def is_written(self, storage: Storage) -> bool:
        """Whether a storage takes memory: a value that stays inside its kernel does not."""
        return id(storage.base) in self.written


def _item(
    item: SavedStorage,
    candidate: Candidate,
    choice: Choice,
    first: _Side,
    second: _Side,
    *,
    is_returned: bool,
) -> Item:
    created = first.creation(item.storage)
    forward = first.reads(item.storage)
    received = [
        second.storage_of[saved.backward] for saved in item.saved if saved.backward in second.storage_of
    ]
    backward = [read for storage in received for read in second.reads(storage)]
    start, end = second.offset, second.offset + len(second.kernels) - 1
    ready = max(
        [created or 0]
        + [
            first.map.kernel_of[node]
            for node in map(launch_of, item.storage.nodes)
            if node in first.map.kernel_of
        ]
    )
    return Item(
        name=candidate.activation.name,
        num_bytes=0 if item.storage.is_input else item.storage.num_bytes,
        moved_bytes=candidate.moved_bytes,
        created=created or 0,
        ready=ready,
        last_forward_use=max([ready, *forward]),
        first_backward_use=min(backward, default=start),
        last_backward_use=end if is_returned else max(backward, default=end),
        fates=choice.fates,
        recompute=choice.recompute,
        num_copies=len(candidate.sources),
    )


def _forward_regions(
    side: _Side, second: _Side, partition: Partition, stored: Sequence[SavedStorage]
) -> tuple[int, list[Region]]:
    """Return the bytes that came in from outside, and what forward allocates beside the items.

    What no policy judged may be saved, too: what backward derives from forward values alone, computed in forward.
    """
    inputs = {saved.forward: saved.backward for saved in partition.saved}
    items = {id(item.storage.base) for item in stored}
    returned = partition.returned_to_caller
    resident = 0
    regions = []
    for storage in side.storages:
        if storage.is_input:
            resident += storage.num_bytes
            continue
        created = side.creation(storage)
        if id(storage.base) in items or created is None or not side.is_written(storage):
            continue
        last = max(side.reads(storage), default=created)
        if any(node in returned for node in storage.nodes):
            last = second.offset + len(second.kernels) - 1
        for crossing in (second.storage_of[inputs[node]] for node in storage.nodes if node in inputs):
            last = max([last, *second.reads(crossing)])
        regions.append(Region(storage.base.name, storage.num_bytes, created, last))
    return resident, regions


def _backward_regions(side: _Side, partition: Partition, total: int) -> list[Region]:
    """Return what backward allocates, and the gradients that it is given."""
    saved = {saved.backward for saved in partition.saved}
    output = partition.backward.graph.output_node()
    regions = []
    for storage in side.storages:
        if not saved.isdisjoint(storage.nodes) or (not storage.is_input and not side.is_written(storage)):
            continue
        created = side.offset if storage.is_input else side.creation(storage)
        if created is None:
            continue
        last = max(side.reads(storage), default=created)
        is_gradient = any(output in node.users for node in storage.nodes)
        if is_gradient:
            last = total - 1
        regions.append(Region(storage.base.name, storage.num_bytes, created, last, is_gradient))
    return regions


def _reuse_dying_buffers(
    regions: Sequence[Region], items: Sequence[Item], first: _Side, second: _Side
) -> list[Region]:
    """Let a fused kernel, or a scatter, write into a buffer of the same size that it is the last to read."""
    dying: dict[tuple[int, int], int] = Counter((region.last, region.num_bytes) for region in regions)
    for item in items:
        dying[item.last_backward_use, item.num_bytes] += 1
    operators: Mapping[int, fx.Node] = {
        index + side.offset: kernel.operators[-1]
        for side in (first, second)
        for index, kernel in enumerate(side.map.kernels)
    }
    found = []
    for region in regions:
        key = (region.first, region.num_bytes)
        node = operators[region.first]
        in_place = not is_unfusible(node) or is_scatter(node)
        if in_place and region.last > region.first and dying.get(key, 0) > 0:
            dying[key] -= 1
            region = replace(region, first=region.first + 1)
        found.append(region)
    return found
