"""What a graph launches: one kernel for each operator, or groups of operators that a fusing compiler makes one.

In mode ``graph`` every operator that is not a view is a kernel. In mode ``inductor`` matrix products, attention,
sorting, scatters and unknown operators are kernels of their own; pointwise operators, gathers and reductions fuse, in
two steps:

    inlined     a pointwise value that only fusible operators read is computed in each kernel that reads it, unless
                that takes more than ``_MAX_READS`` values from memory
    grouped     what has to be stored is grouped with what it reads, and with what reads the same values, if both are
                on one level: the number of unfusible operators on the longest path to them; pointwise values sink to
                the level of their first reader

Operators of one level cannot depend on each other through an unfusible one, so that no group forms a cycle.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from offload_runtime.graph.operators import class_of_operator, is_view
from offload_runtime.graph.storages import Storage, find_storages, tensor_bytes, tensor_of

__all__ = [
    "KernelMap",
    "Launch",
    "group_kernels",
    "is_scatter",
    "is_unfusible",
    "launch_of",
    "launches",
    "values_read",
]

_UNFUSIBLE_CLASSES = frozenset({"matmul", "attention", "convolution", "routing", "collective"})
_SCATTERS = ("index_put", "scatter")
_UNFUSIBLE_NAMES = (*_SCATTERS, "embedding_dense_backward", "sort", "searchsorted", "cumsum")
_MAX_READS = 4  # Inductor's realize_reads_threshold
_SHARED_READ = (
    1 / 2
)  # two results are computed together if they read a value of at least this share of their size


@dataclass(frozen=True)
class Launch:
    """One kernel: its operators in graph order, the values that it reads from memory with their bytes.

    An inlined operator stands in every kernel that computes it. ``stored`` are the operators whose results stay in
    memory.
    """

    operators: tuple[fx.Node, ...]
    reads: Mapping[fx.Node, int]
    stored: frozenset[fx.Node]


@dataclass(frozen=True)
class KernelMap:
    """The kernels of one graph in execution order.

    ``kernel_of`` maps operators whose results stay in memory to indices of ``kernels``. ``storages`` are all of the
    graph, ``written`` those that a kernel leaves in memory.
    """

    kernels: tuple[Launch, ...]
    kernel_of: Mapping[fx.Node, int]
    storages: tuple[Storage, ...]
    written: tuple[Storage, ...]
    _readers: Mapping[fx.Node, frozenset[int]]

    def readers(self, storage: Storage) -> set[int]:
        """Return the kernels that read ``storage`` through any alias."""
        return {kernel for node in storage.nodes for kernel in self._readers.get(node, ())}


def launches(node: fx.Node) -> bool:
    """Whether a node runs anything on the device: a call that is no view and does not merely unpack."""
    if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
        return False
    if isinstance(node.target, HigherOrderOperator):
        return True  # the partitioner adds some that say nothing of their results
    return isinstance(node.target, OpOverload) and _has_tensor(node)


def _has_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return tensor_of(node) is not None or isinstance(value, tuple | list)


def is_unfusible(node: fx.Node) -> bool:
    """Whether a compiler launches this operator by itself."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return True
    name = target._schema.name.partition("::")[2]
    return class_of_operator(target) in _UNFUSIBLE_CLASSES or any(part in name for part in _UNFUSIBLE_NAMES)


def is_scatter(node: fx.Node) -> bool:
    """Whether an operator writes values to places of another tensor: a fusing compiler does that in place."""
    return isinstance(node.target, OpOverload) and any(part in node.target.name() for part in _SCATTERS)


