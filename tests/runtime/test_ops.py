"""The four operators as torch sees them: schemas, fakes, tags, tracing, dead code."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from offload_runtime.errors import RunError
from offload_runtime.runtime import ops
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import use_engine

from .conftest import RegisterTransfer

CPU = torch.device("cpu")


def round_trip(src: torch.Tensor, key: int) -> torch.Tensor:
    host = ops.d2h_wait(ops.d2h_start(src, [], key), src, [], key)
    back: torch.Tensor = ops.h2d_wait(ops.h2d_start(host, [src], CPU, key), host, key)
    return back


def test_d2h_start_passes_torchs_own_checks(register: RegisterTransfer) -> None:
    """The other three take a host buffer of the runtime's own; opcheck would hand them copies."""
    src = torch.randn(3, 4).t()
    with use_engine(SimulatedEngine(timing="early")):
        torch.library.opcheck(ops.d2h_start, (src, [src], register()))


@pytest.mark.usefixtures("engine")
def test_the_waits_return_an_alias_of_their_first_argument_and_say_so(register: RegisterTransfer) -> None:
    for wait in (ops.d2h_wait, ops.h2d_wait):
        (returned,) = wait._schema.returns
        assert returned.alias_info is not None
        assert returned.alias_info.before_set == wait._schema.arguments[0].alias_info.before_set
        assert not wait._schema.is_mutable
    key, src = register(), torch.randn(4)
    host = ops.d2h_start(src, [], key)
    assert ops.d2h_wait(host, src, [], key).data_ptr() == host.data_ptr()
    dev = ops.h2d_start(host, [], CPU, key)
    assert ops.h2d_wait(dev, host, key).data_ptr() == dev.data_ptr()


def test_fakes_keep_sizes_strides_and_dtype_and_change_the_device() -> None:
    with FakeTensorMode(allow_non_fake_inputs=False):
        src = torch.empty_strided((3, 4), (1, 3), dtype=torch.bfloat16, device="cuda")
        host = ops.d2h_start(src, [], 0)
        host = ops.d2h_wait(host, src, [], 0)
        dev = ops.h2d_start(host, [], torch.device("cuda"), 0)
        dev = ops.h2d_wait(dev, host, 0)
    assert (host.device.type, dev.device.type) == ("cpu", "cuda")
    for tensor in (host, dev):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == ((3, 4), (1, 3), torch.bfloat16)


def test_meta_tensors_stay_meta() -> None:
    src = torch.empty(3, device="meta")
    host = ops.d2h_start(src, [], 0)
    assert host.is_meta
    assert ops.h2d_start(host, [], CPU, 0).is_meta


def test_symbolic_sizes_go_through() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    src = mode.from_tensor(torch.randn(6, 4), static_shapes=False)
    with mode:
        host = ops.d2h_start(src, [], 0)
    assert isinstance(host.shape[0], torch.SymInt)
    assert str(host.shape) == str(src.shape)
    assert str(host.stride()) == str(src.stride())


def test_the_ops_trace_as_four_nodes_and_survive_dead_code_elimination(register: RegisterTransfer) -> None:
    key = register()

    def only_starts(src: torch.Tensor) -> torch.Tensor:
        host = ops.d2h_start(src, [], key)
        ops.d2h_wait(host, src, [], key)
        dev = ops.h2d_start(host, [], CPU, key)
        ops.h2d_wait(dev, host, key)
        return src + 1

    traced = make_fx(only_starts, tracing_mode="fake")(torch.randn(3))
    traced.graph.eliminate_dead_code()
    assert [node.target for node in traced.graph.nodes if node.target in ops.TRANSFER_OPS] == list(
        ops.TRANSFER_OPS
    )


def test_a_traced_graph_runs_with_the_engine_that_is_current_then(register: RegisterTransfer) -> None:
    key = register("a")
    traced = make_fx(lambda x: round_trip(x, key), tracing_mode="fake")(torch.randn(3))
    assert isinstance(traced, fx.GraphModule)
    for timing in ("early", "late", "random"):
        with use_engine(SimulatedEngine(timing=timing)) as own:
            src = torch.randn(3)
            assert torch.equal(traced(src), src)
            assert own.snapshot().d2h_bytes == 12


def test_a_transfer_stays_with_the_engine_that_started_it(register: RegisterTransfer) -> None:
    key, src = register(), torch.randn(3)
    with use_engine(SimulatedEngine()) as first:
        host = ops.d2h_wait(ops.d2h_start(src, [], key), src, [], key)
    with use_engine(SimulatedEngine()) as second:
        back = ops.h2d_wait(ops.h2d_start(host, [], CPU, key), host, key)
    assert torch.equal(back, src)
    assert (first.snapshot().h2d_bytes, second.snapshot().h2d_bytes) == (12, 0)


def test_tags_tell_inductor_to_keep_strides_and_stay_out_of_cuda_graphs() -> None:
    for op in ops.TRANSFER_OPS:
        assert torch.Tag.needs_exact_strides in op.tags
        assert torch.Tag.cudagraph_unsafe in op.tags


def test_unknown_transfers_and_foreign_buffers_are_named_errors(register: RegisterTransfer) -> None:
    key, src = register("layers.0.mm"), torch.randn(3)
    with pytest.raises(RunError, match="transfer -7 is not known"):
        ops.d2h_start(src, [], -7)
    for call in (
        lambda: ops.d2h_wait(torch.zeros(3), src, [], key),
        lambda: ops.h2d_start(torch.zeros(3), [], CPU, key),
        lambda: ops.h2d_wait(torch.zeros(3), torch.zeros(3), key),
    ):
        with pytest.raises(RunError, match=r"'layers\.0\.mm': the host buffer"):
            call()
