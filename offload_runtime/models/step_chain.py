"""Several graphs that make up one training step, joined into one step: forward in order, backward in reverse.

    forward 0, forward 1, ..., forward n, backward n, ..., backward 1, backward 0

A graph break cuts a model into such graphs, each planned by itself. What a graph keeps for its backward stays on the
device while later graphs run, and so do the gradients of later graphs while it runs backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from offload_runtime.compiler import Fate
from offload_runtime.step import Copy, Item, Region, Simulation, StepTrace

T = TypeVar("T")

__all__ = ["ChainLink", "KernelPlace", "chain_steps", "place_of_kernel"]


@dataclass(frozen=True, eq=False)
class ChainLink:
    """One graph's step, the fates of its items, and how it runs alone."""

    trace: StepTrace
    fates: tuple[Fate, ...]
    simulation: Simulation

    @property
    def num_backward(self) -> int:
        """Number of backward kernels."""
        return len(self.trace.kernels) - self.trace.num_forward

    @property
    def kept_sizes(self) -> tuple[int, ...]:
        """Device bytes of each storage that is alive between its forward and its backward, beside what is resident."""
        forward = self.trace.num_forward
        items = zip(self.trace.items, self.fates, strict=True)
        return (
            *(r.num_bytes for r in self.trace.regions if r.first < forward <= r.last),
            *(
                i.num_bytes
                for i, fate in items
                if fate == "save" and i.created < forward <= i.last_backward_use
            ),
        )

    @property
    def left_sizes(self) -> tuple[int, ...]:
        """Device bytes of each storage that its backward leaves behind: gradients."""
        return tuple(region.num_bytes for region in self.trace.regions if region.is_gradient)

    @property
    def kept_host_bytes(self) -> int:
        """Host bytes that are alive between its forward and its backward."""
        forward = self.trace.num_forward
        return self.simulation.host_bytes[forward - 1] if forward else 0

    @property
    def forward_ms(self) -> float:
        """When its last forward kernel ends."""
        forward = self.trace.num_forward
        return self.simulation.ends_ms[forward - 1] if forward else 0.0


@dataclass(frozen=True)
class KernelPlace:
    """A kernel of a chain: which graph it belongs to, and its position there."""

    graph: int
    kernel: int


def place_of_kernel(links: Sequence[ChainLink], kernel: int) -> KernelPlace:
    """Return the graph that kernel number ``kernel`` of the chain belongs to; IndexError where there is none."""
    rest = kernel
    for graph, link in enumerate(links):
        if rest < link.trace.num_forward:
            return KernelPlace(graph, rest)
        rest -= link.trace.num_forward
    for graph, link in reversed(list(enumerate(links))):
        if rest < link.num_backward:
            return KernelPlace(graph, link.trace.num_forward + rest)
        rest -= link.num_backward
    raise IndexError(kernel)


def chain_steps(links: Sequence[ChainLink], *, resident_bytes: int) -> tuple[StepTrace, Simulation]:
    """Join the steps of ``links``; with one link they are its own.

    ``resident_bytes`` is what the whole step holds throughout: a graph's own figure counts what earlier graphs hand
    it among its inputs. Raises ValueError without links.
    """
    if not links:
        raise ValueError("a step has at least one graph")
    if len(links) == 1:
        return links[0].trace, links[0].simulation
    placed = _places(links)
    parts = [_Part(link, place, links, resident_bytes) for link, place in zip(links, placed, strict=True)]
    order = [(part, True) for part in parts] + [(part, False) for part in reversed(parts)]
    trace = StepTrace(
        kernels=tuple(kernel for part, side in order for kernel in part.side(part.link.trace.kernels, side)),
        num_forward=sum(link.trace.num_forward for link in links),
        resident_bytes=resident_bytes,
        regions=tuple(region for part in parts for region in part.regions()),
        items=tuple(item for part in parts for item in part.items()),
    )
    simulation = Simulation(
        starts_ms=tuple(
            ms for part, side in order for ms in part.times(part.link.simulation.starts_ms, side)
        ),
        ends_ms=tuple(ms for part, side in order for ms in part.times(part.link.simulation.ends_ms, side)),
        copies=tuple(copy for part in parts for copy in part.copies()),
        device_bytes=tuple(num for part, side in order for num in part.device_bytes(side)),
        host_bytes=tuple(num for part, side in order for num in part.host_bytes(side)),
    )
    return trace, simulation