def launch_of(node: fx.Node) -> fx.Node:
    """Return the call behind a node that unpacks one of its results."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def values_read(node: fx.Node) -> dict[fx.Node, int]:
    """Return the values that an operator reads, views looked through, with the bytes that it reads of each.

    They stand in the order of its arguments. A value is a graph input, the result of an operator, or one of its several
    results (a ``getitem``).
    """
    found: dict[fx.Node, int] = {}
    pending = [(source, _bytes(source)) for source in reversed(node.all_input_nodes)]
    while pending:
        source, num_bytes = pending.pop()
        is_value = source.op != "call_function" or launches(launch_of(source))
        if is_value and (
            source.target is operator.getitem or launches(source) or source.op != "call_function"
        ):
            found[source] = max(found.get(source, 0), min(num_bytes, _bytes(source)))
        else:
            num_bytes = min(num_bytes, _bytes(source) or num_bytes)
            pending += [(before, num_bytes) for before in reversed(source.all_input_nodes)]
    return found


def _bytes(node: fx.Node) -> int:
    tensor = tensor_of(node)
    return 0 if tensor is None else tensor_bytes(tensor)


def group_kernels(nodes: Sequence[fx.Node], *, fused: bool) -> KernelMap:
    """Group the operators of a graph into kernels; ``nodes`` are all of its nodes in execution order.

    ``fused`` says whether a compiler fuses them, as mode ``inductor`` does.
    """
    launched = [node for node in nodes if launches(node)]
    reads = {node: values_read(node) for node in launched}
    inlined = _inlined(nodes, launched, reads) if fused else set()
    real = [node for node in launched if node not in inlined]
    bodies = {node: _body(node, reads, inlined) for node in real}
    groups = _fuse(real, bodies) if fused else {node: node for node in real}
    members: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in real:
        members[groups[node]].append(node)
    storages = tuple(find_storages(nodes))
    written = tuple(storage for storage in storages if _is_stored(storage, groups))
    stored = {launch_of(storage.base) for storage in written}
    order = _order(members, groups, bodies, stored, nodes)
    position = {node: index for index, node in enumerate(nodes)}
    kernels = tuple(_launch(members[root], bodies, stored, position) for root in order)
    kernel_of = {node: index for index, root in enumerate(order) for node in members[root]}
    readers: dict[fx.Node, set[int]] = defaultdict(set)
    for index, kernel in enumerate(kernels):
        for value in kernel.reads:
            readers[value].add(index)
    frozen = {value: frozenset(indices) for value, indices in readers.items()}
    return KernelMap(kernels, MappingProxyType(kernel_of), storages, written, MappingProxyType(frozen))


@dataclass(frozen=True)
class _Body:
    """What computing one stored value takes: the operators inlined for it, and what they read from memory."""

    operators: tuple[fx.Node, ...]
    reads: Mapping[fx.Node, int]


def _inlined(
    nodes: Sequence[fx.Node], launched: Sequence[fx.Node], reads: Mapping[fx.Node, Mapping[fx.Node, int]]
) -> set[fx.Node]:
    """Return the pointwise operators that are computed where they are read and never stored."""
    must_store: set[fx.Node] = set()
    for node in nodes:
        if node.op == "output":
            must_store.update(map(launch_of, values_read(node)))
        elif node in reads and is_unfusible(node):
            must_store.update(map(launch_of, reads[node]))
    inlined: set[fx.Node] = set()
    leaves: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in launched:
        below = frozenset[fx.Node]().union(*(leaves.get(value, {value}) for value in reads[node]))
        several = len(node.users) > 1
        if _is_pointwise(node) and node not in must_store and not (several and len(below) > _MAX_READS):
            inlined.add(node)
            leaves[node] = below
    return inlined


def _is_pointwise(node: fx.Node) -> bool:
    """Whether each element of a result is computed by itself, and may be computed wherever it is read.

    Random numbers are drawn once; several results are those of a statistic.
    """
    return (
        not is_unfusible(node)
        and class_of_operator(node.target) not in ("reduction", "random")
        and tensor_of(node) is not None
    )


def _body(node: fx.Node, reads: Mapping[fx.Node, Mapping[fx.Node, int]], inlined: set[fx.Node]) -> _Body:
    operators: dict[fx.Node, None] = {node: None}
    found: dict[fx.Node, int] = {}
    pending = [node]
    while pending:
        for value, num_bytes in reads[pending.pop()].items():
            if value in inlined:
                if value not in operators:
                    operators[value] = None
                    pending.append(value)
            else:
                found[value] = max(found.get(value, 0), num_bytes)
    return _Body(tuple(operators), found)


def _fuse(real: Sequence[fx.Node], bodies: Mapping[fx.Node, _Body]) -> dict[fx.Node, fx.Node]:
    parent = {node: node for node in real}

    def root(node: fx.Node) -> fx.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    level = _levels(real, bodies)
    reading: dict[tuple[int, fx.Node], fx.Node] = {}
    for node in real:
        if is_unfusible(node):
            continue
        for value, num_bytes in bodies[node].reads.items():
            source = launch_of(value)
            if source in level and not is_unfusible(source) and level[source] == level[node]:
                parent[root(source)] = root(node)
            if num_bytes >= _SHARED_READ * _bytes(node):
                parent[root(reading.setdefault((level[node], value), node))] = root(node)
    return {node: root(node) for node in real}


def _levels(real: Sequence[fx.Node], bodies: Mapping[fx.Node, _Body]) -> dict[fx.Node, int]:
    level: dict[fx.Node, int] = {}
    readers: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in real:
        read = [source for source in map(launch_of, bodies[node].reads) if source in level]
        level[node] = max((level[source] + is_unfusible(source) for source in read), default=0)
        for source in read:
            readers[source].append(node)
    for node in reversed(real):
        if readers[node] and not is_unfusible(node) and class_of_operator(node.target) != "reduction":
            level[node] = min(level[reader] for reader in readers[node])
    return level


def _is_stored(storage: Storage, groups: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether a storage takes memory: it comes from outside, leaves the graph, or another kernel reads it."""
    base = launch_of(storage.base)
    if base.op != "call_function" or not launches(base):
        return True
    if base not in groups:
        return False
    if is_unfusible(base):
        return True
    own = groups[base]
    return any(
        user.op == "output" or _read_elsewhere(user, own, groups, set())
        for node in storage.nodes
        for user in node.users
    )


