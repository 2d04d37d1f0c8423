"""What is predicted of a comparison's runs is what runs of the same graphs forecast, with the optimizer on top."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import RefusedError
from offload_runtime.hardware import load_hardware
from offload_runtime.models.optimizer_step import (
    optimizer_step_ms,
    resident_bytes,
    step_temporary_bytes,
)
from offload_runtime.models.prediction import predict_runs
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import Prediction, RunResult
from offload_runtime.models.training import Training, TrainingPlan, train
from offload_runtime.models.under_test import StateBytes
from offload_runtime.offload_plan import Variant

H200 = load_hardware("h200-pcie5")
_names = itertools.count()

# No operator in it runs otherwise on an accelerator than on the CPU.
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
    def forward(self, x):
        {statement}
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return {result}
def build():
    return Net(), (torch.randn(512, 256),)
"""


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelRequest]:
    monkeypatch.chdir(tmp_path)

    def write(
        statement: str = "pass", result: str = "x.square().mean()", optimizer: str = "adamw"
    ) -> ModelRequest:
        name = f"predicted_model_{next(_names)}"
        source = NET.format(statement=statement, result=result)
        (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{source}")
        return ModelRequest(f"{name}:build", optimizer=optimizer)

    return write


def policy(default: str = "save", device_peak: int | None = None) -> CompiledPolicy:
    rule = {"name": "products", "match": {"op": "matmul"}, "action": "offload"}
    limits = {} if device_peak is None else {"device_peak": f"{device_peak}B"}
    return load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "all",
            "limits": limits,
            "schedule": {"keep_last": 0, "select": "planned" if limits else "largest_first"},
            "activations": {"default": default, "rules": [rule]},
        }
    )


def trained(
    request: ModelRequest, variant: Variant, mode: str, *, device_peak: int | None = None
) -> Training:
    chosen = policy("save") if device_peak is None else policy("recompute", device_peak)
    plan = TrainingPlan(variant, chosen, mode, steps=1, hardware=H200)
    training = train(request, plan, lambda done, total: None)
    assert training is not None
    return training


@pytest.mark.parametrize("optimizer", ["none", "sgd", "adamw"])
@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_baseline_and_policy_are_what_their_own_graphs_forecast(
    mode: str, optimizer: str, written: Callable[..., ModelRequest]
) -> None:
    request = written(optimizer=optimizer)
    runs = predict_runs(request, policy(), mode=mode, hardware=H200, ran=None).runs
    assert runs.hardware == "h200-pcie5"
    parameters = 4 * (256 * 256 + 256) * 4
    num_passes = {"none": 0, "sgd": 3, "adamw": 20}[optimizer]
    step_ms = num_passes * parameters / H200.hbm_bytes_per_ms
    for variant, predicted in (("baseline", runs.baseline), ("policy", runs.policy)):
        report = trained(request, variant, mode).report
        assert report is not None
        forecast = report.graphs[0].forecast
        assert forecast is not None
        assert predicted.peak_device_bytes == forecast.peak_bytes
        assert predicted.step_ms == pytest.approx(forecast.step_ms + step_ms)
    assert runs.policy.step_ms > runs.baseline.step_ms


def test_a_policy_that_ran_is_predicted_by_its_own_forecast(written: Callable[..., ModelRequest]) -> None:
    request = written()
    ran = trained(request, "policy", "graph").report
    both = [
        predict_runs(request, policy(), mode="graph", hardware=H200, ran=report).runs
        for report in (ran, None)
    ]
    assert both[0] == both[1]


def test_apply_plans_for_the_state_of_its_optimizer_and_refuses_what_its_step_alone_exceeds(
    written: Callable[..., ModelRequest],
) -> None:
    request = written()
    parameters = 4 * (256 * 256 + 256) * 4
    batch, workspace = 512 * 256 * 4, H200.workspace_bytes
    # Parameters, gradients, two moments and the square roots of one.
    needed = 5 * parameters + batch + workspace
    limit = 76 * 2**20
    with_state = trained(request, "policy", "graph", device_peak=limit).report
    assert with_state is not None
    forecast = with_state.graphs[0].forecast
    assert forecast is not None
    assert 3 * parameters + batch + workspace < forecast.peak_bytes <= limit
    assert needed < limit
    with pytest.raises(RefusedError, match="PLN413"):
        trained(request, "policy", "graph", device_peak=needed - 1)