@dataclass(frozen=True)
class _Place:
    """Where one graph stands in the chain: its kernels' positions and times, shifted by these."""

    index: int
    forward_at: int
    backward_at: int
    forward_ms: float
    backward_ms: float


def _places(links: Sequence[ChainLink]) -> list[_Place]:
    num_kernels, now_ms = 0, 0.0
    forward = []
    for link in links:
        forward.append((num_kernels, now_ms))
        num_kernels += link.trace.num_forward
        now_ms += link.forward_ms
    backward: list[tuple[int, float]] = []
    for link in reversed(links):
        backward.insert(0, (num_kernels, now_ms))
        num_kernels += link.num_backward
        now_ms += link.simulation.step_ms - link.forward_ms
    return [
        _Place(index, first[0], second[0], first[1], second[1])
        for index, (first, second) in enumerate(zip(forward, backward, strict=True))
    ]


class _Part:
    """One graph of a chain, in the chain's positions, times and bytes."""

    def __init__(
        self, link: ChainLink, place: _Place, links: Sequence[ChainLink], resident_bytes: int
    ) -> None:
        self.link = link
        self.place = place
        earlier, later = links[: place.index], links[place.index + 1 :]
        self.beside = (
            resident_bytes - link.trace.resident_bytes + sum(sum(other.kept_sizes) for other in earlier)
        )
        self.gradients = sum(sum(other.left_sizes) for other in later)
        self.host_beside = sum(other.kept_host_bytes for other in earlier)
        self.last = sum(len(other.trace.kernels) for other in links) - 1

    def side(self, values: Sequence[T], forward: bool) -> Sequence[T]:
        """Return the part of ``values`` (one for each kernel) that belongs to one side."""
        at = self.link.trace.num_forward
        return values[:at] if forward else values[at:]

    def times(self, values: Sequence[float], forward: bool) -> list[float]:
        return [ms + self._shift_ms(forward) for ms in self.side(values, forward)]

    def device_bytes(self, forward: bool) -> list[int]:
        more = self.beside + (0 if forward else self.gradients)
        return [num + more for num in self.side(self.link.simulation.device_bytes, forward)]

    def host_bytes(self, forward: bool) -> list[int]:
        return [num + self.host_beside for num in self.side(self.link.simulation.host_bytes, forward)]

    def copies(self) -> list[Copy]:
        return [
            replace(copy, start_ms=copy.start_ms + shift_ms, end_ms=copy.end_ms + shift_ms)
            for copy in self.link.simulation.copies
            for shift_ms in (self._shift_ms(copy.direction == "d2h"),)
        ]

    def regions(self) -> list[Region]:
        """Return what is not up for decision; what lasts to the graph's end lasts to that of the chain."""
        trace = self.link.trace
        own_last = len(trace.kernels) - 1
        return [
            replace(
                region,
                first=self._position(region.first),
                # What dies in the last kernel of backward, as a temporary does, lasts no longer.
                last=self.last
                if region.is_gradient or (region.first < trace.num_forward and region.last == own_last)
                else self._position(region.last),
            )
            for region in trace.regions
        ]

    def items(self) -> list[Item]:
        return [
            replace(
                item,
                created=self._position(item.created),
                ready=self._position(item.ready),
                last_forward_use=self._position(item.last_forward_use),
                first_backward_use=self._position(item.first_backward_use),
                last_backward_use=self._position(item.last_backward_use),
                recompute=None,
            )
            for item in self.link.trace.items
        ]

    def _shift_ms(self, forward: bool) -> float:
        place = self.place
        return place.forward_ms if forward else place.backward_ms - self.link.forward_ms

    def _position(self, kernel: int) -> int:
        forward = self.link.trace.num_forward
        place = self.place
        return place.forward_at + kernel if kernel < forward else place.backward_at + kernel - forward
