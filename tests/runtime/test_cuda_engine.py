"""The CUDA engine on a CUDA device: asynchronous, exact when copies are held back, flat over many steps."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable

import pytest
import torch

from offload_runtime.errors import RefusedError
from offload_runtime.runtime import ops
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.cuda_engine import CudaEngine
from offload_runtime.runtime.cuda_host import CudaPinner, pci_address
from offload_runtime.runtime.engines import get_arena
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.slot import slot_of
from offload_runtime.runtime.transfer import get_engine, profile, use_engine

from .conftest import RegisterTransfer
from .cuda_stream import GPU, HOLD_CYCLES, hold

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB = 1 << 20
NUM_USURPERS = 16
"""Tensors enough that the caching allocator hands out again every block that was freed before."""


def offload(src: torch.Tensor, key: int) -> torch.Tensor:
    host: torch.Tensor = ops.d2h_wait(ops.d2h_start(src, [], key), src, [], key)
    return host


def reload(host: torch.Tensor, key: int) -> torch.Tensor:
    dev: torch.Tensor = ops.h2d_wait(ops.h2d_start(host, [], GPU, key), host, key)
    return dev


SOURCES: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.randn(33, 7, device=GPU),
    "bfloat16, permuted": lambda: torch.randn(4, 5, 6, device=GPU, dtype=torch.bfloat16).permute(2, 0, 1),
    "offset slice": lambda: torch.randn(9, 4, device=GPU)[4:6],
    "scalar": lambda: torch.randn((), device=GPU),
    "empty": lambda: torch.empty(0, 4, device=GPU),
    "bool": lambda: torch.randn(77, device=GPU) > 0,
    "int64": lambda: torch.randint(0, 99, (13,), device=GPU),
    "float8": lambda: torch.randn(64, device=GPU).to(torch.float8_e4m3fn),
    "complex": lambda: torch.randn(8, device=GPU, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(8, device=GPU, dtype=torch.complex64).conj(),
    "expanded": lambda: torch.randn(1, 4, device=GPU).expand(6, 4),
    "strided": lambda: torch.randn(6, 4, device=GPU)[::2],
    "64 MiB": lambda: torch.randn(16 * MIB, device=GPU),
}


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.resolve_conj().contiguous(), right.resolve_conj().contiguous()
    return torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


@pytest.mark.parametrize("name", SOURCES)
def test_any_tensor_comes_back_bit_for_bit(name: str, cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = SOURCES[name](), register()
    host = offload(src, key)
    assert host.device.type == "cpu"
    back = reload(host, key)
    assert (back.shape, back.stride(), back.dtype, back.device) == (src.shape, src.stride(), src.dtype, GPU)
    assert same_bytes(back, src)


def test_host_buffers_are_pinned(cuda: CudaEngine, register: RegisterTransfer) -> None:
    assert offload(torch.randn(100, device=GPU), register()).is_pinned()


def test_nothing_on_the_host_waits(cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = torch.randn(4 * MIB, device=GPU), register()
    reload(offload(src, key), key)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        hold(torch.cuda.current_stream())
        start = time.perf_counter()
        back = reload(offload(src, key), key)
        elapsed_s = time.perf_counter() - start
        event = torch.cuda.current_stream().record_event()
        assert not event.query(), "the host must be ahead of the device here"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert elapsed_s < 0.05
    assert torch.equal(back, src)


def test_a_reload_waits_for_its_own_offload_when_that_is_held_back(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    src, key = torch.randn(MIB, device=GPU), register()
    expected = src.clone()
    hold(cuda.copy_stream("d2h"))
    host = ops.d2h_start(src, [], key)
    dev = ops.h2d_start(host, [], GPU, key)
    ops.d2h_wait(host, src, [], key)
    src.fill_(float("nan"))
    assert torch.equal(ops.h2d_wait(dev, host, key), expected)


def test_memory_of_a_released_source_is_not_reused_before_its_copy(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register()
    for step in range(10):
        hold(cuda.copy_stream("d2h"))
        src = torch.full((MIB,), float(step), device=GPU)
        address = src.data_ptr()
        host = offload(src, key)
        del src
        usurpers = [torch.full((MIB,), float("nan"), device=GPU) for _ in range(NUM_USURPERS)]
        assert address in [usurper.data_ptr() for usurper in usurpers]
        assert bool((reload(host, key) == step).all())
        del usurpers, host


def test_a_slot_is_not_overwritten_while_a_reload_still_reads_it(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    cuda.arena.reserve([4 * MIB], why="one buffer")
    key = register()
    backs = []
    for step in range(6):
        hold(cuda.copy_stream("h2d"))
        host = offload(torch.full((MIB,), float(step), device=GPU), key)
        backs.append(reload(host, key))
        del host
    assert [bool((back == step).all()) for step, back in enumerate(backs)] == [True] * 6
    assert cuda.arena.snapshot().num_slabs == 1


def test_a_slot_passes_between_unrelated_streams(cuda: CudaEngine, register: RegisterTransfer) -> None:
    cuda.arena.reserve([4 * MIB], why="one buffer")
    key, other = register(), torch.cuda.Stream()
    sources = [torch.full((MIB,), float(i), device=GPU) for i in range(2)]
    torch.cuda.synchronize()
    hold(cuda.copy_stream("h2d"))
    host = offload(sources[0], key)
    first = reload(host, key)
    del host
    with torch.cuda.stream(other):
        host = offload(sources[1], key)
        second = reload(host, key)
    torch.cuda.synchronize()
    assert bool((first == 0).all())
    assert bool((second == 1).all())
    assert cuda.arena.snapshot().num_slabs == 1


def test_device_memory_of_an_abandoned_reload_is_not_written_later(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register()
    host = offload(torch.zeros(MIB, device=GPU), key)
    torch.cuda.synchronize()
    hold(cuda.copy_stream("h2d"))
    dev = ops.h2d_start(host, [], GPU, key)
    address = dev.data_ptr()
    del dev, host
    usurpers = [torch.ones(MIB, device=GPU) for _ in range(NUM_USURPERS)]
    assert address in [usurper.data_ptr() for usurper in usurpers]
    torch.cuda.synchronize()
    assert all(bool((usurper == 1).all()) for usurper in usurpers)
    assert cuda.snapshot().num_abandoned == 1


def test_an_abandoned_offload_frees_its_source_and_its_slot(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    before = torch.cuda.memory_allocated()
    hold(cuda.copy_stream("d2h"))
    ops.d2h_start(torch.randn(MIB, device=GPU), [], register())
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert cuda.arena.snapshot().in_use_bytes == 0


def test_the_runtime_runs_on_whatever_stream_is_current(cuda: CudaEngine, register: RegisterTransfer) -> None:
    key, stream = register(), torch.cuda.Stream()
    reload(offload(torch.randn(100, device=GPU), key), key)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(HOLD_CYCLES)
        src = torch.full((10, MIB), 3.0, device=GPU)[4]
        back = reload(offload(src, key), key)
        assert torch.cuda.current_stream() == stream
        assert bool((back == 3).all())


def test_a_host_buffer_may_be_reloaded_twice(cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = torch.randn(MIB, device=GPU), register()
    host = offload(src, key)
    for _ in range(2):
        dev = reload(host, key)
        assert torch.equal(dev, src)
        dev.zero_()


def test_capture_into_a_cuda_graph_is_refused_by_name(cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = torch.randn(16, device=GPU), register("layers.0.mm")
    offload(src, key)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            src.add(1)
            offload(src, key)

    with pytest.raises(RefusedError, match=r"'layers\.0\.mm' .*CUDA graph"):
        capture()
    assert torch.equal(reload(offload(src, key), key), src)


def test_two_hundred_steps_pin_once_and_keep_memory_flat(
    cuda: CudaEngine, register: RegisterTransfer
) -> None:
    keys = [register(f"t{i}") for i in range(8)]
    cuda.arena.reserve([4 * MIB] * 8, why="graph 0")
    allocated, reserved = set(), set()
    for step in range(200):
        hosts = [offload(torch.full((MIB,), float(step + i), device=GPU), key) for i, key in enumerate(keys)]
        for i in reversed(range(8)):
            assert step % 50 or bool((reload(hosts[i], keys[i]) == step + i).all())
        hosts.clear()
        torch.cuda.synchronize()
        allocated.add(torch.cuda.memory_allocated())
        reserved.add(cuda.arena.snapshot())
    assert len(allocated) == 1
    assert len(reserved) == 1
    assert cuda.arena.snapshot().num_pins == 1


def test_pinning_that_fails_leaves_no_error_behind() -> None:
    with pytest.raises(RuntimeError, match="cudaHostRegister: "):
        CudaPinner().pin(4096, 4096)
    assert (torch.ones(3, device=GPU) + 1).tolist() == [2, 2, 2]
    CudaPinner().unpin(4096)
    assert (torch.ones(3, device=GPU) + 1).tolist() == [2, 2, 2]


def test_unpinned_slabs_can_be_pinned_again(register: RegisterTransfer) -> None:
    arena = HostArena(pinner=CudaPinner())
    with use_engine(CudaEngine(GPU, arena)):
        for _ in range(3):
            host = offload(torch.ones(MIB, device=GPU), register())
            del host
            assert arena.trim() == 4 * MIB


def test_profiling_times_copies_and_stalls(cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = torch.randn(64 * MIB, device=GPU), register("a", 256 * MIB)
    reload(offload(src, key), key)
    with profile(cuda):
        reload(offload(src, key), key)
        (row,) = cuda.snapshot().transfers
    assert row.d2h_ms is not None
    assert row.h2d_ms is not None
    assert row.stall_ms is not None
    assert row.d2h_bytes == row.h2d_bytes == 256 * MIB
    assert 1 < row.d2h_ms < 100
    assert 1 < row.h2d_ms < 100
    hidden = cuda.snapshot().hidden_fraction
    assert hidden is not None
    assert hidden < 0.5, "nothing was computed beside these copies"


def test_a_stall_that_compute_covers_is_not_counted(cuda: CudaEngine, register: RegisterTransfer) -> None:
    src, key = torch.randn(16 * MIB, device=GPU), register("a", 64 * MIB)
    reload(offload(src, key), key)
    with profile(cuda):
        host = ops.d2h_start(src, [], key)
        torch.cuda._sleep(HOLD_CYCLES)
        ops.d2h_wait(host, src, [], key)
        dev = ops.h2d_start(host, [], GPU, key)
        torch.cuda._sleep(HOLD_CYCLES)
        ops.h2d_wait(dev, host, key)
        hidden = cuda.snapshot().hidden_fraction
    assert hidden is not None
    assert hidden > 0.9


def test_the_process_arena_is_pinned_and_says_where_it_lies() -> None:
    arena = get_arena(GPU)
    engine = get_engine(GPU)
    assert isinstance(engine, CudaEngine)
    assert engine.arena is arena
    numa = arena.snapshot().numa
    assert numa.node is not None or numa.reason
    address = pci_address(GPU)
    assert address is None or re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", address)
    print(f"\nPCI {address}; {numa}")  # noqa: T201  # what only a machine with a GPU can tell


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_the_checking_engine_is_exact_on_cuda(timing: str, register: RegisterTransfer) -> None:
    key, arena = register(), HostArena(pinner=CudaPinner())
    real = CudaEngine(GPU, arena)
    checking = SimulatedEngine(arena, timing=timing, device=GPU)  # type: ignore[arg-type]  # a str of the table
    for engine in (real, checking, real, checking):
        src = torch.randn(MIB, device=GPU)
        with use_engine(engine):
            assert torch.equal(reload(offload(src, key), key), src)
    torch.cuda.synchronize()


def test_host_buffers_live_in_the_arena_of_their_engine(cuda: CudaEngine, register: RegisterTransfer) -> None:
    host = offload(torch.ones(10, device=GPU), register())
    slot = slot_of(host)
    assert slot is not None
    assert slot.engine is cuda
    del host, slot
    assert cuda.arena.snapshot().in_use_bytes == 0
