"""The arena: planned before the first step, flat afterwards, and freed by the death of storages alone."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from offload_runtime.errors import RefusedError, RunError
from offload_runtime.runtime.arena import ALIGNMENT_BYTES, HostArena, round_to_alignment
from offload_runtime.runtime.host_memory import HostMemory
from offload_runtime.runtime.slot import Slot, slot_of

GIB = 1 << 30
MIB = 1 << 20


class CountingPinner:
    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.live: dict[int, int] = {}
        self.num_pins = 0

    def pin(self, address: int, num_bytes: int) -> None:
        if self.refuses:
            raise RuntimeError("cudaHostRegister: operation not permitted")
        self.num_pins += 1
        self.live[address] = num_bytes

    def unpin(self, address: int) -> None:
        del self.live[address]


def host(arena: HostArena, num_bytes: int) -> torch.Tensor:
    return arena.host_buffer(num_bytes, (num_bytes,), (1,), torch.uint8)[1]


def small_host(free_bytes: int) -> HostMemory:
    return HostMemory(total_bytes=GIB, available_bytes=free_bytes)


@pytest.mark.parametrize(("asked", "given"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_buffers_are_rounded_to_the_alignment(asked: int, given: int) -> None:
    assert round_to_alignment(asked) == given


def test_what_was_reserved_needs_no_growth_in_any_order() -> None:
    sizes = [5 * MIB, 3 * MIB + 7, 1000, 1000, 2 * MIB]
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner)
    arena.reserve(sizes, why="graph 0")
    for order in (sizes, sizes[::-1], sorted(sizes)):
        buffers = [host(arena, size) for size in order]
        assert arena.snapshot().in_use_bytes == sum(map(round_to_alignment, sizes))
        del buffers
    assert pinner.num_pins == arena.snapshot().num_pins == 1
    assert arena.snapshot().in_use_bytes == 0


def test_rounding_wastes_less_than_five_percent() -> None:
    sizes = [64 * 1024 + 2 * i for i in range(300)]
    arena = HostArena()
    arena.reserve(sizes, why="graph 0")
    buffers = [host(arena, size) for size in sizes]
    snapshot = arena.snapshot()
    assert snapshot.requested_bytes_peak == sum(sizes)
    assert 0 < snapshot.waste_bytes <= 0.05 * snapshot.reserved_bytes
    assert snapshot.waste_bytes == snapshot.reserved_bytes - sum(sizes)
    del buffers


def test_graphs_reserve_side_by_side_and_variants_of_one_graph_share() -> None:
    arena = HostArena()
    arena.reserve([4 * MIB], why="graph 0", group="frame 0")
    arena.reserve([4 * MIB], why="graph 1", group="frame 1")
    assert arena.reserved_bytes == 8 * MIB
    arena.reserve([3 * MIB], why="graph 0, batch 3", group="frame 0")
    assert arena.reserved_bytes == 8 * MIB
    arena.reserve([7 * MIB], why="graph 0, batch 7", group="frame 0")
    assert arena.reserved_bytes == 11 * MIB


def test_a_cancelled_reservation_leaves_its_memory_to_the_next() -> None:
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner)
    for _ in range(10):
        arena.cancel(arena.reserve([4 * MIB, 4 * MIB], why="graph 0"))
    assert (arena.reserved_bytes, pinner.num_pins) == (8 * MIB, 1)


def test_trim_returns_free_slabs_that_nobody_plans_for() -> None:
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner)
    kept = arena.reserve([4 * MIB], why="graph 0")
    gone = arena.reserve([2 * MIB], why="graph 1")
    in_use = host(arena, 4 * MIB)
    arena.cancel(gone)
    assert arena.trim() == 2 * MIB
    arena.cancel(kept)
    assert arena.trim() == 0
    del in_use
    assert arena.trim() == 4 * MIB
    gc.collect()
    assert pinner.live == {}
    assert arena.snapshot().num_slabs == 0


def test_trim_waits_for_copies_that_still_touch_the_slab() -> None:
    waited: list[int] = []

    @dataclass(frozen=True)
    class Fence:
        lane: str = "h2d"
        sequence: int = 3

        def synchronize(self) -> None:
            waited.append(self.sequence)

    arena = HostArena()
    slot, buffer = arena.host_buffer(MIB, (MIB,), (1,), torch.uint8)
    slot.add_fence(Fence())
    del buffer
    assert arena.trim() == MIB
    assert waited == [3]


def test_thousands_of_steps_neither_grow_nor_pin() -> None:
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner)
    sizes = [1000 * (1 + i % 7) for i in range(24)]
    arena.reserve(sizes, why="graph 0")
    before = arena.snapshot()
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        order = torch.randperm(len(sizes), generator=generator).tolist()
        buffers = {i: host(arena, sizes[i]) for i in order}
        for i in torch.randperm(len(sizes), generator=generator).tolist():
            del buffers[i]
    after = arena.snapshot()
    assert (after.reserved_bytes, after.num_pins, after.in_use_bytes) == (before.reserved_bytes, 1, 0)


def test_more_forwards_in_flight_than_planned_grow_once() -> None:
    arena = HostArena()
    sizes = [64 * 1024, 128 * 1024, 32 * 1024]
    arena.reserve(sizes, why="graph 0")
    sizes_reserved = arena.reserved_bytes
    reserved = []
    for _ in range(50):
        two_forwards = [host(arena, size) for size in sizes * 2]
        reserved.append(arena.reserved_bytes)
        two_forwards.clear()
    assert reserved[0] > sizes_reserved
    assert set(reserved) == {reserved[0]}


def test_changing_batch_sizes_settle_below_twice_the_largest() -> None:
    arena = HostArena()
    reserved = []
    for batch in [4, 7, 1] * 30:
        buffers = [host(arena, batch * size) for size in (40_000, 8_000, 40_000, 16_000)]
        reserved.append(arena.reserved_bytes)
        buffers.clear()
    assert set(reserved[30:]) == {reserved[30]}
    assert reserved[-1] <= 2 * 7 * 104_000


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_a_host_buffer_has_the_sizes_strides_and_dtype_asked_for(dtype: torch.dtype) -> None:
    slot, buffer = HostArena().host_buffer(6 * dtype.itemsize, (2, 3), (1, 2), dtype)
    assert (buffer.shape, buffer.stride(), buffer.dtype) == ((2, 3), (1, 2), dtype)
    assert buffer.data_ptr() == slot.address
    assert slot.address % ALIGNMENT_BYTES == 0
    assert slot_of(buffer) is slot


def test_buffers_of_no_bytes_are_told_apart() -> None:
    arena = HostArena()
    first, second = host(arena, 0), host(arena, 0)
    assert slot_of(first) is not slot_of(second)
    assert slot_of(first) is not None


def test_a_default_device_does_not_reach_the_arena() -> None:
    with torch.device("meta"):
        assert host(HostArena(), 16).device.type == "cpu"


def test_a_tensor_from_elsewhere_has_no_slot() -> None:
    assert slot_of(torch.zeros(3)) is None


def test_the_slot_lives_as_long_as_the_storage_and_not_as_the_tensor() -> None:
    arena = HostArena()
    buffer = host(arena, 1000)
    slot = slot_of(buffer)
    alias = buffer.detach().view(10, 100)
    del buffer
    assert slot_of(alias) is slot
    assert arena.snapshot().in_use_bytes == 1024
    del alias
    assert arena.snapshot().in_use_bytes == 0


def test_the_arena_lives_as_long_as_its_buffers() -> None:
    pinner = CountingPinner()
    arena: HostArena | None = HostArena(pinner=pinner)
    assert arena is not None
    buffer = host(arena, 1000).fill_(7)
    arena = None
    gc.collect()
    assert pinner.live
    assert buffer.sum() == 7000
    del buffer
    gc.collect()
    assert pinner.live == {}


def test_too_little_host_memory_is_refused_before_the_first_step() -> None:
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner, host_memory=lambda: small_host(10 * MIB))
    with pytest.raises(RefusedError) as refusal:
        arena.reserve([6 * MIB, 6 * MIB], why="graph 0 of policy 'balanced'", host_limit_bytes=GIB)
    assert refusal.value.diagnostics[0].code == "RUN505"
    assert "graph 0 of policy 'balanced' needs 12 MiB" in str(refusal.value)
    assert (pinner.num_pins, arena.reserved_bytes) == (0, 0)
    arena.reserve([6 * MIB], why="a smaller graph")


def test_rounding_counts_when_memory_is_forecast() -> None:
    arena = HostArena(host_memory=lambda: small_host(GIB))
    exact = 1000 * ALIGNMENT_BYTES
    with pytest.raises(RefusedError, match="rounding included"):
        arena.reserve([ALIGNMENT_BYTES - 1] * 1001, why="graph 0", host_limit_bytes=exact)


def test_a_limit_holds_for_its_own_policy_where_another_made_room() -> None:
    arena = HostArena(host_memory=lambda: small_host(GIB))
    arena.reserve([4 * MIB], why="a generous policy", owner="generous")
    arena.reserve([MIB], why="graph 0", host_limit_bytes=MIB, owner="strict")
    with pytest.raises(RefusedError, match=r"limits\.host is 1 MiB"):
        arena.reserve([MIB], why="graph 1", host_limit_bytes=MIB, owner="strict")
    arena.reserve([16 * MIB], why="the generous policy again", owner="generous")


def test_pages_that_cannot_be_pinned_are_refused_with_the_drivers_reason() -> None:
    arena = HostArena(pinner=CountingPinner(refuses=True))
    with pytest.raises(RefusedError) as refusal:
        arena.reserve([MIB], why="graph 0")
    assert refusal.value.diagnostics[0].code == "RUN507"
    assert "operation not permitted" in str(refusal.value)
    assert "ulimit -l" in str(refusal.value)


def test_growth_beyond_the_host_is_an_error_that_leaves_the_arena_usable() -> None:
    arena = HostArena(host_memory=lambda: small_host(GIB))
    arena.reserve([MIB], why="graph 0", host_limit_bytes=MIB)
    buffer = host(arena, MIB)
    with pytest.raises(RunError) as error:
        host(arena, MIB)
    assert error.value.diagnostics[0].code == "RUN506"
    assert "run fewer forwards before their backward" in str(error.value)
    del buffer, error
    gc.collect()
    host(arena, MIB)


def test_a_release_may_be_postponed_and_is_asked_again() -> None:
    answers = iter([False, False, True])
    arena = HostArena()
    slot, buffer = arena.host_buffer(100, (100,), (1,), torch.uint8)
    slot.on_release = lambda _: next(answers)
    del buffer
    assert arena.snapshot().in_use_bytes == 512
    assert arena.snapshot().in_use_bytes == 0


def test_storages_may_die_while_the_arena_is_locked() -> None:
    """A collection inside the arena's own critical section must neither block nor lose the slot."""
    arena = HostArena()
    doomed = host(arena, 100)

    def let_another_die(_: Slot) -> bool:
        nonlocal doomed
        doomed = None  # type: ignore[assignment]  # the point of the test
        return True

    slot, buffer = arena.host_buffer(200, (200,), (1,), torch.uint8)
    slot.on_release = let_another_die
    del buffer
    assert arena.snapshot().in_use_bytes == 0


