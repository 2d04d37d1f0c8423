"""The way from what our policy offloads to what the published rule moves, filter by filter, counted.

Our candidates are storages of the partitioned graph; the rule's are values of the joint graph. A storage stands for
the values that share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from published_rule import MIN_BYTES, PublishedRule, in_layers

from offload_runtime.graph.operators import is_collective, operator_of
from offload_runtime.passes.candidates import SavedStorage
from offload_runtime.passes.pipeline import PlannedPair
from offload_runtime.passes.selection import Selected

__all__ = ["by_place", "chosen_by", "moved_bytes", "steps_to_published"]


def chosen_by(selected: Selected, names: frozenset[str]) -> list[int]:
    """Return the saved storages that hold one of the values ``names``."""
    return [
        index
        for index, item in enumerate(selected.stored)
        if any(node.name in names for node in item.judged.storage.nodes)
    ]


def moved_bytes(selected: Selected, chosen: Sequence[int]) -> int:
    """Return the bytes that one step moves out."""
    return sum(selected.candidates[index].moved_bytes for index in chosen)


def steps_to_published(planned: PlannedPair, rule: PublishedRule) -> list[dict[str, Any]]:
    """Apply the published filters to what we offload, one after the other, and count what each takes away.

    Raises AssertionError where what is left is not what the rule itself moves.
    """
    selected = planned.selected
    left = [index for index, fate in enumerate(selected.fates) if fate == "offload"]
    steps = [step(planned, "what max-savings offloads", [], left)]
    for name, passes in filters(planned, rule):
        gone = [index for index in left if not passes(selected.stored[index])]
        left = [index for index in left if index not in set(gone)]
        steps.append(step(planned, name, gone, left))
    wanted = chosen_by(selected, rule.moved)
    added = sorted(set(wanted) - set(left))
    steps.append(step(planned, "moved by the published rule and kept by ours", added, wanted))
    assert set(left) <= set(wanted), "the filters leave more than the rule moves"
    assert len(wanted) == len(rule.moved), "a value that the rule moves has no storage of its own"
    return steps


def filters(planned: PlannedPair, rule: PublishedRule) -> list[tuple[str, Callable[[SavedStorage], bool]]]:
    """Return the filters of the published rule, with the names that the page gives them."""

    def is_own(item: SavedStorage) -> bool:
        writer = item.judged.storage.writer
        return (
            writer.op == "call_function"
            and not is_collective(operator_of(writer))
            and item.judged.activation.num_bytes >= MIN_BYTES
            and in_layers(planned.joint, writer)
        )

    return [
        ("an operator's result, no collective, 4096 bytes or more, not in the last layer", is_own),
        ("contiguous", lambda item: item.judged.activation.layout == "contiguous"),
        (
            "on the published list of operators, or read by a later layer",
            lambda item: any(node.name in rule.saved for node in item.judged.storage.nodes),
        ),
        (
            "read by backward before recomputation is laid out",
            lambda item: rule.reads_before_recompute(item.judged.storage.writer),
        ),
    ]


def step(planned: PlannedPair, name: str, changed: Sequence[int], left: Sequence[int]) -> dict[str, Any]:
    """Describe one step on the way: what it took away (or added), and what is left."""
    selected = planned.selected
    return {
        "step": name,
        "num_changed": len(changed),
        "changed": by_place(
            planned, frozenset(selected.stored[i].judged.storage.writer.name for i in changed)
        ),
        "num_left": len(left),
        "left_gb": round(moved_bytes(selected, left) / 1e9, 2),
    }


def by_place(planned: PlannedPair, names: frozenset[str]) -> dict[str, int]:
    """Count values by the module that computes them (its layer left open) and their operator."""
    joint = planned.joint
    found = Counter(
        f"{place_of(joint.modules[node.name])}: {operator_of(node)}"
        for node in joint.module.graph.nodes
        if node.name in names
    )
    return dict(sorted(found.items()))


def place_of(module: str) -> str:
    """Replace the number of a layer: ``layers.3.attention.wq`` becomes ``layers.*.attention.wq``."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))
