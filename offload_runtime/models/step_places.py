"""Places of a simulated step in words of the model: which operator runs there, and what is alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import fx

from offload_runtime.graph.joint import JointGraph, origin_of
from offload_runtime.graph.operators import operator_name
from offload_runtime.models.plan_result import GRADIENTS, Holding, PeakSite
from offload_runtime.models.step_chain import ChainLink
from offload_runtime.passes.pipeline import PlannedPair
from offload_runtime.passes.refusal import LEAST_SHARE
from offload_runtime.passes.selection import Selected
from offload_runtime.passes.trace import TracedPair
from offload_runtime.planning.limits import Holder
from offload_runtime.step import Move, Simulation

__all__ = ["STAYS", "holdings_at", "name_holders", "site_of", "traced_of", "with_other_graphs"]

STAYS = "what stays throughout"
KEPT = "saved by earlier graphs"
_NUM_KINDS = 5


def traced_of(selected: Selected) -> tuple[TracedPair, Simulation]:
    """Return the step that was planned with a known hardware, and how it runs."""
    assert selected.traced is not None, "the hardware is known here"
    assert selected.simulation is not None, "the hardware is known here"
    return selected.traced, selected.simulation


def site_of(pair: PlannedPair, kernel: int) -> PeakSite:
    """Return where kernel number ``kernel`` of a pair stands in the model."""
    traced, _ = traced_of(pair.selected)
    found = traced.trace.kernels[kernel]
    forward = kernel < traced.trace.num_forward
    partition = pair.selected.partition
    graph = partition.forward.graph if forward else partition.backward.graph
    node = next((node for node in graph.nodes if node.name == found.name), None)
    return PeakSite(
        side="forward" if forward else "backward",
        kernel=found.name,
        op="" if node is None else operator_name(node),
        module="" if node is None else _module_of(pair.joint, node),
        layer=found.layer if node is None else pair.joint.layer_of(node),
    )


def holdings_at(pair: PlannedPair, kernel: int) -> tuple[Holding, ...]:
    """Return what is alive at a kernel beside what is resident, by kind, the largest first."""
    return _grouped(_alive(pair, kernel))


def with_other_graphs(
    holdings: Iterable[Holding], earlier: Sequence[ChainLink], later: Sequence[ChainLink]
) -> tuple[Holding, ...]:
    """Return what is alive at a kernel of one graph, with what ``earlier`` graphs keep and ``later`` ones have left.

    ``later`` are those whose backward has run: none where the kernel runs forward.
    """
    kept = [num_bytes for link in earlier for num_bytes in link.kept_sizes]
    left = [num_bytes for link in later for num_bytes in link.left_sizes]
    others = (Holding(KEPT, len(kept), sum(kept)), Holding(GRADIENTS, len(left), sum(left)))
    totals: dict[str, Holding] = {}
    for held in (*holdings, *(other for other in others if other.num_bytes)):
        before = totals.get(held.what, Holding(held.what, 0, 0))
        totals[held.what] = Holding(
            held.what, before.num_tensors + held.num_tensors, before.num_bytes + held.num_bytes
        )
    return tuple(sorted(totals.values(), key=lambda held: (-held.num_bytes, held.what)))


def name_holders(pair: PlannedPair, holders: Sequence[Holder], *, total_bytes: int) -> tuple[Holding, ...]:
    """Return what the planner found alive, by kind, the largest first; the others are put together.

    They add up to ``total_bytes``, to what is no share of it worth a word. Nodes are looked up in ``pair``'s graphs.
    """
    names = _operators(pair)
    traced, _ = traced_of(pair.selected)
    known = {**names[False], **names[True], "resident": STAYS}
    known |= {region.name: GRADIENTS for region in traced.trace.regions if region.is_gradient}
    largest = _grouped((_words_of(held.name, known), held.num_bytes) for held in holders)[:_NUM_KINDS]
    largest = tuple(held for held in largest if held.num_bytes >= total_bytes * LEAST_SHARE)
    rest = total_bytes - sum(held.num_bytes for held in largest)
    return (*largest, *((Holding("smaller ones", 1, rest),) if rest >= total_bytes * LEAST_SHARE else ()))


def _words_of(name: str, known: Mapping[str, str]) -> str:
    """Return what is known of a holder's node, or of the one whose workspace it is."""
    kind, of, node = name.rpartition("workspace of ")
    return f"{kind}{of}{known.get(node, node)}" if of else known.get(name, name)


def _grouped(alive: Iterable[tuple[str, int]]) -> tuple[Holding, ...]:
    totals: dict[str, tuple[int, int]] = {}
    for what, num_bytes in alive:
        count, total = totals.get(what, (0, 0))
        totals[what] = (count + 1, total + num_bytes)
    found = [Holding(what, count, total) for what, (count, total) in totals.items() if total]
    found.sort(key=lambda holding: (-holding.num_bytes, holding.what))
    return tuple(found)


def _alive(pair: PlannedPair, kernel: int) -> Iterator[tuple[str, int]]:
    traced, _ = traced_of(pair.selected)
    trace = traced.trace
    names = _operators(pair)
    moves = {move.item: move for move in traced.moves(pair.selected.transfers, pair.selected.candidates)}
    for region in trace.regions:
        if region.first <= kernel <= region.last:
            op = names[region.first >= trace.num_forward].get(region.name, region.name.partition(" of ")[0])
            yield (GRADIENTS if region.is_gradient else op), region.num_bytes
    for index, item in enumerate(trace.items):
        if item.created <= kernel <= item.last_backward_use and _on_device(moves.get(index), kernel):
            yield f"saved {names[False].get(item.name, 'tensors')}", item.num_bytes


def _on_device(move: Move | None, kernel: int) -> bool:
    return move is None or kernel <= move.release_after or kernel >= move.reload_before


def _operators(pair: PlannedPair) -> dict[bool, dict[str, str]]:
    """Return the operators of the nodes of both graphs by name: False is forward, True backward."""
    partition = pair.selected.partition
    found: dict[bool, dict[str, str]] = {}
    for backward, gm in ((False, partition.forward), (True, partition.backward)):
        found[backward] = {
            node.name: operator_name(node) for node in gm.graph.nodes if node.op == "call_function"
        }
        if backward:
            tangents = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
            found[backward] |= dict.fromkeys(tangents, "incoming gradient")
    for item in pair.selected.stored:
        activation = item.judged.activation
        found[False][activation.name] = activation.op
    return found


def _module_of(joint: JointGraph, node: fx.Node) -> str:
    return joint.modules.get(origin_of(node) or "", "")
