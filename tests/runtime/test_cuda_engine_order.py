"""The CUDA engine on fake streams: right under every order of execution that its events allow."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from offload_runtime.errors import RefusedError, RunError
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.cuda_engine import CudaEngine

from .conftest import RegisterTransfer
from .streams import SCHEDULES, Device, Stream

HERE = torch.device("cpu", 0)


@pytest.fixture(params=SCHEDULES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device(request.param)
    device.install(monkeypatch)
    return device


@pytest.fixture
def cuda(device: Device) -> CudaEngine:
    return CudaEngine(HERE, HostArena())


def produced(stream: Stream, value: float, size: int = 64) -> torch.Tensor:
    """Return a tensor that is garbage until the stream has computed it."""
    tensor = torch.full((size,), float("nan"))
    stream.enqueue(lambda: tensor.fill_(value))
    return tensor


def read_later(stream: Stream, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Enqueue a read; the memory is then reused, as the allocator may do from there on."""
    seen: list[torch.Tensor] = []
    stream.enqueue(lambda: seen.append(tensor.clone()))
    stream.enqueue(lambda: tensor.fill_(float("nan")))
    return lambda: seen[0]


def offload(engine: CudaEngine, stream: Stream, value: float, key: int) -> torch.Tensor:
    """Produce, offload, wait, and let the source's memory be overwritten."""
    src = produced(stream, value)
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    stream.enqueue(lambda: src.fill_(-1))
    return host


def reload(engine: CudaEngine, stream: Stream, host: torch.Tensor, key: int) -> Callable[[], torch.Tensor]:
    dev = engine.h2d_start(host, HERE, key)
    return read_later(stream, engine.h2d_wait(dev, host, key))


def is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def test_a_round_trip_is_exact(device: Device, cuda: CudaEngine, register: RegisterTransfer) -> None:
    key = register()
    host = offload(cuda, device.compute, 3, key)
    back = reload(cuda, device.compute, host, key)
    device.run()
    assert is_all(back(), 3)


