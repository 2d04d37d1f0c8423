"""What it takes to compute each saved storage again in backward: from which others, and for how long.

    v = mul(silu(gate), up)          gate, up saved      ->  needs (gate, up), one fused kernel
    h = norm(x); q = mm(h, W)        x saved             ->  needs (x,), the norm's kernel and the product's

The walk goes back from a saved value until it meets other saved storages or inputs. What backward computes again anyway
costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from offload_runtime.graph.costs import cost_of_kernel, duration_ms
from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.kernels import Launch, is_unfusible, launch_of, launches, values_read
from offload_runtime.graph.operators import is_random, operator_of
from offload_runtime.hardware import HardwareProfile
from offload_runtime.passes.candidates import SavedStorage
from offload_runtime.passes.partition import Partition
from offload_runtime.passes.tag import recompute_obstacle
from offload_runtime.step import Recompute

__all__ = ["recompute_options"]

_MAX_OPERATORS = 64  # a longer way back is a second forward, not a recomputation


def recompute_options(
    joint: JointGraph,
    partition: Partition,
    stored: Sequence[SavedStorage],
    *,
    mode: str,
    profile: HardwareProfile,
) -> list[Recompute | None]:
    """Return, in parallel to ``stored``, how each could be computed again; None where it must not or cannot be.

    Collectives, random operators and what reads an input that the step overwrites are never run twice. What the caller
    gets stays alive: computing it again would gain nothing.
    """
    saved = {node: index for index, item in enumerate(stored) for node in item.storage.nodes}
    backward = partition.backward.graph.nodes
    again = {
        name for node in backward if node.op == "call_function" and (name := origin_of(node)) is not None
    }
    returned = partition.returned_to_caller
    return [
        _option(index, item, saved, again, joint, fused=mode == "inductor", profile=profile)
        if returned.isdisjoint(item.storage.nodes)
        else None
        for index, item in enumerate(stored)
    ]


def _option(
    index: int,
    item: SavedStorage,
    saved: Mapping[fx.Node, int],
    again: set[str],
    joint: JointGraph,
    *,
    fused: bool,
    profile: HardwareProfile,
) -> Recompute | None:
    if item.storage.is_input or recompute_obstacle(item.judged.storage, joint.mutated) is not None:
        return None
    own = launch_of(item.storage.writer)
    needs: set[int] = set()
    chain: dict[fx.Node, None] = {}
    pending = [own]
    while pending:
        node = pending.pop()
        if node in chain:
            continue
        if not launches(node) or is_random(operator_of(node)) or len(chain) == _MAX_OPERATORS:
            return None
        chain[node] = None
        for source in _sources(node, saved):
            other = saved.get(source)
            if source.op == "placeholder":
                if origin_of(source) in joint.mutated:
                    return None
            elif other is not None and other != index:
                needs.add(other)
            else:
                pending.append(source)
    paid = [node for node in chain if node is own or origin_of(node) not in again]
    return Recompute(_duration_ms(paid, own, fused, profile), tuple(sorted(needs)))


def _sources(node: fx.Node, saved: Mapping[fx.Node, int]) -> list[fx.Node]:
    """Return what an operator reads: saved values as they are, else the operators behind views and unpacking."""
    found: dict[fx.Node, None] = {}
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source in saved or source.op == "placeholder" or launches(source):
            found[source] = None
        else:
            pending.extend(source.all_input_nodes)
    return list(found)


def _duration_ms(chain: Sequence[fx.Node], own: fx.Node, fused: bool, profile: HardwareProfile) -> float:
    """Return the time of a chain: its unfusible operators one by one, the others as one kernel where they fuse."""
    single = [node for node in chain if not fused or is_unfusible(node)]
    together = [node for node in chain if fused and not is_unfusible(node)]
    launched = [Launch((node,), values_read(node), frozenset((node,))) for node in single]
    if together:
        inside, read = set(together), [values_read(node) for node in together]
        reads = {
            value: num_bytes
            for values in read
            for value, num_bytes in values.items()
            if launch_of(value) not in inside
        }
        stored = frozenset(
            node for node in together if node is own or any(user in set(single) for user in node.users)
        )
        launched.append(Launch(tuple(together), reads, stored))
    return sum(duration_ms(cost_of_kernel(kernel, fused=fused), profile) for kernel in launched)
