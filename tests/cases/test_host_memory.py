"""Host memory and link: cases 31 to 34."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime.errors import RefusedError
from offload_runtime.runtime import engines
from offload_runtime.runtime.arena import ALIGNMENT_BYTES, HostArena
from offload_runtime.runtime.host_memory import HostMemory, read_host_memory
from offload_runtime.runtime.slab import PAGE_BYTES
from tests.cases.training import (
    assert_exact,
    compiled,
    offload_everything,
    on_own_engine,
    policy_of,
    refusal_of,
    train,
)

MIB = 1 << 20
GIB = 1 << 30


class Deep(nn.Module):
    """Eight layers, wide enough that a batch outweighs the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin()
        return x.square().mean()


def batches(rows: int = 8) -> list[Tensor]:
    return [torch.randn(rows, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]


class CountingPinner:
    """Stand in for the driver."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def pin(self, address: int, num_bytes: int) -> None:
        self.pinned.append(num_bytes)

    def unpin(self, address: int) -> None:
        pass


def on_host(monkeypatch: pytest.MonkeyPatch, memory: HostMemory) -> tuple[HostArena, CountingPinner]:
    """Put an arena on a host with this memory in the place of the process's own."""
    pinner = CountingPinner()
    arena = HostArena(pinner=pinner, host_memory=lambda: memory)
    monkeypatch.setitem(engines._arenas, "cpu", arena)
    return arena, pinner


def refusal_on(monkeypatch: pytest.MonkeyPatch, memory: HostMemory) -> str:
    """Run one forward on a host that is too small; return why that was refused, before anything was pinned."""
    arena, pinner = on_host(monkeypatch, memory)
    with on_own_engine(arena=arena) as engine:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
            compiled(Deep(), offload_everything())(batches(1024)[0])
        assert engine.snapshot().d2h_bytes == 0
    refusal = refusal_of(error.value)
    assert isinstance(refusal, RefusedError)
    (finding,) = refusal.diagnostics
    assert finding.code == "RUN505"
    assert finding.hint is not None
    assert pinner.pinned == []
    return finding.message


def test_case_31_the_cgroup_limit_is_an_error_before_step_1(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemory(64 * GIB, 60 * GIB, cgroup_limit_bytes=2 * MIB, cgroup_used_bytes=MIB)
    message = refusal_on(monkeypatch, memory)
    assert "cgroup limit 2 MiB" in message
    assert "only 1 MiB of host memory are free" in message


def test_case_31_several_ranks_on_one_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = HostMemory(4 * MIB, 4 * MIB)
    arena, pinner = on_host(monkeypatch, alone)
    with on_own_engine(arena=arena):
        compiled(Deep(), offload_everything())(batches(1024)[0]).backward()
    assert len(pinner.pinned) == 1
    message = refusal_on(monkeypatch, HostMemory(4 * MIB, 4 * MIB, num_local_ranks=8))
    assert "8 ranks on this host" in message
    assert "410 KiB per rank" in message


def test_case_31_the_forecast_counts_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, pinner = on_host(monkeypatch, HostMemory(GIB, GIB))
    exact = [torch.randn(3, 5) for _ in range(2)]

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).sin()).cos().sum()

    with on_own_engine(arena=arena):
        run = compiled(Small(), offload_everything())
        run(exact[0]).backward()
        report = off.report(run)
    (reserved,) = pinner.pinned
    num_tensors = sum(verdict.fate == "offload" for verdict in report.tensors)
    assert reserved == report.host_bytes >= num_tensors * ALIGNMENT_BYTES > report.planned_bytes
    assert report.host_bytes % PAGE_BYTES == 0
    assert report.host_waste_bytes == report.host_bytes - report.planned_bytes


def test_case_31_the_limit_of_the_policy_counts_rounding_too() -> None:
    limited = offload_everything(limits={"host": "1KiB"})
    with on_own_engine(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        compiled(Deep(), limited)(batches()[0])
    assert "limits.host is 1 KiB" in str(refusal_of(error.value))


def test_case_31_limits_are_read_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    memory = read_host_memory(tmp_path, {"LOCAL_WORLD_SIZE": "4"})
    assert (memory.total_bytes, memory.free_bytes, memory.num_local_ranks) == (8 * MIB, 4 * MIB, 4)


def test_case_32_nothing_is_pinned_after_step_1(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, pinner = on_host(monkeypatch, HostMemory(GIB, GIB))
    pins = []
    with on_own_engine(arena=arena):
        model = Deep()
        run = compiled(model, offload_everything())
        for batch in batches(64):
            run(batch).backward()
            pins.append(len(pinner.pinned))
        report = off.report(run)
    assert pins == [1, 1, 1]
    assert report.num_pins == 1
    assert report.moved_bytes > 0


NOTHING = {
    "no rule offloads": (policy_of(default="save"), None),
    "the budget is 0": (offload_everything(limits={"budget": "0B"}), "limits.budget leaves"),
    "everything lies in the last layers": (
        offload_everything(schedule={"keep_last": 8}),
        "schedule.keep_last",
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_case_33_an_empty_plan_trains_and_is_said_plainly(name: str) -> None:
    policy, _ = NOTHING[name]
    run = assert_exact(Deep, policy, batches())
    assert run.report.planned_bytes == run.report.moved_bytes == 0
    assert run.offloaded == ()
    (graph,) = run.report.graphs
    assert graph.plan.transfers == ()
    assert "0 of" in str(run.report)
    findings = [finding for finding in graph.diagnostics if finding.code == "PLN403"]
    if name == "no rule offloads":
        assert findings == []
        return
    (finding,) = findings
    assert finding.severity == "note"
    assert finding.message.startswith("nothing is offloaded")


class LatePeak(nn.Module):
    """A thin trunk and a loss that needs many times its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.head = nn.Linear(32, 2048)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin()
        return self.head(x).log_softmax(-1).exp().square().mean()


def test_case_34_offload_that_cannot_lower_the_peak_is_said_with_where_it_sits() -> None:
    match = {"op": "aten._log_softmax.default"}
    policy = policy_of({"name": "late", "match": match, "action": "offload"})
    run = train(LatePeak, policy, batches())
    (graph,) = run.report.graphs
    (finding,) = graph.diagnostics
    assert (finding.code, finding.severity) == ("PLN402", "warning")
    assert "does not lower the peak" in finding.message
    assert "it sits in backward, at " in finding.message or "it sits in forward, at " in finding.message
    assert "in head" in finding.message
    assert finding.hint is not None


def test_case_34_offload_that_lowers_the_peak_is_not_warned_about() -> None:
    run = train(Deep, offload_everything(schedule={"defer": 0}), batches(1024))
    without = train(Deep, offload_everything(), batches(1024), variant="reference").report.simulated_peak
    assert run.report.simulated_peak is not None
    assert without is not None
    assert run.report.simulated_peak.num_bytes < without.num_bytes
    assert [finding for graph in run.report.graphs for finding in graph.diagnostics] == []