def test_the_harness_shows_a_source_that_is_released_without_a_wait(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    """Without this the other tests would prove nothing: some schedule must see the race."""
    key = register()
    src = produced(device.compute, 3)
    host = cuda.d2h_start(src, key)
    device.compute.enqueue(lambda: src.fill_(-1))
    device.run()
    if device.schedule in ("compute last", "d2h last"):
        assert is_all(host, 3) is (device.schedule == "compute last")


def test_a_reload_waits_for_its_own_offload(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register()
    src = produced(device.compute, 5)
    host = cuda.d2h_start(src, key)
    dev = cuda.h2d_start(host, HERE, key)
    cuda.d2h_wait(host, src, key)
    device.compute.enqueue(lambda: src.fill_(-1))
    back = read_later(device.compute, cuda.h2d_wait(dev, host, key))
    device.run()
    assert is_all(back(), 5)


def test_one_buffer_serves_many_tensors(device: Device, cuda: CudaEngine, register: RegisterTransfer) -> None:
    """The host runs ahead: a slot is taken again while the copies of its last user are still queued."""
    cuda.arena.reserve([256], why="one buffer")
    backs = []
    for value in range(12):
        key = register(f"t{value}")
        host = offload(cuda, device.compute, value, key)
        backs.append(reload(cuda, device.compute, host, key))
        del host
    device.run()
    assert [is_all(back(), value) for value, back in enumerate(backs)] == [True] * 12
    assert cuda.arena.snapshot().num_slabs == 1


def test_memory_joined_from_several_buffers_waits_for_all_of_them(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    cuda.arena.reserve([512, 512], why="two buffers")
    key, backs, other = register(), [], Stream(device, "other compute")
    hosts = [offload(cuda, device.compute, value, key) for value in (1, 2)]
    while hosts:
        backs.append(reload(cuda, device.compute, hosts.pop(0), key))
    large = torch.full((256,), 9.0)
    with device.stream(other):
        host = cuda.d2h_wait(cuda.d2h_start(large, key), large, key)
    device.run()
    assert [is_all(back(), value) for value, back in zip((1, 2), backs, strict=True)] == [True, True]
    assert is_all(host, 9)
    assert cuda.arena.snapshot().num_slabs == 1


def test_a_buffer_passes_from_one_compute_stream_to_an_unrelated_one(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    """Nothing orders the two streams but the fence that the slot carries."""
    cuda.arena.reserve([256], why="one buffer")
    key, other = register(), Stream(device, "other compute")
    host = offload(cuda, device.compute, 1, key)
    back = reload(cuda, device.compute, host, key)
    del host
    with device.stream(other):
        host = offload(cuda, other, 2, key)
        back_of_other = reload(cuda, other, host, key)
    device.run()
    assert is_all(back(), 1)
    assert is_all(back_of_other(), 2)
    assert cuda.arena.snapshot().num_slabs == 1


def test_the_stream_of_the_moment_is_the_one_that_waits(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register()
    host = offload(cuda, device.compute, 1, key)
    other = Stream(device, "other compute")
    with device.stream(other):
        other.wait_stream(device.compute)
        host_of_other = offload(cuda, other, 2, key)
        backs = [reload(cuda, other, host_of_other, key), reload(cuda, other, host, key)]
    assert device.current is device.compute
    device.run()
    assert [is_all(back(), value) for back, value in zip(backs, (2, 1), strict=True)] == [True, True]


def test_the_current_stream_is_restored_when_a_copy_fails(
    device: Device, cuda: CudaEngine, register: RegisterTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(to: torch.Tensor, from_: torch.Tensor) -> None:
        raise RuntimeError("injected fault")

    monkeypatch.setattr("offload_runtime.runtime.cuda_engine.enqueue_copy", fail)
    with pytest.raises(RuntimeError, match="injected fault"):
        cuda.d2h_start(torch.zeros(4), register())
    assert device.current is device.compute
    gc.collect()
    assert cuda.arena.snapshot().in_use_bytes == 0


def test_a_host_buffer_may_be_reloaded_twice(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register()
    host = offload(cuda, device.compute, 4, key)
    backs = [reload(cuda, device.compute, host, key) for _ in range(2)]
    device.run()
    assert [is_all(back(), 4) for back in backs] == [True, True]


def test_device_memory_of_an_abandoned_reload_is_held_until_its_copy_is_ordered(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    """The copy would otherwise land in memory that the allocator has given to somebody else."""
    key = register()
    host = offload(cuda, device.compute, 6, key)
    dev = cuda.h2d_start(host, HERE, key)
    memory = dev.view_as(dev)
    del dev, host
    cuda.drain()
    device.compute.enqueue(lambda: memory.fill_(8))
    device.run()
    assert is_all(memory, 8)
    assert cuda.snapshot().num_abandoned == 1
    assert cuda.arena.snapshot().in_use_bytes == 0


def test_the_source_of_an_abandoned_offload_is_held_until_its_copy_is_ordered(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    copied: list[torch.Tensor] = []
    src = produced(device.compute, 7)
    cuda.d2h_start(src, register())
    cuda.copy_stream("d2h").enqueue(lambda: copied.append(src.clone()))
    device.compute.enqueue(lambda: src.fill_(-1))
    assert [kind for kind, _ in device.compute.queue].count("wait") == 1
    device.run()
    assert len(copied) == 1
    assert cuda.snapshot().num_abandoned == 1


def test_during_capture_nothing_runs_and_dead_buffers_wait(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key, src = register("layers.0.mm"), torch.zeros(4)
    host = cuda.d2h_wait(cuda.d2h_start(src, key), src, key)
    dev = cuda.h2d_start(host, HERE, key)
    device.capturing = True
    with pytest.raises(RefusedError, match=r"'layers\.0\.mm' .*CUDA graph") as refusal:
        cuda.d2h_start(src, key)
    assert refusal.value.diagnostics[0].code == "RUN504"
    with pytest.raises(RefusedError, match="CUDA graph"):
        cuda.h2d_start(host, HERE, key)
    with pytest.raises(RefusedError, match="CUDA graph"):
        cuda.h2d_wait(dev, host, key)
    del host, dev
    gc.collect()
    assert cuda.arena.snapshot().in_use_bytes == 512
    device.capturing = False
    assert cuda.arena.snapshot().in_use_bytes == 0


def test_a_broken_order_is_named(device: Device, cuda: CudaEngine, register: RegisterTransfer) -> None:
    key, src = register("layers.0.mm"), torch.zeros(4)
    host = cuda.d2h_wait(cuda.d2h_start(src, key), src, key)
    with pytest.raises(RunError, match="waited for twice"):
        cuda.d2h_wait(host, src, key)
    with pytest.raises(RunError, match="not in flight"):
        cuda.h2d_wait(torch.zeros(4), host, key)
    with pytest.raises(RunError, match="left cpu:0 but is to be reloaded to meta"):
        cuda.h2d_start(host, torch.device("meta"), key)


def test_tensors_of_no_bytes_pass_without_a_copy(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    keys = register("a"), register("b")
    sources = torch.zeros(0, 3), torch.zeros(2, 0)
    hosts = [cuda.d2h_wait(cuda.d2h_start(s, k), s, k) for s, k in zip(sources, keys, strict=True)]
    devs = [cuda.h2d_start(host, HERE, key) for host, key in zip(hosts, keys, strict=True)]
    for dev, host, key, src in zip(devs, hosts, keys, sources, strict=True):
        assert cuda.h2d_wait(dev, host, key).shape == src.shape
    assert [stream.name for stream in device.streams] == ["compute"]


def test_times_are_taken_only_while_profiling(
    device: Device, cuda: CudaEngine, register: RegisterTransfer
) -> None:
    key = register("a", 256)
    reload(cuda, device.compute, offload(cuda, device.compute, 1, key), key)
    assert cuda.snapshot().copy_ms is None
    cuda.set_profiling(True)
    reload(cuda, device.compute, offload(cuda, device.compute, 1, key), key)
    cuda.set_profiling(False)
    (row,) = cuda.snapshot().transfers
    assert row.d2h_ms is not None
    assert row.h2d_ms is not None
    assert row.stall_ms is not None
    assert min(row.d2h_ms, row.h2d_ms, row.stall_ms) > 0
    assert (row.num_d2h_copies, row.d2h_bytes) == (2, 512)
    cuda.reset()
    assert cuda.snapshot().transfers == ()
