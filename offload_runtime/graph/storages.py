"""Storages of a graph: which tensors share memory, who wrote it last, who reads it, how large it is.

Alias sets come from operator schemas (``alias_info``) and from the identity of fake storages together, never
from a list of view operators. An operator of a namespace that torch does not ship may alias and may write
whatever it reads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import symbolic_shapes

__all__ = ["Storage", "find_storages", "foreign_type_of", "hint", "layout_of", "tensor_bytes", "tensor_of"]

Layout = Literal["contiguous", "dense", "strided"]
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "_c10d_functional", "_quantized", "offload", "rngprims"}
)
# The name of the hint function that never installs a guard: torch 2.13, then torch 2.11.
_shapes = vars(symbolic_shapes)
_hint: Callable[[torch.SymInt | int, int], int] = _shapes.get("optimization_hint") or _shapes["size_hint"]


@dataclass(frozen=True)
class Storage:
    """One device storage of a graph.

    ``nodes`` are its tensors in graph order (the first one produced it); ``num_bytes`` its extent;
    ``writes`` the positions at which it is, or may be, written; ``reads`` the positions of every read through
    any alias.
    """

    nodes: tuple[fx.Node, ...]
    num_bytes: int
    writes: tuple[int, ...]
    reads: tuple[int, ...]

    @property
    def base(self) -> fx.Node:
        """The tensor that brought the storage into being."""
        return self.nodes[0]

    @cached_property
    def writer(self) -> fx.Node:
        """The last tensor of the set that is not a mere view: its operator is what a policy sees."""
        return next((node for node in reversed(self.nodes) if _writes_own_output(node)), self.base)

    @cached_property
    def is_input(self) -> bool:
        """Whether the storage came in from outside the graph."""
        return any(node.op in ("placeholder", "get_attr") for node in self.nodes)


def tensor_of(node: fx.Node) -> torch.Tensor | None:
    """Return the fake tensor of a node, or None where the node yields no plain strided tensor."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and type(value) in _PLAIN and value.layout == torch.strided:
        return value
    return None


def foreign_type_of(node: fx.Node) -> str | None:
    """Name the type of a tensor that is not plain and strided (a subclass, sparse); None for all others."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or tensor_of(node) is not None:
        return None
    layout = str(value.layout).removeprefix("torch.")
    return layout if type(value) in _PLAIN else type(value).__name__


def hint(value: torch.SymInt | int) -> int:
    """Return an integer for a possibly symbolic size without guarding on it."""
    return value if isinstance(value, int) else int(_hint(value, 4096))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements of a tensor (not of its storage)."""
    return hint(tensor.numel()) * tensor.element_size()


