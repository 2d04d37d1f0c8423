"""Errors: cases 42 to 44."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import CheckpointPolicy

import offload_runtime as off
from offload_runtime.codes import CODES
from offload_runtime.errors import OffloadError, RefusedError, RunError, UsageError
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.runtime import backend as backend_module
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.runtime.cuda_engine import CudaEngine
from offload_runtime.runtime.transfer import register_transfer
from tests.cases.training import (
    compiled,
    offload_everything,
    on_own_engine,
    policy_of,
    refusal_of,
    train,
    verdict_of,
)
from tests.runtime.streams import Device

HERE = torch.device("cpu", 0)


class Small(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sin() * 2


def batch() -> Tensor:
    return torch.randn(8, 16)


def run_with(options: dict[str, Any] | None) -> None:
    """Run one step with these options."""
    torch._dynamo.reset()
    torch.compile(Small(), backend=offload_backend, options=options)(batch()).sum().backward()


def must(op: str, action: str = "offload", **sections: Any) -> Any:
    rule = {"name": "strict", "match": {"op": op}, "action": action, "must": True}
    return policy_of(rule, **sections)


def replace_saved() -> None:
    with on_own_engine(), torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        compiled(Small(), offload_everything())(batch()).sum().backward()


# What is refused, the kind of error, the thing it has to name and a word of its cure.
REFUSALS: dict[str, tuple[Callable[[], object], type[OffloadError], str, str]] = {
    "an unknown option": (lambda: run_with({"polcy": "balanced"}), UsageError, "'polcy'", "'policy'"),
    "no policy": (lambda: run_with({}), UsageError, "no policy", "OFFLOAD_POLICY"),
    "an unknown mode": (
        lambda: run_with({"policy": offload_everything(), "mode": "eager"}),
        UsageError,
        "'eager'",
        "graph, inductor",
    ),
    "a model that is no module": (
        lambda: run_with({"policy": offload_everything(), "model": "net"}),
        UsageError,
        "'model'",
        "nn.Module",
    ),
    "a budget that a must rule exceeds": (
        lambda: train(Small, must("matmul", limits={"budget": "16B"}), [batch()]),
        RefusedError,
        "aten.addmm.default in inner",
        "raise the limit",
    ),
    "host memory beyond its limit": (
        lambda: train(Small, offload_everything(limits={"host": "0B"}), [batch()]),
        RefusedError,
        "graph 0 of policy 'case'",
        "raise limits.host",
    ),
    "a relative range without a total": (
        lambda: relative_range(),
        RefusedError,
        "rule 'half'",
        'options["model"]',
    ),
    "a saved tensor that hooks replaced": (replace_saved, RunError, "/addmm'", "saved_tensors_hooks"),
    "an unknown model": (
        lambda: ModelRequest("builtin:lama-tiny").resolve(),
        RefusedError,
        "lama-tiny",
        "llama-tiny",
    ),
    "an eager checkpoint that offloads": (lambda: eager_checkpoint(), RefusedError, "", ""),
}


def relative_range() -> None:
    rule = {"name": "half", "match": {"layers": ":50%"}, "action": "offload"}

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[1](self.layers[0](x).sin()).sin()
            torch._dynamo.graph_break()
            x = self.layers[3](self.layers[2](x).sin()).sin()
            return x * 2

    train(Broken, policy_of(rule), [batch()])


def eager_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    policy = offload_everything()
    checkpoint(Small(), batch(), use_reentrant=False, context_fn=policy.context_fn).sum().backward()


@pytest.mark.parametrize("name", REFUSALS)
def test_case_42_a_refusal_names_the_thing_the_reason_and_the_cure(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFLOAD_POLICY", raising=False)
    provoke, kind, thing, cure = REFUSALS[name]
    with pytest.raises(Exception) as error:  # noqa: PT011  # torch wraps it; what is inside is checked
        provoke()
    refusal = refusal_of(error.value)
    assert isinstance(refusal, kind)
    for finding in refusal.diagnostics:
        assert finding.code in CODES
        assert thing in finding.message
        assert finding.hint
        assert cure in finding.hint
        assert len(finding.message.split()) >= 4
    assert refusal.diagnostics[0].message in str(refusal)


def test_case_43_a_tensor_subclass_is_taken_apart_and_its_parts_are_offloaded() -> None:
    """AOTAutograd hands over plain parts of a traceable subclass; each of them is an activation."""
    gradients = []
    for variant in ("policy", "reference"):
        with on_own_engine():
            torch.manual_seed(0)
            x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4)).requires_grad_()
            run = compiled(lambda t: (t.sin() * 3).cos() * 2, offload_everything(), variant=variant)
            run(x).sum().backward()
            gradients.append((x.grad.a, x.grad.b))
            if variant == "policy":
                fates = {verdict.fate for verdict in off.report().tensors}
                assert "offload" in fates
    assert all(map(torch.equal, *gradients))


class Unknown(FakeTensor):
    """What a graph says of a value whose type nobody has heard of."""


@pytest.fixture
def unknown_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every joint graph say that the result of ``sin`` is of an unknown type, and save it."""
    rewrite_joint = backend_module.rewrite_joint

    def with_unknown(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.meta["val"].__class__ = Unknown
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return rewrite_joint(gm, *args, **kwargs)

    monkeypatch.setattr(backend_module, "rewrite_joint", with_unknown)


class Twice(nn.Module):
    """Saves a sine and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sin()).cos() * 2


@pytest.mark.usefixtures("unknown_sine")
def test_case_43_an_unknown_tensor_subclass_is_skipped_with_a_reason() -> None:
    run = train(Twice, offload_everything(), [batch() for _ in range(3)])
    verdict = verdict_of(run, "aten.sin.default")
    assert (verdict.fate, verdict.moved_bytes) == ("skip", 0)
    assert verdict.reason == "not a plain strided tensor: Unknown"
    assert "aten.addmm.default" in {offloaded.activation.op for offloaded in run.offloaded}


@pytest.mark.usefixtures("unknown_sine")
def test_case_43_an_unknown_tensor_subclass_that_must_move_is_an_error_naming_type_and_operator() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        train(Twice, must("aten.sin.default"), [batch()])
    (finding,) = refusal_of(error.value).diagnostics
    assert finding.code == "PLN401"
    assert "aten.sin.default" in finding.message
    assert "Unknown" in finding.message


def test_case_44_capture_into_a_cuda_graph_is_an_error_that_names_the_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device("random 1")
    device.install(monkeypatch)
    engine, key = CudaEngine(HERE, HostArena()), register_transfer("layers.0.mm", 64)
    src = torch.zeros(16)
    host = engine.d2h_wait(engine.d2h_start(src, key), src, key)
    device.capturing = True
    for start in (lambda: engine.d2h_start(src, key), lambda: engine.h2d_start(host, HERE, key)):
        with pytest.raises(RefusedError) as error:
            start()
        (finding,) = error.value.diagnostics
        assert finding.code == "RUN504"
        assert re.search(r"'layers\.0\.mm' .* captured into a CUDA graph.*not static", finding.message)
        assert "reduce-overhead" in (finding.hint or "")
    device.capturing = False


@pytest.mark.gpu
def test_case_44_capture_of_a_compiled_model_is_refused_on_a_gpu() -> None:
    with pytest.raises(RefusedError, match="CUDA graph"):
        _capture()


def _capture() -> None:
    torch._dynamo.reset()
    model = Small().cuda()
    run = torch.compile(model, backend=offload_backend, options={"policy": offload_everything()})
    x = batch().cuda()
    run(x).sum().backward()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        run(x).sum().backward()
