import torch
from torch import Tensor

from offload_runtime.passes.tape import record_tape
from offload_runtime.simulator import peak_memory
from tests.passes.pairs import policy, rewrite

KIB = 16 * 16 * 4


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def _two_products(x: Tensor) -> Tensor:
    return torch.sin(torch.sin(x @ x) @ x).sum()


def test_inputs_are_resident() -> None:
    tape = rewrite(_two_products, _leaf(16, 16), under=policy("save")).pair.tape
    assert tape.resident_bytes == KIB


def test_a_saved_storage_lives_from_its_writer_to_its_last_backward_read() -> None:
    tape = rewrite(_two_products, _leaf(16, 16), under=policy("save")).pair.tape
    (first,) = [a for a in tape.allocations if a.name == "mm"]
    assert first.first < tape.num_forward < first.last
    assert first.num_bytes == KIB


def test_an_offloaded_storage_is_gone_between_release_and_reload() -> None:
    rewritten = rewrite(_two_products, _leaf(16, 16), under=policy())
    tape = rewritten.pair.tape
    (released,) = [a for a in tape.allocations if a.name == "mm"]
    assert released.last < tape.num_forward
    reloaded = [a for a in tape.allocations if a.name.startswith("h2d_start")]
    assert len(reloaded) == len(rewritten.pair.plan.transfers)
    assert all(a.first >= tape.num_forward for a in reloaded)


def test_host_copies_take_no_device_memory() -> None:
    rewritten = rewrite(_two_products, _leaf(16, 16), under=policy())
    hosts = {f"d2h_start{suffix}" for suffix in ("", "_1", "_2")}
    assert not hosts & {a.name for a in rewritten.pair.tape.allocations}
    offloaded = {transfer.source.node for transfer in rewritten.pair.plan.transfers}
    in_backward = {
        a.name for a in rewritten.pair.tape.allocations if a.first >= rewritten.pair.tape.num_forward
    }
    assert not offloaded & in_backward


def test_offloading_lowers_the_simulated_peak_of_a_deep_chain() -> None:
    def deep(x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.sin(x * 0.5)
        return x.sum()

    rewritten = rewrite(deep, _leaf(16, 16), under=policy())
    with_transfers = peak_memory([rewritten.pair.tape]).num_bytes
    without = peak_memory([record_tape(rewritten.reference)]).num_bytes
    assert with_transfers <= without - 3 * KIB