def layout_of(tensor: torch.Tensor) -> Layout:
    """Say whether a tensor is contiguous, else non-overlapping and dense, else merely strided."""
    pairs = [(hint(stride), hint(size)) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    pairs = [(stride, size) for stride, size in pairs if size != 1]
    if any(size == 0 for _, size in pairs):
        return "contiguous"
    if _is_packed(reversed(pairs)):
        return "contiguous"
    return "dense" if _is_packed(sorted(pairs)) else "strided"


def _is_packed(pairs: Iterable[tuple[int, int]]) -> bool:
    expected = 1
    for stride, size in pairs:
        if stride != expected:
            return False
        expected *= size
    return True


def find_storages(nodes: Sequence[fx.Node]) -> list[Storage]:
    """Group the tensors of ``nodes`` (in execution order) by storage, in order of first appearance.

    Fake storages tell aliases only between a call and what it reads, and between graph inputs: in a backward
    graph a value that is computed again wears the same fake tensor as the saved one, and is another storage.
    """
    groups = _Groups()
    inputs: dict[int, fx.Node] = {}
    outputs: dict[tuple[object, ...], fx.Node] = {}
    for node in nodes:
        tensor = tensor_of(node)
        if tensor is None:
            continue
        groups.add(node)
        storage = tensor.untyped_storage()._cdata
        if node.op != "call_function":
            if not _is_gradient(node):
                groups.join(node, inputs.setdefault(storage, node))
            continue
        for argument in (*_aliased_arguments(node), *_sharing_arguments(node)):
            groups.join(node, argument)
        producer, path = _unpacked(node)
        if path:
            # One output may be unpacked twice, and two outputs of one call may be views of one buffer.
            groups.join(node, outputs.setdefault((producer, *path), node))
            groups.join(node, outputs.setdefault((producer, "storage", storage), node))
    position = {node: index for index, node in enumerate(nodes)}
    return [_describe(members, position) for members in groups.sets()]


def _is_gradient(node: fx.Node) -> bool:
    """Whether backward is given a gradient: AOTAutograd traces it with the memory of its output, and it has its own."""
    return node.op == "placeholder" and "tangents" in str(node.target)


class _Groups:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def add(self, node: fx.Node) -> None:
        self._parent[node] = node

    def join(self, one: fx.Node, other: fx.Node) -> None:
        if other in self._parent:
            self._parent[self._root(one)] = self._root(other)

    def _root(self, node: fx.Node) -> fx.Node:
        while self._parent[node] is not node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def sets(self) -> list[list[fx.Node]]:
        by_root: dict[fx.Node, list[fx.Node]] = {}
        for node in self._parent:
            by_root.setdefault(self._root(node), []).append(node)
        return list(by_root.values())


def _describe(members: list[fx.Node], position: dict[fx.Node, int]) -> Storage:
    members.sort(key=position.__getitem__)
    num_bytes = max(
        hint(tensor.untyped_storage().nbytes()) for tensor in map(tensor_of, members) if tensor is not None
    )
    writes = {position[node] for node in members if _writes_own_output(node)}
    reads = set()
    for node in _with_possible_aliases(members):
        for user in node.users:
            if user not in position:
                continue
            reads.add(position[user])
            if _may_write(user, node):
                writes.add(position[user])
    return Storage(tuple(members), num_bytes, tuple(sorted(writes)), tuple(sorted(reads)))


def _with_possible_aliases(members: list[fx.Node]) -> list[fx.Node]:
    """Follow the outputs of unknown operators: they may alias what the operator read."""
    found = dict.fromkeys(members)
    pending = list(members)
    while pending:
        for user in pending.pop().users:
            if user not in found and (_is_unknown(user) or _unpacks_unknown(user)):
                found[user] = None
                pending.append(user)
    return list(found)


def _unpacks_unknown(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    return not isinstance(node.target, OpOverload) and isinstance(source, fx.Node) and _is_unknown(source)


def _is_unknown(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.namespace not in _TORCH_NAMESPACES


def _aliased_arguments(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that the schema lets the tensor of ``node`` alias."""
    source = _producer(node)
    if not isinstance(source.target, OpOverload) or not _returns_aliases(source.target):
        return []
    returns = source.target._schema.returns
    if source is not node and len(returns) > 1 and isinstance(node.args[1], int):
        returns = returns[node.args[1] : node.args[1] + 1]
    infos = [value.alias_info for value in returns if value.alias_info is not None]
    returned = {name for info in infos for name in info.before_set}
    # A list of views (split, unbind) names no set of its own: its argument is the one that enters "*".
    wildcard = any(not info.before_set for info in infos)
    return [
        value
        for argument, value in _bound_arguments(source)
        if argument.alias_info is not None
        and (
            returned & set(argument.alias_info.before_set)
            or (wildcard and "*" in argument.alias_info.after_set)
        )
    ]


def _producer(node: fx.Node) -> fx.Node:
    """Return the operator call behind a ``getitem`` of one of its outputs."""
    return _unpacked(node)[0]


def _unpacked(node: fx.Node) -> tuple[fx.Node, tuple[object, ...]]:
    """Return the operator call behind a node and where in its outputs the node stands; () for the call itself."""
    path: tuple[object, ...] = ()
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        path = (node.args[1], *path)
        node = node.args[0]
    return node, path


@cache
def _returns_aliases(target: OpOverload) -> bool:
    return any(value.alias_info is not None for value in target._schema.returns)


@cache
def _writes_arguments(target: OpOverload) -> bool:
    return any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in target._schema.arguments
    )


def _bound_arguments(node: fx.Node) -> list[tuple[torch.Argument, fx.Node]]:
    assert isinstance(node.target, OpOverload)
    bound = []
    for index, argument in enumerate(node.target._schema.arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        values = value if isinstance(value, (list, tuple)) else (value,)
        bound += [(argument, item) for item in values if isinstance(item, fx.Node)]
    return bound


def _may_write(user: fx.Node, read: fx.Node) -> bool:
    if not isinstance(user.target, OpOverload):
        return False
    if _is_unknown(user):
        return True
    return _writes_arguments(user.target) and any(
        value is read and argument.alias_info is not None and argument.alias_info.is_write
        for argument, value in _bound_arguments(user)
    )


def _writes_own_output(node: fx.Node) -> bool:
    """Whether a tensor holds freshly computed values, not a view of another's."""
    if node.op != "call_function":
        return True
    target = node.target
    if isinstance(target, OpOverload):
        return _writes_arguments(target) or (not _returns_aliases(target) and not _sharing_arguments(node))
    return not _aliased_arguments(node) and not _sharing_arguments(node)


def _sharing_arguments(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that the call behind ``node`` reads and whose fake storage is that of ``node``."""
    tensor = tensor_of(node)
    if tensor is None:
        return []
    own = tensor.untyped_storage()._cdata
    read = ((argument, tensor_of(argument)) for argument in _producer(node).all_input_nodes)
    return [
        argument for argument, other in read if other is not None and other.untyped_storage()._cdata == own
    ]
