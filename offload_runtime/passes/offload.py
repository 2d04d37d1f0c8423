"""Phase 2: put the planned transfers into a partitioned graph pair.

Forward returns a host copy in place of each offloaded value:

    x = mm(...)                               x = mm(...)
    ...                                       h = d2h_start(x); ...
    return (y, x)                 ->          w = d2h_wait(h, x)
                                              return (y, w)

Backward receives the host copy, reloads it ahead of its first use and replays the saved views from it:

    def backward(x, grad): ...    ->          def backward(w, grad):
        t(x)                                      d = h2d_start(w); ...
                                                  r = h2d_wait(d, w)
                                                  t(r)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from offload_runtime.graph.operators import class_of_node
from offload_runtime.graph.storages import tensor_of
from offload_runtime.offload_plan import OffloadPlan, Transfer

__all__ = ["TransferOps", "offload_forward_pass", "reload_backward_pass"]

_MATERIALISED_CLASSES = frozenset({"matmul", "attention", "convolution"})


@dataclass(frozen=True)
class TransferOps:
    """The four operators that a rewritten graph calls (see ``offload_runtime.runtime.ops`` for their schemas).

    ``keeps_on_device`` is True for the set that saves on the device instead: a numeric reference with the same order
    and the same boundaries between fused kernels.
    """

    d2h_start: OpOverload
    d2h_wait: OpOverload
    h2d_start: OpOverload
    h2d_wait: OpOverload
    keeps_on_device: bool = False

    def host_of(self, device: torch.device) -> torch.device:
        """Return where these operators put what they take from ``device``."""
        return device if self.keeps_on_device else torch.device("cpu")


def offload_forward_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    plan: OffloadPlan,
    keys: Mapping[str, int],
    ops: TransferOps,
    anchored: bool,
) -> fx.GraphModule:
    """Insert the outgoing copies and return host tensors in place of what they copy.

    ``keys`` maps source names to the runtime's transfer keys. ``anchored`` ties every transfer to the last
    materialised operation before it, for compilers that move what nothing holds.
    """
    order = list(gm.graph.nodes)
    by_name = {node.name: node for node in order}
    anchors = _Anchors(order) if anchored else None
    starts: dict[int, list[Transfer]] = defaultdict(list)
    waits: dict[int, list[Transfer]] = defaultdict(list)
    last = len(order) - 2
    for transfer in plan.transfers:
        starts[min(transfer.copy_after, last)].append(transfer)
        waits[min(max(transfer.release_after, transfer.copy_after), last)].append(transfer)
    started: dict[str, fx.Node] = {}
    hosts: dict[str, fx.Node] = {}
    for position in sorted(starts.keys() | waits.keys()):
        with gm.graph.inserting_before(order[position].next):
            for transfer in starts[position]:
                name = transfer.source.node
                source = by_name[name]
                held = anchors.at(position, after=source) if anchors else []
                started[name] = _call(gm, ops.d2h_start, source, held, keys[name])
                started[name].meta["val"] = _like(source, ops.host_of(_device_of(source)))
            for transfer in waits[position]:
                name = transfer.source.node
                source = by_name[name]
                held = anchors.at(position, after=source) if anchors else []
                hosts[name] = _call(gm, ops.d2h_wait, started[name], source, held, keys[name])
                hosts[name].meta["val"] = started[name].meta["val"]
    _return_hosts(gm, plan, hosts, by_name)
    gm.graph.lint()
    gm.recompile()
    return gm


def _return_hosts(
    gm: fx.GraphModule, plan: OffloadPlan, hosts: Mapping[str, fx.Node], by_name: Mapping[str, fx.Node]
) -> None:
    replaced: dict[fx.Node, fx.Node] = {}
    dropped: set[fx.Node] = set()
    for transfer in plan.transfers:
        served = [by_name[name] for name in transfer.source.views or (transfer.source.node,)]
        host = hosts[transfer.source.node]
        _copy_save_marks(served[0], host)
        replaced[served[0]] = host
        dropped.update(served[1:])
    output = gm.graph.output_node()
    results = output.args[0]
    assert isinstance(results, (list, tuple))
    kept = [index for index, node in enumerate(results) if node not in dropped]
    outputs: list[Any] = [results[index] for index in kept]
    output.args = (tuple(replaced.get(node, node) for node in outputs),)
    if "desc" in output.meta:
        output.meta["desc"] = [output.meta["desc"][index] for index in kept]


def _copy_save_marks(saved: fx.Node, host: fx.Node) -> None:
    """Keep the marks by which AOTAutograd counts and sorts saved tensors."""
    mark = saved.meta.get("saved_tensor_with_no_vc_check")
    if mark is not None:
        host.meta["saved_tensor_with_no_vc_check"] = mark


def reload_backward_pass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    plan: OffloadPlan,
    keys: Mapping[str, int],
    ops: TransferOps,
    anchored: bool,
    forward: fx.GraphModule,
) -> fx.GraphModule:
    """Insert the reloads and replay the saved views from them.

    ``forward`` is the forward graph of the pair: what an offloaded base looked like is read from there.
    """
    order = list(gm.graph.nodes)
    inputs = {node.name: node for node in gm.graph.find_nodes(op="placeholder")}
    views = {name: node.meta["val"] for name, node in inputs.items()}
    bases = {node.name: node for node in forward.graph.nodes}
    first = next(index for index, node in enumerate(order) if node.op != "placeholder")
    anchors = _Anchors(order) if anchored else None
    starts: dict[int, list[Transfer]] = defaultdict(list)
    waits: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in plan.transfers:
        starts[max(min(transfer.reload_before, transfer.use_before), first)].append(transfer)
        waits[max(transfer.use_before, first)].append(transfer)
    started: dict[str, tuple[fx.Node, fx.Node]] = {}
    for position in sorted(starts.keys() | waits.keys()):
        with gm.graph.inserting_before(order[position]):
            # The copy stream is a queue: what is needed first goes first.
            for transfer in sorted(starts[position], key=lambda transfer: transfer.use_before):
                host, device = _receive_host(transfer, inputs, bases)
                host.meta["val"] = _like(bases[transfer.source.node], ops.host_of(device))
                held = anchors.at(position - 1, after=host) if anchors else []
                key = keys[transfer.source.node]
                start = _call(gm, ops.h2d_start, host, held, device, key)
                start.meta["val"] = _like(bases[transfer.source.node], device)
                started[transfer.source.node] = host, start
            for transfer in waits[position]:
                _wait_and_replay(gm, transfer, started[transfer.source.node], keys, ops, inputs, views)
    for transfer in plan.transfers:
        for name in transfer.source.views[1:]:
            gm.graph.erase_node(inputs[name])
    gm.graph.lint()
    gm.recompile()
    return gm


def _receive_host(
    transfer: Transfer, inputs: Mapping[str, fx.Node], bases: Mapping[str, fx.Node]
) -> tuple[fx.Node, torch.device]:
    """Return the placeholder that receives the host copy (of a base, where views of it were saved), and its device."""
    base = bases[transfer.source.node]
    tensor = tensor_of(base)
    assert tensor is not None
    return inputs[(transfer.source.views or (transfer.source.node,))[0]], tensor.device


def _wait_and_replay(
    gm: fx.GraphModule,
    transfer: Transfer,
    started: tuple[fx.Node, fx.Node],
    keys: Mapping[str, int],
    ops: TransferOps,
    inputs: Mapping[str, fx.Node],
    views: Mapping[str, torch.Tensor],
) -> None:
    host, start = started
    ready = _call(gm, ops.h2d_wait, start, host, keys[transfer.source.node])
    ready.meta["val"] = start.meta["val"]
    moved = {start, ready}
    if not transfer.source.views:
        host.replace_all_uses_with(ready, delete_user_cb=lambda user: user not in moved)
    for name in transfer.source.views:
        view = _replay(gm, ready, name, views[name])
        inputs[name].replace_all_uses_with(view, delete_user_cb=lambda user: user not in moved)


def _call(gm: fx.GraphModule, operator: OpOverload, *args: Any) -> fx.Node:
    """Call a transfer operator, and hold a compiler to the strides that its tensors were traced with.

    Inductor would otherwise pick a layout for the copy, and return another copy of that to autograd. Anchors are
    order alone: their layout is nobody's business.
    """
    node = gm.graph.call_function(operator, args)
    traced = tuple(arg.meta["val"] if isinstance(arg, fx.Node) else None for arg in args)
    node.meta["eager_input_vals"] = (traced, {})
    return node


def _replay(gm: fx.GraphModule, ready: fx.Node, name: str, tensor: torch.Tensor) -> fx.Node:
    """Rebuild a saved view from its reloaded base by the size, stride and offset of ``tensor``."""
    geometry = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
    view = gm.graph.call_function(torch.ops.aten.as_strided.default, (ready, *geometry))
    view.meta["val"] = tensor
    view.meta["replayed_view"] = name
    return view


def _device_of(node: fx.Node) -> torch.device:
    """Return the device of a node's tensor."""
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor.device


def _like(node: fx.Node, device: torch.device) -> torch.Tensor:
    """Make a fresh fake tensor with the sizes, strides and type of ``node`` on ``device``."""
    tensor = tensor_of(node)
    assert tensor is not None
    mode = getattr(tensor, "fake_mode", None)
    if mode is None:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


class _Anchors:
    """For each position the last operation at or before it whose result no fusion can dissolve."""

    def __init__(self, order: Sequence[fx.Node]) -> None:
        self._position = {node: index for index, node in enumerate(order)}
        self._last: list[fx.Node | None] = []
        last: fx.Node | None = None
        for node in order:
            is_tensor = node.op == "call_function" and tensor_of(node) is not None
            if is_tensor and class_of_node(node) in _MATERIALISED_CLASSES:
                last = node
            self._last.append(last)

    def at(self, position: int, *, after: fx.Node) -> list[fx.Node]:
        anchor = self._last[position] if position >= 0 else None
        if anchor is None or self._position[anchor] <= self._position[after]:
            return []
        return [anchor]
