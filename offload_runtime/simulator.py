"""Device memory over one forward-backward, by storage: who is alive when, and where the peak sits.

Works on tapes (what each operation allocates and frees), which the graph layer records; holds no graph and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Allocation", "MemoryPeak", "Tape", "peak_memory"]


@dataclass(frozen=True)
class Allocation:
    """A device storage of ``num_bytes`` that lives from operation ``first`` to operation ``last``, both included."""

    name: str
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Tape:
    """One partitioned graph pair as allocations.

    Positions count forward operations first, then backward operations; ``num_forward`` tells where backward begins.
    ``resident_bytes`` (parameters, buffers, inputs) are alive throughout.
    """

    num_forward: int
    num_backward: int
    resident_bytes: int
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True)
class MemoryPeak:
    """The peak of device memory, in bytes, and the side and position of the operation that reaches it."""

    num_bytes: int
    side: str
    position: int
    graph: int


def peak_memory(tapes: Sequence[Tape]) -> MemoryPeak:
    """Return the peak over graphs that run forward in order and backward in reverse order.

    What one graph keeps for its backward stays alive while the later graphs run. Parameters of different
    graphs are counted in each tape's ``resident_bytes`` and add up.
    """
    resident = sum(tape.resident_bytes for tape in tapes)
    peak = MemoryPeak(resident, "forward", 0, 0)
    held = 0
    for index, tape in enumerate(tapes):
        curve = _curve(tape)
        for position, num_bytes in enumerate(curve):
            total = resident + held + num_bytes
            if total > peak.num_bytes:
                forward = position < tape.num_forward
                peak = MemoryPeak(
                    total,
                    "forward" if forward else "backward",
                    position if forward else position - tape.num_forward,
                    index,
                )
        held += _held_between(tape)
    return peak


def _curve(tape: Tape) -> list[int]:
    steps = [0] * (tape.num_forward + tape.num_backward + 1)
    for allocation in tape.allocations:
        steps[allocation.first] += allocation.num_bytes
        steps[allocation.last + 1] -= allocation.num_bytes
    total = 0
    curve = []
    for step in steps[:-1]:
        total += step
        curve.append(total)
    return curve


def _held_between(tape: Tape) -> int:
    return sum(a.num_bytes for a in tape.allocations if a.first < tape.num_forward <= a.last)
