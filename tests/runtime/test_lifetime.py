"""Who keeps a host buffer, and until when: in the graphs that AOTAutograd and Inductor really run."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from offload_runtime.errors import RunError
from offload_runtime.runtime import ops
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.simulated_engine import CopyTiming, SimulatedEngine
from offload_runtime.runtime.transfer import use_engine

from .conftest import RegisterTransfer
from .rig import MODES, Mode, OffloadEverything, backend, no_donated_buffers, partition


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    with no_donated_buffers():
        yield
    torch.compiler.reset()


class Net(nn.Module):
    """Two matmuls, an activation, and a transposed view between them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.up(x))
        h = h.unflatten(-1, (4, -1)).transpose(-1, -2).reshape(x.shape[0], -1)
        return self.down(h) + x


def net() -> Net:
    torch.manual_seed(0)
    return Net()


Compiled = tuple[Callable[..., torch.Tensor], OffloadEverything]


def compiled(mode: Mode, model: nn.Module, register: RegisterTransfer, **settings: Any) -> Compiled:
    partitioner = OffloadEverything(register)
    return torch.compile(model, backend=backend(mode, partitioner, **settings)), partitioner


class SaveEverything(OffloadEverything):
    """The numeric reference: the same partition, nothing moves."""

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        return partition(gm, joint_inputs, **kwargs)


def reference(mode: Mode, model: nn.Module) -> Callable[..., torch.Tensor]:
    run: Callable[..., torch.Tensor] = torch.compile(model, backend=backend(mode, SaveEverything(_no_key)))
    return run


def _no_key(name: str) -> int:
    raise AssertionError(f"the reference registers no transfer, but did for {name}")


def batch(step: int, size: int = 8) -> torch.Tensor:
    return torch.randn(size, 16, generator=torch.Generator().manual_seed(step))


def gradients(
    run: Callable[..., torch.Tensor], model: nn.Module, *inputs: torch.Tensor
) -> list[torch.Tensor]:
    model.zero_grad()
    for x in inputs:
        run(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) > 0 and all(map(torch.equal, left, right))


def in_use(engine: SimulatedEngine) -> int:
    gc.collect()
    return engine.arena.snapshot().in_use_bytes


SETTINGS: dict[str, tuple[Mode, dict[str, Any]]] = {
    "graph": ("graph", {}),
    "inductor": ("inductor", {}),
    "inductor that reorders for peak memory": ("inductor", {"reorder_for_peak_memory": True}),
    "inductor that does not": ("inductor", {"reorder_for_peak_memory": False}),
}


@pytest.mark.parametrize("timing", ["early", "late", "random"])
@pytest.mark.parametrize("name", SETTINGS)
def test_three_steps_are_bitwise_those_without_transfers(
    name: str, timing: CopyTiming, register: RegisterTransfer
) -> None:
    mode, settings = SETTINGS[name]
    model, twin = net(), net()
    run, partitioner = compiled(mode, model, register, **settings)
    plain = reference(mode, twin)
    with use_engine(SimulatedEngine(HostArena(), timing=timing, seed=5)) as engine:
        for step in range(3):
            assert same(gradients(run, model, batch(step)), gradients(plain, twin, batch(step)))
            for module in (model, twin):
                torch.optim.SGD(module.parameters(), lr=0.01).step()
        assert in_use(engine) == 0
        snapshot = engine.snapshot()
    assert len(partitioner.keys) == len(snapshot.transfers) >= 3
    assert {(t.num_d2h_copies, t.num_h2d_copies) for t in snapshot.transfers} == {(3, 3)}
    assert snapshot.num_abandoned == 0


