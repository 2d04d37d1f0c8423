"""Defects to seed into a correct rewritten pair, each with the kind of finding that must catch it.

Every function changes the two graphs in place and returns False where a pair has nothing to break.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from offload_runtime.graph.storages import find_storages, tensor_of
from offload_runtime.runtime.backend import OPS

__all__ = ["SEEDED_DEFECTS", "SeededDefect"]


@dataclass(frozen=True)
class SeededDefect:
    """A way to break a pair, and the kind of defect that the verifier has to report for it."""

    name: str
    kind: str
    seed: Callable[[fx.Graph, fx.Graph, int], bool]


def _calls(graph: fx.Graph, target: object) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target is target]


def _drop_offload_wait(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(forward, OPS.d2h_wait)[:1]:
        wait.replace_all_uses_with(wait.args[0])
        forward.erase_node(wait)
        return True
    return False


def _drop_reload_wait(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(backward, OPS.h2d_wait)[:1]:
        wait.replace_all_uses_with(wait.args[0])
        backward.erase_node(wait)
        return True
    return False


def _release_early(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    order = {node: index for index, node in enumerate(forward.nodes)}
    nodes = list(forward.nodes)
    storages = {node: storage for storage in find_storages(nodes) for node in storage.nodes}
    for wait in _calls(forward, OPS.d2h_wait):
        start, source = wait.args[0], wait.args[1]
        reads = [
            read
            for read in storages[source].reads
            if order[start] < read < order[wait]
            if nodes[read].target not in (OPS.d2h_start, OPS.d2h_wait)
            if tensor_of(nodes[read]) is not None and nodes[read] not in storages[source].nodes
        ]
        if reads:
            start.append(wait)
            return True
    return False


def _change_view_geometry(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    changed = False
    for view in backward.nodes:
        if "replayed_view" in view.meta:
            strides = [0] * len(view.args[2])
            changed = changed or strides != list(view.args[2])
            view.args = (view.args[0], view.args[1], strides, view.args[3])
    return changed


def _take_another_base(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    changed = False
    for view in [node for node in backward.nodes if "replayed_view" in node.meta]:
        for other in _calls(backward, OPS.h2d_wait):
            if other is not view.args[0] and tensor_of(other).dtype == tensor_of(view).dtype:
                _move_before(other, view)
                view.replace_input_with(view.args[0], other)
                changed = True
                break
    return changed


def _move_before(call: fx.Node, position: fx.Node) -> None:
    """Move a reload's wait, and its start, before ``position`` if they stand behind it."""
    order = {node: index for index, node in enumerate(call.graph.nodes)}
    for node in (call.args[0], call):
        if order[node] > order[position]:
            position.prepend(node)


