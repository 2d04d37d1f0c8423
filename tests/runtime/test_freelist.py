"""The free list against a model: blocks never overlap, never get lost, and come back together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from offload_runtime.runtime.freelist import Block, FreeList, merge_fences

pytest.importorskip("hypothesis")
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule


@dataclass(frozen=True)
class Mark:
    lane: str
    sequence: int

    def synchronize(self) -> None:
        raise AssertionError("a free list never waits")


def test_the_fence_of_a_lane_is_its_last_one() -> None:
    old, new, other = Mark("d2h", 1), Mark("d2h", 5), Mark("h2d", 2)
    assert set(merge_fences((old, other), (new,))) == {new, other}
    assert set(merge_fences((new,), (old,))) == {new}


def test_a_block_comes_back_whole_to_the_next_request_of_its_size() -> None:
    free = FreeList()
    free.add_slab(0, 3072, carve=[2048, 1024])
    large, small = free.take(2048), free.take(1024)
    assert large == Block(0, 0, 2048)
    assert small == Block(0, 2048, 1024)
    free.give(large)
    free.give(small)
    assert free.take(1024) == small
    assert free.take(2048) == large


def test_neighbours_join_when_a_new_size_arrives_and_keep_their_fences() -> None:
    free = FreeList()
    free.add_slab(0, 2048, carve=[1024, 1024])
    first, second = free.take(1024), free.take(1024)
    assert first is not None
    assert second is not None
    free.give(Block(first.slab, first.offset, 1024, (Mark("d2h", 1), Mark("h2d", 2))))
    free.give(Block(second.slab, second.offset, 1024, (Mark("d2h", 3),)))
    whole = free.take(2048)
    assert whole is not None
    assert set(whole.fences) == {Mark("d2h", 3), Mark("h2d", 2)}


def test_both_halves_of_a_split_block_keep_its_fences() -> None:
    free = FreeList()
    free.add_slab(0, 2048)
    block = free.take(2048)
    assert block is not None
    free.give(Block(0, 0, 2048, (Mark("h2d", 7),)))
    halves = [free.take(1024), free.take(1024)]
    assert [half and half.fences for half in halves] == [(Mark("h2d", 7),)] * 2


def test_slabs_never_join_although_they_are_neighbours() -> None:
    free = FreeList()
    free.add_slab(0, 1024)
    free.add_slab(1, 1024)
    assert free.take(2048) is None
    assert free.largest_free_bytes == 1024


def test_a_slab_leaves_only_when_it_is_wholly_free() -> None:
    free = FreeList()
    free.add_slab(0, 2048)
    block = free.take(512)
    assert block is not None
    assert free.remove_slab(0, 2048) is None
    free.give(block)
    assert free.remove_slab(0, 2048) == ()
    assert free.take(512) is None


def test_carving_more_than_the_slab_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot carve 2048 bytes out of a slab of 1024"):
        FreeList().add_slab(0, 1024, carve=[1024, 1024])


class FreeListModel(RuleBasedStateMachine):
    """Drive the free list with random requests and keep a picture of every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeList()
        self.slabs: dict[int, int] = {}
        self.live: list[Block] = []
        self.num_slabs_ever = 0

    @rule(sizes=st.lists(st.integers(1, 8), max_size=4), extra=st.integers(0, 8))
    def add_slab(self, sizes: list[int], extra: int) -> None:
        if num_bytes := sum(sizes) + extra:
            self.free.add_slab(self.num_slabs_ever, num_bytes, sizes)
            self.slabs[self.num_slabs_ever] = num_bytes
            self.num_slabs_ever += 1

    @rule(num_bytes=st.integers(1, 12))
    def take(self, num_bytes: int) -> None:
        largest_gap = self.largest_gap()
        block = self.free.take(num_bytes)
        assert (block is not None) == (largest_gap >= num_bytes)
        if block is not None:
            assert block.num_bytes == num_bytes
            self.live.append(block)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        self.free.give(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @precondition(lambda self: self.slabs)
    @rule(data=st.data())
    def remove_slab(self, data: st.DataObject) -> None:
        slab = data.draw(st.sampled_from(sorted(self.slabs)))
        in_use = any(block.slab == slab for block in self.live)
        assert (self.free.remove_slab(slab, self.slabs[slab]) is None) == in_use
        if not in_use:
            del self.slabs[slab]

    def largest_gap(self) -> int:
        gaps = [0]
        for slab, num_bytes in self.slabs.items():
            end = 0
            for block in sorted((b for b in self.live if b.slab == slab), key=lambda b: b.offset):
                gaps.append(block.offset - end)
                end = block.end
            gaps.append(num_bytes - end)
        return max(gaps)

    @invariant()
    def live_blocks_are_disjoint_and_inside(self) -> None:
        ordered = sorted(self.live, key=lambda block: (block.slab, block.offset))
        for before, after in itertools.pairwise(ordered):
            assert before.slab != after.slab or before.end <= after.offset
        assert all(block.end <= self.slabs[block.slab] for block in ordered)

    @invariant()
    def no_byte_is_lost(self) -> None:
        used = sum(block.num_bytes for block in self.live)
        assert self.free.num_free_bytes == sum(self.slabs.values()) - used


FreeListModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFreeListAgainstItsModel = FreeListModel.TestCase