def test_a_storage_that_dies_during_a_refusal_is_taken_back() -> None:
    """The reader of host memory runs under the arena's lock, just as a collection might."""
    doomed: list[torch.Tensor] = []
    on_release: list[int] = []

    def read() -> HostMemory:
        doomed.clear()
        return small_host(MIB)

    arena = HostArena(host_memory=read)
    slot, buffer = arena.host_buffer(100, (100,), (1,), torch.uint8)
    slot.on_release = lambda dead: on_release.append(dead.num_bytes) or True
    doomed.append(buffer)
    del buffer
    with pytest.raises(RefusedError):
        arena.reserve([10 * MIB], why="graph 0")
    assert on_release == [100]


def test_cycles_are_freed_by_the_collector() -> None:
    arena = HostArena()

    class Node:
        pass

    node = Node()
    node.me = node  # type: ignore[attr-defined]  # a cycle
    node.buffer = host(arena, 100)  # type: ignore[attr-defined]  # held by the cycle
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
    assert arena.snapshot().in_use_bytes == 0


def test_many_threads_share_one_arena() -> None:
    arena = HostArena()
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(150):
            sizes = torch.randint(1, 5000, (6,), generator=generator).tolist()
            buffers = [host(arena, size).fill_(seed) for size in sizes]
            if any(bool((buffer != seed).any()) for buffer in buffers):
                failures.append(f"thread {seed} read another's bytes")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert arena.snapshot().in_use_bytes == 0


def test_a_forked_child_leaves_the_parents_arena_alone() -> None:
    pinner = CountingPinner()
    arena: HostArena | None = HostArena(pinner=pinner)
    assert arena is not None
    buffer: torch.Tensor | None = host(arena, 1000)
    child = os.fork()
    if child == 0:
        buffer = None
        arena = None
        gc.collect()
        os._exit(0 if len(pinner.live) == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert arena.snapshot().in_use_bytes == 1024
    assert buffer is not None


@pytest.mark.parametrize(
    "keep", ["buffer = b", "import builtins; builtins.kept = b", "cycle = [b]; cycle.append(cycle)"]
)
def test_a_process_may_end_with_live_buffers(keep: str) -> None:
    code = f"""
import torch
from offload_runtime.runtime.arena import HostArena
arena = HostArena()
b = arena.host_buffer(64, (64,), (1,), torch.uint8)[1]
{keep}
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_slot_bytes_are_the_memory_of_the_buffer() -> None:
    slot, buffer = HostArena().host_buffer(5, (5,), (1,), torch.uint8)
    ctypes.memset(slot.address, 9, 5)
    assert slot.bytes().tolist() == buffer.tolist() == [9] * 5
