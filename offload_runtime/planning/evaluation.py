"""What a choice of fates is worth: does it fit, and how long does the step take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from offload_runtime.compiler import Fate
from offload_runtime.planning.lanes import simulate_problem, step_ms
from offload_runtime.planning.lifetimes import Problem, Uses, effective_uses, host_curve, least_curve
from offload_runtime.planning.limits import Limits
from offload_runtime.planning.placement import place_problem
from offload_runtime.step import Move, Simulation

__all__ = ["Evaluator", "Plan", "Score", "permitted", "rests", "untouched"]

Score = tuple[int, float, int, int]
"""Less is better: bytes over the limits, predicted ms (rounded to a nanosecond), bytes moved, items recomputed."""


@dataclass(frozen=True)
class Plan:
    """Fates with their moves, simulated."""

    fates: tuple[Fate, ...]
    moves: tuple[Move, ...]
    simulation: Simulation
    score: Score


class Evaluator:
    """Judges choices of fates of one problem under one set of limits, and counts how many it has judged."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem = problem
        self.limits = limits
        self.num_judged = 0
        self._scores: dict[tuple[Fate, ...], Score] = {}

    def plan(self, fates: Sequence[Fate]) -> Plan:
        """Place the moves and simulate the step."""
        uses = effective_uses(self.problem, fates)
        curve = least_curve(self.problem, fates, uses)
        moves = place_problem(self.problem, fates, uses, curve, self.limits.device)
        simulation = simulate_problem(self.problem, fates, moves, uses)
        excess = self._excess(fates, uses, curve)
        return Plan(tuple(fates), moves, simulation, self._score(fates, excess, simulation.step_ms))

    def score(self, fates: Sequence[Fate]) -> Score:
        """Return the score; what does not fit is not simulated (its time counts as 0)."""
        key = tuple(fates)
        if key not in self._scores:
            self.num_judged += 1
            uses = effective_uses(self.problem, fates)
            curve = least_curve(self.problem, fates, uses)
            excess = self._excess(fates, uses, curve)
            if excess:
                self._scores[key] = (excess, 0.0, 0, 0)
            else:
                moves = place_problem(self.problem, fates, uses, curve, self.limits.device)
                self._scores[key] = self._score(fates, 0, step_ms(self.problem, fates, moves, uses))
        return self._scores[key]

    def _score(self, fates: Sequence[Fate], excess: int, taken_ms: float) -> Score:
        num_recomputed = fates.count("recompute")
        return (excess, round(taken_ms, 6), self.moved_bytes(fates), num_recomputed)

    def excess(self, fates: Sequence[Fate]) -> int:
        """Return by how many bytes the device, host and budget limits are exceeded, together; 0: it fits."""
        self.num_judged += 1
        uses = effective_uses(self.problem, fates)
        return self._excess(fates, uses, least_curve(self.problem, fates, uses))

    def moved_bytes(self, fates: Sequence[Fate]) -> int:
        """Return the bytes that cross the link in each direction."""
        return sum(compress(self.problem.moved_bytes, [fate == "offload" for fate in fates]))

    def _excess(self, fates: Sequence[Fate], uses: Uses, curve: Sequence[int]) -> int:
        limits = self.limits
        excess = 0
        if limits.device is not None:
            excess += max(0, max(curve, default=0) - limits.device)
        if limits.budget is None and limits.host is None:
            return excess
        moved_bytes = self.moved_bytes(fates)
        if limits.budget is not None:
            excess += max(0, moved_bytes - limits.budget)
        # All of it together is the most that can be on the host at once.
        if limits.host is not None and moved_bytes > limits.host:
            excess += max(0, max(host_curve(self.problem, fates, uses), default=0) - limits.host)
        return excess


def rests(fate: Fate) -> bool:
    """Tell whether an item of this fate stays on the device."""
    return fate in ("save", "skip")


def permitted(problem: Problem, index: int) -> tuple[Fate, ...]:
    """Return the permitted fates of an item in a fixed order: staying, offload, recompute."""
    return problem.choices[index]


def untouched(problem: Problem) -> tuple[Fate, ...]:
    """Return the fates that do least: everything stays that may, the rest is offloaded if it may be."""
    return tuple(permitted(problem, index)[0] for index in range(len(problem.trace.items)))
