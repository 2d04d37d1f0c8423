"""What a graph launches: one kernel for each operator, or groups of operators that a fusing compiler makes one.

In mode ``graph`` every operator that is not a view is a kernel. In mode ``inductor`` pointwise operators, reductions and
gathers fuse with what they read; matrix products, attention, sorting, scatters and unknown operators do not:

    level of an operator      number of unfusible operators on the longest path to it; pointwise ones sink to their readers
    kernel                    operators of one level that are connected by what they read

Operators of one level cannot depend on each other through an unfusible one, so that no group forms a cycle. Small values
that several groups read (tables of cosines) are computed in each of them.
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

__all__ = ["KernelMap", "group_kernels", "is_scatter", "is_unfusible", "launch_of", "launches", "producers_of"]

_UNFUSIBLE_CLASSES = frozenset({"matmul", "attention", "convolution", "routing", "collective"})
_SCATTERS = ("index_put", "scatter")
_UNFUSIBLE_NAMES = (*_SCATTERS, "embedding_dense_backward", "sort", "searchsorted", "cumsum")
_TABLE_SHARE = 1 / 8  # a value this much smaller than its reader is computed again in each group that reads it


@dataclass(frozen=True)
class KernelMap:
    """The kernels of one graph in execution order, each with its operators in graph order.

    ``kernel_of`` maps operators to indices of ``kernels``. ``written`` are the storages that a kernel leaves in memory:
    all but those that only their own kernel reads.
    """

    kernels: tuple[tuple[fx.Node, ...], ...]
    kernel_of: Mapping[fx.Node, int]
    written: tuple[Storage, ...]

    def first_reader(self, storage: Storage) -> int | None:
        """Return the first kernel that reads ``storage`` through any alias; None if none does."""
        return min(self.readers(storage), default=None)

    def readers(self, storage: Storage) -> set[int]:
        """Return the kernels that read ``storage`` through any alias."""
        users = {user for node in storage.nodes for user in node.users}
        return {self.kernel_of[user] for user in users if user in self.kernel_of}


def launches(node: fx.Node) -> bool:
    """Whether a node runs anything on the device: a call that is no view and does not merely unpack."""
    if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
        return False
    return isinstance(node.target, OpOverload | HigherOrderOperator) and _has_tensor(node)


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


def producers_of(node: fx.Node) -> list[fx.Node]:
    """Return the operators whose results ``node`` reads, views and unpacking looked through; inputs included."""
    found: dict[fx.Node, None] = {}
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source.op == "call_function" and not launches(source):
            pending.extend(source.all_input_nodes)
        else:
            found[source] = None
    return list(found)


def group_kernels(nodes: Sequence[fx.Node], *, fused: bool) -> KernelMap:
    """Group the operators of a graph (or of a stretch of one, in execution order) into kernels.

    ``fused`` says whether a compiler fuses them, as mode ``inductor`` does.
    """
    launched = [node for node in nodes if launches(node)]
    sources = {node: producers_of(node) for node in launched}
    groups = _fuse(launched, sources) if fused else {node: node for node in launched}
    members: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in launched:
        members[groups[node]].append(node)
    storages = find_storages(nodes)
    written = [storage for storage in storages if _leaves_kernel(storage, groups)]
    order = _order(members, groups, sources, written, nodes)
    kernel_of = {node: index for index, root in enumerate(order) for node in members[root]}
    kernels = tuple(tuple(members[root]) for root in order)
    return KernelMap(kernels, MappingProxyType(kernel_of), tuple(written))


def _fuse(launched: Sequence[fx.Node], sources: Mapping[fx.Node, list[fx.Node]]) -> dict[fx.Node, fx.Node]:
    parent = {node: node for node in launched}

    def root(node: fx.Node) -> fx.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    weight: dict[fx.Node, int] = {}
    alone = {node: is_unfusible(node) for node in launched}
    level = _levels(launched, sources, alone)
    for node in launched:
        weight[node] = max([_bytes(node), *(_weight_of(source, weight, alone) for source in sources[node])])
        if alone[node]:
            continue
        for source in [source for source in sources[node] if source in level]:
            is_table = weight[source] < _TABLE_SHARE * _bytes(node)
            if not alone[source] and level[source] == level[node] and not is_table:
                parent[root(source)] = root(node)
    return {node: root(node) for node in launched}


def _levels(
    launched: Sequence[fx.Node], sources: Mapping[fx.Node, list[fx.Node]], alone: Mapping[fx.Node, bool]
) -> dict[fx.Node, int]:
    level: dict[fx.Node, int] = {}
    readers: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in launched:
        read = [source for source in sources[node] if source in level]
        level[node] = max((level[source] + alone[source] for source in read), default=0)
        for source in read:
            readers[source].append(node)
    for node in reversed(launched):
        # A compiler writes a pointwise operator into the kernel of its reader.
        if readers[node] and not alone[node] and class_of_operator(node.target) != "reduction":
            level[node] = min(level[reader] for reader in readers[node])
    return level


def _weight_of(source: fx.Node, weight: Mapping[fx.Node, int], alone: Mapping[fx.Node, bool]) -> int:
    """Return the largest tensor that went into a fused value, or the size of a stored one."""
    return _bytes(source) if source not in weight or alone[source] else weight[source]


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    tensor = tensor_of(node)
    if tensor is not None:
        return tensor_bytes(tensor)
    return sum(item.numel() * item.element_size() for item in values if hasattr(item, "element_size"))


def _leaves_kernel(storage: Storage, groups: Mapping[fx.Node, fx.Node]) -> bool:
    base = launch_of(storage.base)
    if base not in groups:
        return True
    own = groups[base]
    for node in storage.nodes:
        for user in node.users:
            if user.op == "output" or (user in groups and groups[user] is not own):
                return True
    return is_unfusible(base)


def _order(
    members: Mapping[fx.Node, list[fx.Node]],
    groups: Mapping[fx.Node, fx.Node],
    sources: Mapping[fx.Node, list[fx.Node]],
    written: Sequence[Storage],
    nodes: Sequence[fx.Node],
) -> list[fx.Node]:
    """Put the groups in execution order: by the first value that each leaves in memory, what it reads before it."""
    position = {node: index for index, node in enumerate(nodes)}
    stored = {launch_of(storage.base) for storage in written}
    first = {
        root: min([position[node] for node in group if node in stored] or [position[group[-1]]])
        for root, group in members.items()
    }
    needs = {
        root: sorted(
            {groups[source] for node in group for source in sources[node] if source in groups} - {root},
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


def launch_of(node: fx.Node) -> fx.Node:
    """Return the call behind a node that unpacks one of its results."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
