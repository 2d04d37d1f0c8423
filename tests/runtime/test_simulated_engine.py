"""The simulated engine: exact when the graph keeps the rules, loud or visibly wrong when it does not."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
from typing import Literal

import pytest
import torch

from offload_runtime.errors import RunError
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.freelist import Fence
from offload_runtime.runtime.simulated_engine import CopyTiming, SimulatedEngine
from offload_runtime.runtime.transfer import forget_transfers, register_transfer

from .conftest import RegisterTransfer

CPU = torch.device("cpu")
TIMINGS: list[CopyTiming] = ["early", "late", "random"]


def dense(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.randint(0, 100, sizes, generator=torch.Generator().manual_seed(1))
    return numbers.to(dtype)


SOURCES = {
    "float32": dense(3, 4),
    "permuted": dense(3, 4, 5).permute(2, 0, 1),
    "offset slice": dense(9, 4)[4:6],
    "scalar": dense(),
    "empty": dense(0, 4),
    "one element": dense(1),
    "bool": dense(5).bool(),
    "int64": dense(5, dtype=torch.int64),
    "bfloat16": dense(5, 3, dtype=torch.bfloat16),
    "float8": dense(16).to(torch.float8_e4m3fn),
    "complex": torch.complex(dense(4), dense(4)),
    "conjugated": torch.complex(dense(4), dense(4)).conj(),
    "expanded": dense(1, 4).expand(6, 4),
    "strided": dense(6, 4)[::2],
}


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.resolve_conj().contiguous(), right.resolve_conj().contiguous()
    return torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


def round_trip(engine: SimulatedEngine, src: torch.Tensor, key: int) -> torch.Tensor:
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    return engine.h2d_wait(engine.h2d_start(host, CPU, key), host, key)


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("name", SOURCES)
def test_any_tensor_comes_back_bit_for_bit(name: str, timing: CopyTiming, register: RegisterTransfer) -> None:
    src = SOURCES[name]
    back = round_trip(SimulatedEngine(timing=timing), src, register())
    assert (back.shape, back.stride(), back.dtype) == (src.shape, src.stride(), src.dtype)
    assert same_bytes(back, src)


def test_two_tensors_of_no_bytes_in_flight_do_not_meet(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    first, second = torch.zeros(0, 2), torch.zeros(3, 0)
    keys = register("a"), register("b")
    hosts = [engine.d2h_start(src, key) for src, key in zip((first, second), keys, strict=True)]
    for host, src, key in zip(hosts, (first, second), keys, strict=True):
        engine.d2h_wait(host, src, key)
    devs = [engine.h2d_start(host, CPU, key) for host, key in zip(hosts, keys, strict=True)]
    for dev, host, key in zip(devs, hosts, keys, strict=True):
        assert engine.h2d_wait(dev, host, key).shape == host.shape


def test_a_buffer_read_before_its_wait_is_nan(engine: SimulatedEngine, register: RegisterTransfer) -> None:
    src, key = dense(8), register()
    host = engine.d2h_start(src, key)
    assert bool(host.isnan().all())
    engine.d2h_wait(host, src, key)
    dev = engine.h2d_start(host, CPU, key)
    assert bool(dev.isnan().all())
    assert torch.equal(engine.h2d_wait(dev, host, key), src)


def test_a_source_written_before_its_wait_shows(register: RegisterTransfer) -> None:
    """The real copy may run at any time: early and late engines disagree where a graph races."""
    results = {}
    for timing in ("early", "late"):
        engine, src, key = SimulatedEngine(timing=timing), dense(8), register()
        host = engine.d2h_start(src, key)
        src.fill_(-1)
        results[timing] = engine.d2h_wait(host, src, key).clone()
    assert not torch.equal(results["early"], results["late"])


def test_a_released_source_is_poisoned_where_asked_and_nowhere_else(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    base = torch.zeros(6, 4)
    for poison in (False, True):
        src, key = base[::2], register(poison_source=poison)
        host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
        assert bool((host[0] == 0).all())
        assert bool(base[::2].isnan().all()) is poison
        assert bool((base[1::2] == 0).all())


def test_a_dead_host_buffer_is_poisoned(engine: SimulatedEngine, register: RegisterTransfer) -> None:
    src, key = dense(8), register()
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    memory = (ctypes.c_char * 32).from_address(host.data_ptr())
    stale = torch.frombuffer(memory, dtype=torch.float32)
    assert torch.equal(stale, src)
    del host
    assert bool(stale.isnan().all())


def test_one_buffer_serves_many_tensors_and_steps_exactly(register: RegisterTransfer) -> None:
    arena = HostArena()
    arena.reserve([400], why="one buffer")
    engine = SimulatedEngine(arena, timing="random", seed=3)
    keys = [register(f"t{i}") for i in range(5)]
    for step, key in itertools.product(range(3), keys):
        src = torch.full((100,), float(step * 10 + key))
        assert torch.equal(round_trip(engine, src, key), src)
    assert arena.snapshot().num_slabs == 1


def test_one_seed_gives_one_order_and_another_seed_another() -> None:
    def orders(seed: int) -> list[str]:
        engine = SimulatedEngine(timing="random", seed=seed)
        keys = [register_transfer(f"t{i}", 4) for i in range(8)]
        sources = [torch.full((1,), float(i)) for i in range(8)]
        hosts = [engine.d2h_start(src, key) for src, key in zip(sources, keys, strict=True)]
        names = [row.name for row in engine.snapshot().transfers]
        for host, src, key in zip(hosts, sources, keys, strict=True):
            engine.d2h_wait(host, src, key)
        forget_transfers(keys)
        return names

    assert orders(1) == orders(1)
    assert len({tuple(orders(seed)) for seed in range(6)}) > 1


Step = Literal["d2h_start", "d2h_wait", "h2d_start", "h2d_wait"]


def run_steps(engine: SimulatedEngine, src: torch.Tensor, key: int, steps: list[Step]) -> None:
    host, devs = src, [torch.zeros(4)]
    for step in steps:
        if step == "d2h_start":
            host = engine.d2h_start(src, key)
        elif step == "d2h_wait":
            engine.d2h_wait(host, src, key)
        elif step == "h2d_start":
            devs.append(engine.h2d_start(host, CPU, key))
        else:
            engine.h2d_wait(devs[-1], host, key)


BROKEN: dict[str, tuple[list[Step], str]] = {
    "a reload before its offload's wait": (["d2h_start", "h2d_start"], "before its offload was waited for"),
    "an offload waited for twice": (["d2h_start", "d2h_wait", "d2h_wait"], "waited for twice"),
    "a reload started twice": (
        ["d2h_start", "d2h_wait", "h2d_start", "h2d_start"],
        "started again before the first was waited for",
    ),
    "a reload waited for twice": (
        ["d2h_start", "d2h_wait", "h2d_start", "h2d_wait", "h2d_wait"],
        "waited for, but not in flight",
    ),
    "a reload waited for that never started": (
        ["d2h_start", "d2h_wait", "h2d_wait"],
        "waited for, but not in flight",
    ),
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_order_is_an_error_that_names_the_transfer(
    name: str, timing: CopyTiming, register: RegisterTransfer
) -> None:
    steps, what = BROKEN[name]
    engine, src, key = SimulatedEngine(timing=timing), dense(4), register("layers.3.attn.out")
    with pytest.raises(RunError, match=rf"'layers\.3\.attn\.out': .*{what}") as error:
        run_steps(engine, src, key, steps)
    assert error.value.diagnostics[0].code == "RUN502"


def test_waiting_for_somebody_elses_buffer_is_an_error(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, mine, other = dense(4), register("mine"), register("other")
    host = engine.d2h_start(src, mine)
    with pytest.raises(RunError, match="'other': its offload's wait got the buffer of 'mine'"):
        engine.d2h_wait(host, src, other)


def test_a_replaced_host_buffer_is_an_error_that_says_who_does_that(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, key = dense(4), register("layers.0.mm")
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    with pytest.raises(RunError, match="saved_tensors_hooks") as error:
        engine.h2d_start(host.clone(), CPU, key)
    assert error.value.diagnostics[0].code == "RUN503"


def test_a_host_buffer_may_be_reloaded_again_and_again(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, key = dense(4), register()
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    for _ in range(3):
        dev = engine.h2d_wait(engine.h2d_start(host, CPU, key), host, key)
        assert torch.equal(dev, src)
        dev.fill_(-1)


def test_a_reload_given_up_halfway_does_not_stop_the_next(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, key = dense(4), register()
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    engine.h2d_start(host, CPU, key)
    dev = engine.h2d_start(host, CPU, key)
    assert torch.equal(engine.h2d_wait(dev, host, key), src)
    assert engine.snapshot().num_abandoned == 1


def test_an_offload_given_up_before_its_wait_frees_everything(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, key = dense(4), register()
    engine.d2h_start(src, key)
    gc.collect()
    assert engine.arena.snapshot().in_use_bytes == 0
    assert engine.snapshot().num_abandoned == 1
    assert engine.snapshot().d2h_bytes == 0


def test_a_backward_may_run_after_its_transfers_were_forgotten(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    src, key = dense(4), register()
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    forget_transfers([key])
    dev = engine.h2d_wait(engine.h2d_start(host, CPU, key), host, key)
    assert torch.equal(dev, src)
    with pytest.raises(RunError, match="is not known in this process"):
        engine.d2h_start(src, key)


def test_memory_with_a_copy_still_in_it_is_waited_for(register: RegisterTransfer) -> None:
    class StillCopying:
        lane, sequence, waited = "h2d", 0, False

        def synchronize(self) -> None:
            self.waited = True

    fence: Fence = StillCopying()
    arena = HostArena()
    slot, buffer = arena.host_buffer(16, (16,), (1,), torch.uint8)
    slot.add_fence(fence)
    del buffer
    src = dense(4)
    SimulatedEngine(arena).d2h_start(src, register())
    assert fence.waited  # type: ignore[attr-defined]  # of the class above


def test_an_unknown_timing_is_refused_by_value() -> None:
    with pytest.raises(ValueError, match="'sometimes', not one of early, late, random"):
        SimulatedEngine(timing="sometimes")  # type: ignore[arg-type]  # the point of the test


def test_the_counters_count_bytes_both_ways(engine: SimulatedEngine, register: RegisterTransfer) -> None:
    src, key = dense(4), register("a", 16)
    round_trip(engine, src, key)
    round_trip(engine, src, key)
    snapshot = engine.snapshot()
    (row,) = snapshot.transfers
    assert (row.name, row.num_bytes, row.num_d2h_copies, row.num_h2d_copies) == ("a", 16, 2, 2)
    assert (snapshot.d2h_bytes, snapshot.h2d_bytes, snapshot.hidden_fraction) == (32, 32, None)
    engine.reset()
    assert engine.snapshot().transfers == ()


@pytest.mark.parametrize("timing", TIMINGS)
def test_several_threads_may_use_one_engine(timing: CopyTiming, register: RegisterTransfer) -> None:
    engine, key = SimulatedEngine(timing=timing), register()
    wrong: list[int] = []

    def work(number: int) -> None:
        for size in range(1, 120):
            src = torch.full((size,), float(number))
            if not torch.equal(round_trip(engine, src, key), src):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    engine.drain()
    assert engine.arena.snapshot().in_use_bytes == 0