def _read_elsewhere(
    user: fx.Node,
    own: fx.Node,
    groups: Mapping[fx.Node, fx.Node],
    seen: set[fx.Node],
) -> bool:
    """Whether a user, or a kernel that it is inlined into, belongs to another group than ``own``."""
    if user in groups:
        return groups[user] is not own
    if user in seen or user.op != "call_function":
        return False
    seen.add(user)
    return any(_read_elsewhere(after, own, groups, seen) for after in user.users)


def _launch(
    group: Sequence[fx.Node],
    bodies: Mapping[fx.Node, _Body],
    stored: set[fx.Node],
    position: Mapping[fx.Node, int],
) -> Launch:
    inside = {node for member in group for node in bodies[member].operators}
    reads: dict[fx.Node, int] = {}
    for member in group:
        for value, num_bytes in bodies[member].reads.items():
            if launch_of(value) not in inside:
                reads[value] = max(reads.get(value, 0), num_bytes)
    operators = tuple(sorted(inside, key=position.__getitem__))
    return Launch(operators, MappingProxyType(reads), frozenset(inside & stored))


def _order(
    members: Mapping[fx.Node, list[fx.Node]],
    groups: Mapping[fx.Node, fx.Node],
    bodies: Mapping[fx.Node, _Body],
    stored: set[fx.Node],
    nodes: Sequence[fx.Node],
) -> list[fx.Node]:
    """Put the groups in execution order: by the first value that each leaves in memory, what it reads before it."""
    position = {node: index for index, node in enumerate(nodes)}
    first = {
        root: min([position[node] for node in group if node in stored] or [position[group[-1]]])
        for root, group in members.items()
    }
    needs = {
        root: sorted(
            {
                groups[source]
                for node in group
                for source in map(launch_of, bodies[node].reads)
                if source in groups
            }
            - {root},
            key=first.__getitem__,
        )
        for root, group in members.items()
    }
    order: list[fx.Node] = []
    done: set[fx.Node] = set()
    for start in sorted(members, key=first.__getitem__):
        pending = [start]
        while pending:
            root = pending[-1]
            missing = [need for need in needs[root] if need not in done]
            if root in done or not missing:
                pending.pop()
                if root not in done:
                    done.add(root)
                    order.append(root)
            else:
                pending.extend(reversed(missing))
    return order
