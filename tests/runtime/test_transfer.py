"""The table of transfers, what a snapshot derives, and which engine is the current one."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from offload_runtime.errors import RefusedError, RunError
from offload_runtime.runtime import ops  # noqa: F401  # registers the engines
from offload_runtime.runtime.engines import get_arena
from offload_runtime.runtime.ledger import TransferLedger
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import (
    EngineSnapshot,
    TransferStats,
    forget_transfers,
    get_engine,
    profile,
    register_transfer,
    transfer_record,
    transfer_records,
    use_engine,
)


def test_a_key_means_one_transfer_and_is_never_used_again() -> None:
    first = register_transfer("layers.0.mm", 100)
    forget_transfers([first])
    second = register_transfer("layers.1.mm", 200, poison_source=True)
    assert second != first
    (record,) = transfer_records([second])
    assert (record.name, record.num_bytes, record.poison_source) == ("layers.1.mm", 200, True)
    forget_transfers([first, second, second])


def test_an_unknown_key_is_a_named_error_with_a_cure() -> None:
    with pytest.raises(RunError) as error:
        transfer_record(-1)
    assert error.value.diagnostics[0].code == "RUN501"
    assert "torch.compiler.reset()" in str(error.value)


def test_a_device_type_without_an_engine_is_refused_naming_those_that_have_one() -> None:
    with pytest.raises(RefusedError, match="'meta'") as refusal:
        get_engine("meta")
    assert refusal.value.diagnostics[0].code == "RUN508"
    assert "cpu, cuda" in str(refusal.value)


def test_each_device_has_one_engine_and_each_kind_one_arena() -> None:
    assert get_engine("cpu") is get_engine(torch.device("cpu", 0))
    assert get_arena("cpu") is get_arena(torch.device("cpu"))
    assert get_engine("cpu").name == "simulated"


def test_an_engine_in_use_is_seen_by_every_thread_and_left_again() -> None:
    default = get_engine("cpu")
    outer, inner = SimulatedEngine(), SimulatedEngine()
    seen: list[object] = []
    with use_engine(outer):
        with use_engine(inner):
            thread = threading.Thread(target=lambda: seen.append(get_engine("cpu")))
            thread.start()
            thread.join()
        assert get_engine("cuda") is outer
    assert seen == [inner]
    assert get_engine("cpu") is default


def test_an_engine_is_left_after_an_exception_too() -> None:
    default = get_engine("cpu")
    with pytest.raises(KeyError), use_engine(SimulatedEngine()):
        raise KeyError
    assert get_engine("cpu") is default


def test_a_forked_child_has_an_engine_and_an_arena_of_its_own() -> None:
    parents = (get_engine("cpu"), get_arena("cpu"))
    child = os.fork()
    if child == 0:
        os._exit(int(get_engine("cpu") is parents[0]) + 2 * int(get_arena("cpu") is parents[1]))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (get_engine("cpu"), get_arena("cpu")) == parents


def test_the_hidden_share_is_what_the_stalls_leave_of_the_copies() -> None:
    rows = (
        TransferStats("a", 10, d2h_bytes=10, h2d_bytes=10, d2h_ms=3.0, h2d_ms=5.0, stall_ms=2.0),
        TransferStats("b", 10, d2h_bytes=10),
    )
    snapshot = EngineSnapshot("cuda", "cuda:0", rows)
    assert (snapshot.d2h_bytes, snapshot.h2d_bytes) == (20, 10)
    assert (snapshot.copy_ms, snapshot.stall_ms, snapshot.hidden_fraction) == (8.0, 2.0, 0.75)


@pytest.mark.parametrize(
    ("copy_ms", "stall_ms", "hidden"),
    [(None, None, None), (4.0, None, None), (0.0, 0.0, None), (1.0, 3.0, 0.0)],
)
def test_the_hidden_share_is_unknown_without_times_and_never_negative(
    copy_ms: float | None, stall_ms: float | None, hidden: float | None
) -> None:
    rows = (TransferStats("a", 10, d2h_ms=copy_ms, stall_ms=stall_ms),)
    assert EngineSnapshot("cuda", "cuda:0", rows).hidden_fraction == hidden


def test_the_ledger_adds_up_by_transfer_and_starts_anew() -> None:
    key = register_transfer("a", 8)
    record = transfer_record(key)
    ledger = TransferLedger("cuda", "cuda:0")
    ledger.count_copy(record, "d2h", 8)
    ledger.count_copy(record, "h2d", 8)
    ledger.count_copy(record, "h2d", 8)
    for interval, elapsed_ms in (("d2h", 1.0), ("stall", 0.25), ("stall", 0.5)):
        ledger.add_time(record, interval, elapsed_ms)  # type: ignore[arg-type]  # a literal in a tuple
    ledger.count_abandoned()
    (row,) = ledger.snapshot().transfers
    assert row == TransferStats("a", 8, 1, 2, 8, 16, d2h_ms=1.0, h2d_ms=None, stall_ms=0.75)
    assert ledger.snapshot().num_abandoned == 1
    ledger.reset()
    assert ledger.snapshot() == EngineSnapshot("cuda", "cuda:0", ())
    forget_transfers([key])


def test_profiling_is_on_only_inside_its_context() -> None:
    class Recorder(SimulatedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[bool | str] = []

        def set_profiling(self, enabled: bool) -> None:
            self.calls.append(enabled)

        def reset(self) -> None:
            self.calls.append("reset")

    engine = Recorder()
    with pytest.raises(KeyError), profile(engine):
        raise KeyError
    assert engine.calls == ["reset", True, False]
