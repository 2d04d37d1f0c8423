"""Order and lifetime: cases 1 to 6."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_fw_bw_and_get_code

from offload_runtime.passes.verify import VerificationError, read_original, verify_partition
from offload_runtime.runtime import backend as backend_module
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.backend import OPS
from offload_runtime.runtime.cuda_engine import CudaEngine
from offload_runtime.runtime.simulated_engine import CopyTiming
from offload_runtime.runtime.transfer import register_transfer
from tests.cases.training import (
    assert_bitwise,
    assert_exact,
    compiled,
    host_bytes,
    offload_everything,
    on_own_engine,
    policy_of,
    train,
)
from tests.passes.pairs import rewrite, transfer_calls
from tests.runtime.streams import SCHEDULES, Device

HERE = torch.device("cpu", 0)


def batches(num: int = 3, *shape: int) -> list[Tensor]:
    """Return one batch a step."""
    return [torch.randn(shape or (8, 16), generator=torch.Generator().manual_seed(i)) for i in range(num)]


def deep() -> nn.Module:
    """Return four layers of a product and a nonlinearity."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4)))


@pytest.fixture(params=SCHEDULES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Run the CUDA engine on streams that execute in the order given."""
    device = Device(request.param)
    device.install(monkeypatch)
    return device


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_case_01_with_prefetch_0_the_reload_waits_for_its_own_offload(timing: CopyTiming) -> None:
    policy = offload_everything(schedule={"defer": 0, "prefetch": 0})
    run = assert_exact(deep, policy, batches(), timing=timing)
    assert len(run.offloaded) >= 4


def test_case_01_on_streams_the_reload_waits_for_an_offload_held_back(device: Device) -> None:
    engine, key = CudaEngine(HERE, HostArena()), register_transfer("layers.0.mm", 256)
    src = torch.full((64,), float("nan"))
    device.compute.enqueue(lambda: src.fill_(5))
    host = engine.d2h_start(src, key)
    dev = engine.h2d_start(host, HERE, key)
    engine.d2h_wait(host, src, key)
    device.compute.enqueue(lambda: src.fill_(-1))
    engine.h2d_wait(dev, host, key)
    seen: list[Tensor] = []
    device.compute.enqueue(lambda: seen.append(dev.clone()))
    device.run()
    assert seen[0].eq(5).all()


@pytest.mark.parametrize("timing", ["early", "late", "random"])
def test_case_02_a_pool_of_one_buffer_serves_many_tensors_for_three_steps(timing: CopyTiming) -> None:
    functions: list[Callable[[Tensor], Tensor]] = [torch.sin, torch.exp, torch.tanh, torch.sigmoid]
    policy = offload_everything()
    page = torch.randn(32, 32, requires_grad=True)
    size = page.numel() * page.element_size()
    arena = HostArena()
    arena.reserve([size], why="one buffer")
    with on_own_engine(timing, arena) as engine:
        runs = [compiled(lambda x, f=f: f(x + 0.5) * 2, policy) for f in functions]
        for step in range(3):
            for f, run in zip(functions, runs, strict=True):
                x = (page.detach() / (step + 1)).requires_grad_()
                y = x.detach().clone().requires_grad_()
                run(x).sum().backward()
                (f(y + 0.5) * 2).sum().backward()
                assert torch.equal(x.grad, y.grad)
                assert host_bytes(engine) == 0
        moved = engine.snapshot()
        assert moved.d2h_bytes == moved.h2d_bytes == 3 * len(functions) * size
    snapshot = arena.snapshot()
    assert (snapshot.num_slabs, snapshot.requested_bytes_peak) == (1, size)


def test_case_03_a_slice_is_saved_on_another_stream_than_the_runtime_was_built_on(device: Device) -> None:
    engine, key = CudaEngine(HERE, HostArena()), register_transfer("layers.0.slice", 128)
    other = device.new_stream(HERE)
    base = torch.full((64,), float("nan"))
    part, expected = base[16:48], torch.arange(16.0, 48.0)
    seen: list[Tensor] = []
    with device.stream(other):
        other.enqueue(lambda: base.copy_(torch.arange(64.0)))
        host = engine.d2h_wait(engine.d2h_start(part, key), part, key)
        other.enqueue(lambda: base.fill_(-1))
    with device.stream(device.compute):
        device.compute.wait_stream(other)
        dev = engine.h2d_start(host, HERE, key)
        engine.h2d_wait(dev, host, key)
        device.compute.enqueue(lambda: seen.append(dev.clone()))
    device.run()
    assert torch.equal(seen[0], expected)


def test_case_03_an_offset_slice_that_is_saved_comes_back() -> None:
    class Slice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:, 5:21].sin()

    run = assert_exact(Slice, offload_everything(), batches())
    assert run.offloaded


def test_case_04_dead_code_elimination_keeps_every_transfer_and_its_order() -> None:
    model = deep()
    pair = rewrite(model, torch.randn(8, 16), under=offload_everything()).pair.partition
    for half in (pair.forward, pair.backward):
        before = [node.name for node in transfer_calls(half.graph)]
        half.graph.eliminate_dead_code()
        assert [node.name for node in transfer_calls(half.graph)] == before
        assert len(before) >= 8


_CALL = re.compile(r"extern_kernels\.(?:add)?mm\(|torch\.ops\.offload\.(\w+)\.default\(.*?(\d+)\)$")


def _executed(code: str) -> list[str]:
    """Return products and transfers of generated code, in order."""
    found = []
    for line in code.splitlines():
        call = _CALL.search(line.strip())
        if call is not None:
            found.append(f"{call[1]} {call[2]}" if call[1] else "mm")
    return found


def _planned(graph: fx.Graph) -> list[str]:
    """Return products and transfers of a rewritten graph, in order."""
    found = []
    for node in graph.nodes:
        if node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            found.append("mm")
        elif node in transfer_calls(graph):
            found.append(f"{str(node.target).split('.')[1]} {node.args[-1]}")
    return found


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note the order in which each compiled pair is to run, before Inductor gets it."""
    seen: list[list[str]] = []
    rewrite_joint = backend_module.rewrite_joint

    def noted(*args: Any, **kwargs: Any) -> Any:
        pair = rewrite_joint(*args, **kwargs)
        seen.extend(_planned(half.graph) for half in (pair.partition.forward, pair.partition.backward))
        return pair

    monkeypatch.setattr(backend_module, "rewrite_joint", noted)
    return seen


@pytest.mark.parametrize("reorder", [True, False])
def test_case_04_inductor_keeps_every_transfer_and_its_order(
    reorder: bool, planned: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")  # read at import: the setting below; read when an operator is lowered: this
    policy = offload_everything(schedule={"defer": 1, "prefetch": 1})
    with (
        inductor_config.patch(reorder_for_peak_memory=reorder, fx_graph_cache=False),
        functorch_config.patch(error_on_custom_op_aliasing=True),
        on_own_engine(),
    ):
        torch.manual_seed(0)
        model = deep()
        run = compiled(model, policy, mode="inductor")
        _, codes = run_fw_bw_and_get_code(lambda: run(batches()[0]))
    assert len(codes) == len(planned) == 2
    for code, order in zip(codes, planned, strict=True):
        assert _executed(code) == order
        assert len(order) - order.count("mm") >= 8


def test_case_04_inductor_is_bitwise_the_same_without_transfers() -> None:
    run = assert_exact(deep, offload_everything(), batches(), mode="inductor", same_as=["reference"])
    assert len(run.offloaded) >= 4


def test_case_05_of_two_tensors_on_one_storage_one_is_dropped_and_the_other_read() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 32)
            self.outer = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.inner(x).split(16, dim=1)
            early = left.sin()
            for _ in range(3):
                early = self.outer(early)
            return early + right * 3

    rules = ({"name": "inner", "match": {"op": "matmul", "module": "inner"}, "action": "offload"},)
    run = assert_exact(Halves, policy_of(*rules, schedule={"defer": 0}), batches())
    assert [verdict.activation.module for verdict in run.offloaded] == ["inner"]


def test_case_06_nobody_reads_the_host_copy_before_its_event() -> None:
    rewritten = rewrite(
        lambda x: (x @ x).sin(), torch.randn(8, 8, requires_grad=True), under=offload_everything()
    )
    pair = rewritten.pair.partition
    (start,) = [node for node in transfer_calls(pair.forward.graph) if node.target is OPS.d2h_start]
    output = pair.forward.graph.output_node()
    with pair.forward.graph.inserting_before(output):
        early = pair.forward.graph.call_function(torch.ops.aten.neg.default, (start,))
        early.meta["val"] = start.meta["val"]
    with pytest.raises(VerificationError, match="unfinished copy"):
        verify_partition(pair.forward, pair.backward, original=read_original(rewritten.reference), ops=OPS)


def test_case_06_a_host_copy_is_garbage_until_its_wait() -> None:
    with on_own_engine("late") as engine:
        key, src = register_transfer("exp_avg", 256), torch.ones(64)
        host = engine.d2h_start(src, key)
        assert host.isnan().all()
        assert torch.equal(engine.d2h_wait(host, src, key), src)


def test_the_measure_of_these_cases_sees_a_difference() -> None:
    runs = [train(deep, offload_everything(), batches(), learning_rate=rate) for rate in (0.1, 0.2)]
    with pytest.raises(AssertionError, match="differs in step 2"):
        assert_bitwise(runs[0].steps, runs[1].steps)
    assert len(runs[0].steps[0]) == 9
