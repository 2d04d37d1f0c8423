"""Check a rewritten graph pair: what a transfer may never do, read off the graphs alone.

The checker knows nothing of the plan that produced the graphs. It fails on a read of a released storage, a
copy older than the last write, a transfer without a wait and a wait without a transfer, a storage released
twice, a released input or output, a host tensor that computation reads, a reload of the wrong tensor, a view
with the wrong geometry, and any change to what the pair computed before transfers were put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from offload_runtime.graph.storages import Storage, find_storages, tensor_of
from offload_runtime.passes.offload import TransferOps
from offload_runtime.passes.partition import Partition

__all__ = ["Defect", "OriginalPair", "VerificationError", "read_original", "verify_partition"]


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong with a rewritten graph: its kind, the node it shows at, and a sentence."""

    kind: str
    node: str
    message: str


class VerificationError(AssertionError):
    """A rewrite broke a graph: a bug of this package, never of the policy."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        self.defects = tuple(defects)
        super().__init__("; ".join(f"{defect.kind} at {defect.node}: {defect.message}" for defect in defects))


@dataclass(frozen=True)
class OriginalPair:
    """What a pair was before the rewrite: saved values as fake tensors, and every call as text, by node name.

    ``results`` and ``inputs`` name what forward returns and what backward takes in, in order.
    """

    num_fwd_outputs: int
    saved: Mapping[str, torch.Tensor]
    results: tuple[str, ...]
    inputs: tuple[str, ...]
    forward_calls: tuple[tuple[str, str], ...]
    backward_calls: tuple[tuple[str, str], ...]
    gradients: tuple[str, ...]


def read_original(partition: Partition) -> OriginalPair:
    """Note what a partition computes, before it is rewritten in place."""
    tensors = ((saved.forward.name, tensor_of(saved.forward)) for saved in partition.saved)
    return OriginalPair(
        num_fwd_outputs=partition.num_fwd_outputs,
        saved={name: tensor for name, tensor in tensors if tensor is not None},
        results=tuple(map(_name_of, _results(partition.forward.graph))),
        inputs=tuple(node.name for node in partition.backward.graph.find_nodes(op="placeholder")),
        forward_calls=_calls(partition.forward.graph, {}),
        backward_calls=_calls(partition.backward.graph, {}),
        gradients=tuple(map(_name_of, _results(partition.backward.graph))),
    )


def verify_partition(
    forward: fx.GraphModule, backward: fx.GraphModule, *, original: OriginalPair, ops: TransferOps
) -> None:
    """Raise :class:`VerificationError` unless the pair is sound and computes what ``original`` did."""
    num_fwd_outputs = original.num_fwd_outputs
    out = _Transfers(forward.graph, ops.d2h_start, ops.d2h_wait)
    back = _Transfers(backward.graph, ops.h2d_start, ops.h2d_wait)
    defects = [
        *out.pairing_defects(),
        *back.pairing_defects(),
        *_forward_defects(forward.graph, out),
        *_backward_defects(back),
        *_crossing_defects(forward.graph, out, back, num_fwd_outputs),
        *_saved_value_defects(backward.graph, out, back, original.saved),
        *_place_defects(forward.graph, backward.graph, out, back, original),
        *_computation_defects(forward.graph, backward.graph, out, back, original),
    ]
    if defects:
        raise VerificationError(defects)


class _Transfers:
    """Starts and waits of one graph, by transfer key."""

    def __init__(self, graph: fx.Graph, start: object, wait: object) -> None:
        self.start_op, self.wait_op = start, wait
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.starts = [node for node in graph.nodes if node.target is start]
        self.waits = [node for node in graph.nodes if node.target is wait]

    @staticmethod
    def key(node: fx.Node) -> object:
        return node.args[-1]

    def pairing_defects(self) -> Iterable[Defect]:
        started = Counter(map(self.key, self.starts))
        waited = Counter(map(self.key, self.waits))
        for node in self.starts:
            if started[self.key(node)] > 1:
                yield Defect(
                    "doubled transfer", node.name, f"transfer {self.key(node)} starts more than once"
                )
            if not waited[self.key(node)]:
                yield Defect("dropped wait", node.name, f"transfer {self.key(node)} is never waited for")
            for user in node.users:
                if user.target is not self.wait_op:
                    yield Defect(
                        "unfinished copy", user.name, f"it reads {node.name} before the copy is waited for"
                    )
        for node in self.waits:
            if waited[self.key(node)] > 1:
                yield Defect(
                    "doubled free", node.name, f"transfer {self.key(node)} is waited for more than once"
                )
            start = node.args[0]
            if not isinstance(start, fx.Node) or start.target is not self.start_op:
                yield Defect("wait without transfer", node.name, "it waits for something that is no copy")
            elif self.key(start) != self.key(node):
                yield Defect("wrong wait", node.name, f"it waits for transfer {self.key(start)}, not its own")


def _forward_defects(graph: fx.Graph, out: _Transfers) -> Iterable[Defect]:
    storage_of: dict[fx.Node, Storage] = {
        node: storage for storage in find_storages(list(graph.nodes)) for node in storage.nodes
    }
    results = _results(graph)
    returned = {id(storage_of[node]) for node in results if isinstance(node, fx.Node) and node in storage_of}
    released: dict[int, tuple[Storage, int]] = {}
    for wait in out.waits:
        source = wait.args[1]
        if not isinstance(source, fx.Node) or source not in storage_of:
            yield Defect("wrong source", wait.name, "it releases something that is no tensor of this graph")
            continue
        storage = storage_of[source]
        start = wait.args[0]
        if isinstance(start, fx.Node) and start.target is out.start_op and start.args[0] is not source:
            yield Defect(
                "wrong source", wait.name, f"it releases {source.name}, but {start.args[0]} was copied"
            )
        if storage.is_input:
            yield Defect("freed input", wait.name, f"{source.name} shares its storage with a graph input")
        if id(storage) in returned:
            yield Defect("freed output", wait.name, f"{source.name} shares its storage with a graph output")
        last = max(out.position[wait], released.get(id(storage), (storage, 0))[1])
        released[id(storage)] = storage, last
    for storage, freed in released.values():
        yield from _late_readers(graph, storage, freed, out)
    for start in out.starts:
        source = start.args[0]
        if isinstance(source, fx.Node) and source in storage_of:
            late = [write for write in storage_of[source].writes if write > out.position[start]]
            if late:
                yield Defect(
                    "stale copy", start.name, f"{source.name} is written after the copy of it has started"
                )


def _late_readers(graph: fx.Graph, storage: Storage, freed: int, out: _Transfers) -> Iterable[Defect]:
    order = list(graph.nodes)
    for read in storage.reads:
        if read > freed and order[read].op != "output" and not _releases_another(order[read], storage, out):
            yield Defect(
                "read after free", order[read].name, f"it reads {storage.base.name} after its release"
            )


def _releases_another(node: fx.Node, storage: Storage, out: _Transfers) -> bool:
    """Whether a node only waits for the copy of a tensor that a custom operator made from ``storage``.

    That tensor might be a view, but then it keeps the memory alive itself; a copy of it that starts late is a read.
    """
    return node in out.waits and not any(argument in storage.nodes for argument in node.all_input_nodes)


def _backward_defects(back: _Transfers) -> Iterable[Defect]:
    for start in back.starts:
        host = start.args[0]
        if not isinstance(host, fx.Node) or host.op != "placeholder":
            yield Defect("wrong source", start.name, "it reloads something that did not come from forward")
            continue
        for user in host.users:
            if user.target not in (back.start_op, back.wait_op):
                yield Defect("host read", user.name, f"it reads the host copy {host.name}")
    for wait in back.waits:
        start = wait.args[0]
        if isinstance(start, fx.Node) and start.target is back.start_op and start.args[0] is not wait.args[1]:
            yield Defect(
                "wrong source", wait.name, "it waits on another host copy than the one being reloaded"
            )


def _crossing_defects(
    forward: fx.Graph, out: _Transfers, back: _Transfers, num_fwd_outputs: int
) -> Iterable[Defect]:
    """What is copied out comes back under the same key."""
    results = _results(forward)
    sent = {
        out.key(node) for node in results[num_fwd_outputs:] if isinstance(node, fx.Node) and node in out.waits
    }
    for wait in out.waits:
        if out.key(wait) not in sent:
            yield Defect("lost copy", wait.name, "its host copy is not returned for backward")
    received = {back.key(start) for start in back.starts}
    for key in sorted(map(str, sent - received)):
        yield Defect("lost copy", "backward", f"transfer {key} is never reloaded")
    for key in sorted(map(str, received - sent)):
        yield Defect("reload before its offload", "backward", f"transfer {key} was never copied out")


def _saved_value_defects(
    backward: fx.Graph, out: _Transfers, back: _Transfers, originals: Mapping[str, torch.Tensor]
) -> Iterable[Defect]:
    """What stands in backward for a saved value looks like it: same bytes, same geometry, same type."""
    sources = {out.key(start): start.args[0] for start in out.starts}
    views = [node for node in backward.nodes if "replayed_view" in node.meta]
    for view in views:
        wait = view.args[0]
        source = sources.get(back.key(wait)) if isinstance(wait, fx.Node) and wait in back.waits else None
        base = tensor_of(source) if isinstance(source, fx.Node) else None
        original = originals.get(view.meta["replayed_view"])
        if original is None or base is None:
            yield Defect("wrong view", view.name, "it stands for nothing that forward saved and copied out")
        elif tuple(view.args[1:]) != _geometry(original) or original.dtype != base.dtype:
            yield Defect("wrong view", view.name, f"its geometry differs from {view.meta['replayed_view']}")
        elif original.untyped_storage()._cdata != base.untyped_storage()._cdata:
            yield Defect("wrong view", view.name, f"{source} is not its base")
    for wait in back.waits:
        source, host = sources.get(back.key(wait)), wait.args[1]
        if not isinstance(source, fx.Node) or not isinstance(host, fx.Node):
            continue
        if not any(view.args[0] is wait for view in views) and host.name != source.name:
            yield Defect("wrong reload", wait.name, f"it stands for {host.name} but reloads {source.name}")
    present = {node.name for node in backward.find_nodes(op="placeholder")}
    present |= {view.meta["replayed_view"] for view in views}
    for name in originals:
        if name not in present:
            yield Defect("lost value", "backward", f"saved value {name} has no stand-in")


def _place_defects(
    forward: fx.Graph, backward: fx.Graph, out: _Transfers, back: _Transfers, original: OriginalPair
) -> Iterable[Defect]:
    """Autograd pairs what forward returns with what backward takes in by place, so the order may not change."""
    hosts = {back.key(start): start.args[0] for start in back.starts}
    results = [
        _name_of(hosts.get(out.key(node)) if node in out.waits else node) for node in _results(forward)
    ]
    inputs = [node.name for node in backward.find_nodes(op="placeholder")]
    saved = original.results[original.num_fwd_outputs :]
    replayed = set(original.saved) - set(inputs)
    expected = [
        *original.results[: original.num_fwd_outputs],
        *(name for name in saved if name not in replayed),
    ]
    if results != expected:
        yield Defect("misplaced value", "forward", f"it returns {results} where {expected} is expected")
    if inputs != [name for name in original.inputs if name not in replayed]:
        yield Defect("misplaced value", "backward", "its inputs are not those that forward returns")


def _computation_defects(
    forward: fx.Graph, backward: fx.Graph, out: _Transfers, back: _Transfers, original: OriginalPair
) -> Iterable[Defect]:
    """Transfers taken away, both graphs are what they were: the same calls on the same values in the same order."""
    stand_ins = {wait: _name_of(wait.args[1]) for wait in back.waits}
    stand_ins |= {node: node.meta["replayed_view"] for node in backward.nodes if "replayed_view" in node.meta}
    transfers = {*out.starts, *out.waits, *back.starts, *stand_ins}
    for side, graph, before in (
        ("forward", forward, original.forward_calls),
        ("backward", backward, original.backward_calls),
    ):
        now = _calls(graph, stand_ins, without=transfers)
        changed = next(
            (name for (name, text), then in zip(now, before, strict=False) if (name, text) != then), side
        )
        if now != before:
            yield Defect(
                "changed computation", changed, f"{side} no longer computes what it did before the rewrite"
            )
    gradients = tuple(stand_ins.get(node) or _name_of(node) for node in _results(backward))
    if gradients != original.gradients:
        yield Defect(
            "changed computation", "backward", "it no longer returns the gradients it did before the rewrite"
        )


def _calls(
    graph: fx.Graph, stand_ins: Mapping[fx.Node, str], without: Container[fx.Node] = ()
) -> tuple[tuple[str, str], ...]:
    """Write down every call and, in backward, what is returned; arguments by name."""

    def name(node: fx.Node) -> str:
        return f"%{stand_ins.get(node, node.name)}"

    def text(node: fx.Node) -> str:
        return f"{node.target} {fx.map_arg((node.args, node.kwargs), name)}"

    return tuple(
        (node.name, text(node))
        for node in graph.nodes
        if node.op not in ("placeholder", "output") and node not in without
    )


def _results(graph: fx.Graph) -> Sequence[Any]:
    results = graph.output_node().args[0]
    assert isinstance(results, (list, tuple))
    return results


def _name_of(value: object) -> str:
    return value.name if isinstance(value, fx.Node) else repr(value)


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