def test_a_loss_outside_of_the_graph_is_predicted_too(written: Callable[..., ModelRequest]) -> None:
    inside, outside = written(optimizer="none"), written(result="x", optimizer="none")
    ran = trained(outside, "policy", "graph").report
    alone, with_loss = (
        predict_runs(request, policy(), mode="graph", hardware=H200, ran=report).runs.policy
        for request, report in ((inside, None), (outside, ran))
    )
    assert ran is not None
    forecast = ran.graphs[0].forecast
    assert forecast is not None
    assert with_loss.step_ms > forecast.step_ms
    assert with_loss.step_ms == pytest.approx(alone.step_ms, rel=0.2)


def test_what_cannot_be_predicted_is_none_and_a_note_says_why(written: Callable[..., ModelRequest]) -> None:
    request = written(statement="x = x if x.sum().item() < 1e9 else -x")
    predicted = predict_runs(request, policy(), mode="graph", hardware=H200, ran=None)
    assert predicted.runs.hardware == "h200-pcie5"
    assert predicted.runs.baseline == predicted.runs.policy == Prediction()
    (note,) = predicted.diagnostics
    assert (note.code, note.severity) == ("MOD737", "note")
    assert "DataDependent" in note.message


def test_dropout_is_predicted_too(written: Callable[..., ModelRequest]) -> None:
    request = written(statement="x = nn.functional.dropout(x, 0.5)")
    recomputed = policy("recompute")
    predicted = predict_runs(request, recomputed, mode="graph", hardware=H200, ran=None)
    assert predicted.diagnostics == ()
    assert predicted.runs.policy.step_ms is not None


def test_errors_are_relative_to_what_was_measured() -> None:
    predicted = Prediction(110, 9.0)
    assert predicted.beside(RunResult(True, 100, 10.0)) == Prediction(
        110, 9.0, pytest.approx(0.1), pytest.approx(-0.1)
    )
    assert predicted.beside(RunResult(False, None, None)) == predicted
    assert Prediction().beside(RunResult(True, 100, 10.0)) == Prediction()


class _Traffic(TorchDispatchMode):
    """Counts the bytes that foreach operators read and write; what one names twice it reads once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if func._schema.name.startswith("aten::_foreach"):
            lists = {
                id(value[0]): value for value in args if isinstance(value, list) and _holds_tensors(value)
            }
            self.num_bytes += sum(map(_bytes, lists.values()))
            self.num_bytes += _bytes(results if _holds_tensors(results) else args[0])
        return results


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Tensor)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_traffic_of_an_optimizer_s_step_is_that_of_torch_s_own(name: str) -> None:
    parameters = [nn.Parameter(torch.randn(1000, 100)) for _ in range(3)]
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    optimizer = make(parameters, lr=1e-3, foreach=True)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        with _Traffic() as traffic:
            optimizer.step()
    expected_ms = traffic.num_bytes / H200.hbm_bytes_per_ms
    assert optimizer_step_ms(name, _bytes(parameters), H200) == pytest.approx(expected_ms, rel=0.01)


class _Allocated(TorchDispatchMode):
    """Counts the bytes of new tensors, and names the operators that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if not any(argument.alias_info is not None for argument in func._schema.returns):
            made = results if _holds_tensors(results) else [results] if isinstance(results, Tensor) else []
            self.num_bytes += _bytes([tensor for tensor in made if tensor.ndim])
        return results


@pytest.mark.parametrize(("name", "times"), [("sgd", 0), ("adamw", 1), ("adamw-fused", 0)])
def test_a_step_allocates_what_torch_s_own_does(name: str, times: int) -> None:
    model = replace(ModelRequest("builtin:llama-tiny", layers=1, seq=8).resolve(), optimizer=name)
    optimizer = model.make_optimizer()
    assert optimizer is not None
    assert bool(optimizer.defaults.get("fused")) is (name == "adamw-fused")
    optimizer.param_groups[0]["foreach"] = name != "adamw-fused"  # what CUDA does by default
    trainable = list(model.module.parameters())
    for _ in range(2):  # the first step allocates the state
        for parameter in trainable:
            parameter.grad = torch.ones_like(parameter)
        with _Allocated() as allocated:
            optimizer.step()
    resident = resident_bytes(StateBytes.of(model), name, None)
    assert allocated.num_bytes == step_temporary_bytes(resident, name) == times * _bytes(trainable)
