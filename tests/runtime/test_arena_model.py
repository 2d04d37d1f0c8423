"""The arena against a model: whatever comes and goes, no two live buffers share a byte."""

from __future__ import annotations

import pytest
import torch

from offload_runtime.runtime.arena import HostArena, Reservation, round_to_alignment
from offload_runtime.runtime.slot import slot_of

pytest.importorskip("hypothesis")
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule


class ArenaModel(RuleBasedStateMachine):
    """Every buffer carries a number of its own in all its bytes."""

    buffers = Bundle("buffers")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.arena = HostArena()
        self.live: dict[int, torch.Tensor] = {}
        self.next_number = 0
        self.peak_bytes = 0

    @rule(target=buffers, num_bytes=st.integers(0, 6000))
    def allocate(self, num_bytes: int) -> int:
        number = self.next_number
        self.next_number += 1
        buffer = self.arena.host_buffer(num_bytes, (num_bytes,), (1,), torch.uint8)[1]
        self.live[number] = buffer.fill_(number % 251)
        self.peak_bytes = max(self.peak_bytes, sum(t.numel() for t in self.live.values()))
        return number

    @rule(number=consumes(buffers))
    def drop(self, number: int) -> None:
        del self.live[number]

    @rule(
        target=reservations,
        sizes=st.lists(st.integers(0, 6000), max_size=5),
        group=st.sampled_from([None, "a", "b"]),
    )
    def reserve(self, sizes: list[int], group: str | None) -> Reservation:
        return self.arena.reserve(sizes, why="graph", group=group)

    @rule(reservation=consumes(reservations))
    def cancel(self, reservation: Reservation) -> None:
        self.arena.cancel(reservation)

    @rule()
    def trim(self) -> None:
        self.arena.trim()

    @invariant()
    def nobody_wrote_into_anybody_elses_buffer(self) -> None:
        for number, buffer in self.live.items():
            assert bool((buffer == number % 251).all())
            slot = slot_of(buffer)
            assert slot is not None
            assert slot.num_bytes == buffer.numel()

    @invariant()
    def the_counters_are_those_of_the_model(self) -> None:
        snapshot = self.arena.snapshot()
        assert snapshot.in_use_bytes == sum(round_to_alignment(t.numel()) for t in self.live.values())
        assert snapshot.requested_bytes_peak == self.peak_bytes
        assert snapshot.reserved_bytes >= snapshot.in_use_bytes


ArenaModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestArenaAgainstItsModel = ArenaModel.TestCase