@pytest.mark.parametrize("mode", MODES)
class TestHostBuffers:
    """Each of these is a way in which somebody keeps, drops or reuses what autograd saved."""

    @pytest.fixture(autouse=True)
    def _build(self, mode: Mode, engine: SimulatedEngine, register: RegisterTransfer) -> None:
        self.engine = engine
        self.model, self.twin = net(), net()
        self.run, self.partitioner = compiled(mode, self.model, register)
        self.plain = reference(mode, self.twin)

    def exact_on(self, *inputs: torch.Tensor) -> bool:
        return same(gradients(self.run, self.model, *inputs), gradients(self.plain, self.twin, *inputs))

    def test_live_from_forward_to_backward(self) -> None:
        loss = self.run(batch(0)).sum()
        assert in_use(self.engine) > 0
        loss.backward()
        assert in_use(self.engine) == 0

    def test_die_with_a_forward_that_is_dropped(self) -> None:
        loss = self.run(batch(0)).sum()
        del loss
        assert in_use(self.engine) == 0
        assert self.exact_on(batch(1))

    def test_die_with_a_forward_that_sits_in_a_cycle(self) -> None:
        cycle: list[Any] = [self.run(batch(0)).sum()]
        cycle.append(cycle)
        del cycle
        assert in_use(self.engine) == 0

    def test_stay_for_a_second_backward(self) -> None:
        for run, model in ((self.run, self.model), (self.plain, self.twin)):
            loss = run(batch(0)).square().sum()
            loss.backward(retain_graph=True)
            if run is self.run:
                assert in_use(self.engine) > 0
            loss.backward()
            del loss
            assert model.up.weight.grad is not None
        assert in_use(self.engine) == 0
        assert torch.equal(self.model.up.weight.grad, self.twin.up.weight.grad)

    def test_of_two_forwards_do_not_mix(self) -> None:
        for run in (self.run, self.plain):
            first, second = run(batch(0)).square().sum(), run(batch(1)).square().sum()
            second.backward()
            first.backward()
        assert torch.equal(self.model.up.weight.grad, self.twin.up.weight.grad)
        del first, second
        assert in_use(self.engine) == 0

    def test_are_flat_over_fifty_steps_that_use_one_of_two_heads(self) -> None:
        reserved = set()
        for step in range(50):
            used, unused = self.run(batch(step)), self.run(batch(step + 1))
            used.sum().backward()
            del used, unused
            reserved.add(self.engine.arena.snapshot().reserved_bytes)
            assert self.engine.arena.snapshot().in_use_bytes == 0
        assert len(reserved) == 1

    def test_serve_micro_batches_and_changing_shapes(self) -> None:
        assert self.exact_on(*(batch(step) for step in range(4)))
        for size in (4, 7, 1):
            assert self.exact_on(batch(9, size))
        assert in_use(self.engine) == 0

    def test_are_not_made_without_gradients(self) -> None:
        with torch.no_grad():
            self.run(batch(0))
        assert self.engine.snapshot().d2h_bytes == 0
        assert self.exact_on(batch(1))

    def test_may_be_used_up_by_another_thread(self) -> None:
        loss = self.run(batch(0)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert in_use(self.engine) == 0
        assert self.exact_on(batch(1))

    @pytest.mark.parametrize("step", ["d2h_start", "d2h_wait", "h2d_start", "h2d_wait"])
    @pytest.mark.parametrize("call", [1, 3])
    def test_are_freed_when_a_transfer_fails_and_training_goes_on(
        self, step: str, call: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, calls = getattr(self.engine, step), itertools.count(1)

        def failing(*args: Any) -> torch.Tensor:
            if next(calls) == call:
                raise RuntimeError("injected fault")
            result: torch.Tensor = real(*args)
            return result

        with monkeypatch.context() as patch:
            patch.setattr(self.engine, step, failing)
            with pytest.raises(RuntimeError, match="injected fault"):
                self.run(batch(0)).sum().backward()
        assert in_use(self.engine) == 0
        assert self.exact_on(batch(1))
        assert in_use(self.engine) == 0


def test_a_saved_tensor_replaced_by_hooks_is_an_error_and_not_garbage(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    run = compiled("graph", net(), register)[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = run(batch(0)).sum()
    with pytest.raises(RunError, match="saved_tensors_hooks"):
        loss.backward()


def test_save_on_cpu_is_caught_where_it_is_pinned_and_hands_a_host_buffer_through_where_it_is_not(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    # Pinned it copies into a tensor of its own; by default it takes .cpu(), which is the host buffer itself.
    model = net()
    run, plain = compiled("graph", model, register)[0], reference("graph", model)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = run(batch(0)).sum()
    with pytest.raises(RunError, match="the host buffer that the forward saved is not the tensor") as error:
        loss.backward()
    assert error.value.diagnostics[0].code == "RUN503"
    with torch.autograd.graph.save_on_cpu():
        through = gradients(run, model, batch(1))
    assert same(through, gradients(plain, model, batch(1)))


class OffloadedSquare(torch.autograd.Function):
    """Eager autograd saves the host buffer as compiled autograd does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, key: int) -> torch.Tensor:
        ctx.key = key
        ctx.save_for_backward(ops.d2h_wait(ops.d2h_start(x, [], key), x, [], key))
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (host,) = ctx.saved_tensors
        dev = ops.h2d_wait(ops.h2d_start(host, [], grads[0].device, ctx.key), host, ctx.key)
        return 2 * dev * grads[0], None


def test_eager_autograd_keeps_and_frees_host_buffers_too(
    engine: SimulatedEngine, register: RegisterTransfer
) -> None:
    key, x = register(), torch.randn(5, requires_grad=True)
    y = OffloadedSquare.apply(x, key)
    assert in_use(engine) > 0
    y.sum().backward(retain_graph=True)
    assert in_use(engine) > 0
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())
    del y
    assert in_use(engine) == 0