def _write_after_copy(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    """Give the graph a write in place (as an operator of the user's may do) between start and wait."""
    for start in _calls(forward, OPS.d2h_start):
        source = start.args[0]
        if not tensor_of(source).is_floating_point():
            continue
        with forward.inserting_after(start):
            written = forward.call_function(torch.ops.aten.cos_.default, (source,))
        written.meta["val"] = source.meta["val"]
        return True
    return False


def _free_twice(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(forward, OPS.d2h_wait)[:1]:
        with forward.inserting_after(wait):
            again = forward.call_function(OPS.d2h_wait, wait.args)
        again.meta["val"] = wait.meta["val"]
        return True
    return False


def _transfer_twice(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for start in _calls(backward, OPS.h2d_start)[:1]:
        with backward.inserting_after(start):
            again = backward.call_function(OPS.h2d_start, start.args)
        again.meta["val"] = start.meta["val"]
        return True
    return False


def _never_offload(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(forward, OPS.d2h_wait)[:1]:
        start, source = wait.args[0], wait.args[1]
        wait.replace_all_uses_with(source)
        forward.erase_node(wait)
        forward.erase_node(start)
        return True
    return False


def _alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = tensor_of(one), tensor_of(other)
    return a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def _reload_another_host(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    starts = _calls(backward, OPS.h2d_start)
    for start in starts:
        for other in starts:
            if start is not other and _alike(start, other):
                start.replace_input_with(start.args[0], other.args[0])
                return True
    return False


def _swap_reloads(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    """Both transfers pair up by key, but each stands for the other's value."""
    starts = _calls(backward, OPS.h2d_start)
    for start in starts:
        for other in starts:
            if start is not other and _alike(start, other):
                hosts = {start.args[0]: other.args[0], other.args[0]: start.args[0]}
                for call in [*starts, *_calls(backward, OPS.h2d_wait)]:
                    call.args = tuple(
                        hosts.get(value, value) if isinstance(value, fx.Node) else value
                        for value in call.args
                    )
                return True
    return False


def _return_unfinished_copy(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(forward, OPS.d2h_wait)[:1]:
        forward.output_node().replace_input_with(wait, wait.args[0])
        return True
    return False


def _offload_an_output(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    output = forward.output_node()
    for wait in _calls(forward, OPS.d2h_wait):
        results = list(output.args[0])
        for place in range(num_outputs):
            if isinstance(results[place], fx.Node) and tensor_of(results[place]) is not None:
                results[place] = wait.args[1]
                output.args = (tuple(results),)
                return True
    return False


def _offload_an_input(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(forward, OPS.d2h_wait):
        start, source = wait.args[0], wait.args[1]
        for given in forward.find_nodes(op="placeholder"):
            if tensor_of(given) is not None and given.users and _alike(given, source):
                start.replace_input_with(source, given)
                wait.replace_input_with(source, given)
                return True
    return False


def _readers(wait: fx.Node) -> list[fx.Node]:
    return [user for user in wait.users if user.op == "call_function"]


def _read_host(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(backward, OPS.h2d_wait):
        for user in _readers(wait):
            user.replace_input_with(wait, wait.args[1])
            return True
    return False


def _read_before_wait(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(backward, OPS.h2d_wait):
        for user in _readers(wait):
            user.replace_input_with(wait, wait.args[0])
            wait.prepend(user)
            return bool(
                all(
                    argument is wait.args[0] or _stands_before(argument, user)
                    for argument in user.all_input_nodes
                )
            )
    return False


def _stands_before(node: fx.Node, other: fx.Node) -> bool:
    order = {each: index for index, each in enumerate(node.graph.nodes)}
    return order[node] < order[other]


def _swap_saved(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    output = forward.output_node()
    results = list(output.args[0])
    waits = [index for index in range(num_outputs, len(results)) if results[index].target is OPS.d2h_wait]
    for one in waits:
        for other in range(num_outputs, len(results)):
            if (
                one != other
                and tensor_of(results[other]) is not None
                and _alike(results[one], results[other])
            ):
                results[one], results[other] = results[other], results[one]
                output.args = (tuple(results),)
                return True
    return False


def _read_another_reload(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    for wait in _calls(backward, OPS.h2d_wait):
        for other in _calls(backward, OPS.h2d_wait):
            for user in _readers(wait):
                if other is not wait and _alike(wait, other) and "replayed_view" not in user.meta:
                    _move_before(other, user)
                    user.replace_input_with(wait, other)
                    return True
    return False


def _drop_a_computation(forward: fx.Graph, backward: fx.Graph, num_outputs: int) -> bool:
    kept = {OPS.h2d_start, OPS.h2d_wait, operator.getitem}
    for node in reversed(list(backward.nodes)):
        if node.op != "call_function" or node.target in kept or tensor_of(node) is None:
            continue
        for argument in node.all_input_nodes:
            is_tensor = argument.op == "call_function" and tensor_of(argument) is not None
            if is_tensor and argument.target is not OPS.h2d_start and _alike(argument, node):
                node.replace_all_uses_with(argument)
                backward.erase_node(node)
                return True
    return False


SEEDED_DEFECTS = (
    SeededDefect("dropped wait of an offload", "dropped wait", _drop_offload_wait),
    SeededDefect("dropped wait of a reload", "dropped wait", _drop_reload_wait),
    SeededDefect("early release", "read after free", _release_early),
    SeededDefect("wrong geometry of a view", "wrong view", _change_view_geometry),
    SeededDefect("wrong base of a view", "wrong view", _take_another_base),
    SeededDefect("stale copy", "stale copy", _write_after_copy),
    SeededDefect("doubled free", "doubled free", _free_twice),
    SeededDefect("doubled transfer", "doubled transfer", _transfer_twice),
    SeededDefect("reload before its offload", "reload before its offload", _never_offload),
    SeededDefect("reload of another host copy", "wrong source", _reload_another_host),
    SeededDefect("swapped reloads", "wrong reload", _swap_reloads),
    SeededDefect("lost copy", "lost copy", _return_unfinished_copy),
    SeededDefect("freed output", "freed output", _offload_an_output),
    SeededDefect("freed input", "freed input", _offload_an_input),
    SeededDefect("host read by computation", "host read", _read_host),
    SeededDefect("unfinished copy read", "unfinished copy", _read_before_wait),
    SeededDefect("swapped saved values", "misplaced value", _swap_saved),
    SeededDefect("another reload read", "changed computation", _read_another_reload),
    SeededDefect("dropped computation", "changed computation", _drop_a_computation),
)
