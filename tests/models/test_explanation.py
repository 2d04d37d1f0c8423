"""A model is explained without being run, and as a run would decide."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.debugging import boxed_nop

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import PolicyError, RefusedError
from offload_runtime.hardware import load_hardware
from offload_runtime.models import explanation, training
from offload_runtime.models.explanation import explain_policy, explain_real_step
from offload_runtime.models.fake_capture import capture_request
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.runtime import backend
from tests.models.configurations import CONFIGURATIONS

MODES = ("graph", "inductor")
H200 = load_hardware("h200-pcie5")
_names = itertools.count()


def policy_of(default: str = "recompute", **sections: Any) -> CompiledPolicy:
    rule = {"name": "heavy", "match": {"op": ["matmul", "attention"]}, "action": "offload"}
    activations = {"default": default, "rules": [rule], **sections.pop("activations", {})}
    head = {"apiVersion": "offload/v1", "kind": "Policy", "name": "tiny"}
    return load_policy({**head, "activations": activations, **sections})


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.fixture
def never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a real step fail the test."""

    def run(*args: Any) -> None:
        raise AssertionError("a real step ran")

    monkeypatch.setattr(explanation, "train", run)


_captured = functools.cache(capture_request)


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests that ask for the same model share its capture: what is asked of it changes copies alone."""
    monkeypatch.setattr(explanation, "capture_request", _captured)


@pytest.fixture
def not_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what Inductor would generate code for as it is: all decisions are made before, and code takes minutes."""
    monkeypatch.setattr(
        backend.inductor, "compile_fx_inner", lambda gm, inputs, **kwargs: boxed_nop(gm, list(inputs))
    )


def request_of(model: str, tmp_path: Path) -> ModelRequest:
    if model.startswith("builtin:"):
        return ModelRequest(model, batch=1, layers=None if "unet" in model else 2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGURATIONS[model]))
    return ModelRequest(f"hf:{path}", batch=1, seq=32, layers=1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "model", ["builtin:llama-tiny", "builtin:moe-tiny", "builtin:unet-tiny", "gpt2", "llama"]
)
def test_verdicts_are_those_of_a_real_step(
    model: str, mode: str, tmp_path: Path, not_generated: None
) -> None:
    request, policy = request_of(model, tmp_path), policy_of(schedule={"keep_last": 0})
    explained = explain_policy(request, policy, mode=mode)
    ran = explain_real_step(request, policy, mode=mode)
    assert explained.tensors == ran.tensors
    assert explained.graphs == ran.graphs
    assert explained.planned_bytes == ran.planned_bytes == ran.moved_bytes > 0
    assert explained.simulated_peak == ran.simulated_peak
    assert explained.diagnostics == ran.diagnostics == ()
    assert (explained.moved_bytes, explained.engine) == (0, "none")


@pytest.mark.parametrize("mode", MODES)
def test_a_model_of_full_size_is_explained_without_being_run(mode: str, never_runs: None) -> None:
    """Two layers of llama3-70b and its vocabulary alone are 7 GiB of parameters."""
    report = explain_policy(ModelRequest("builtin:llama3-70b", layers=2), policy_of(), mode=mode)
    assert {verdict.activation.layer for verdict in report.tensors} == {None, 0, 1}
    assert report.planned_bytes > 2**30
    assert report.graphs[0].forecast is None


def test_for_hardware_the_graphs_are_those_of_its_device(never_runs: None) -> None:
    request = ModelRequest("builtin:llama-tiny", batch=1, layers=2, dtype="bfloat16")
    here, there = (
        {
            v.activation.op
            for v in explain_policy(request, policy_of(), mode="graph", hardware=hardware).tensors
        }
        for hardware in (None, H200)
    )
    attention = "aten._scaled_dot_product_cudnn_attention.default"
    assert attention in there
    assert attention not in here


PLANNED = {"schedule": {"select": "planned"}, "limits": {"device_peak": "120MiB"}}


def test_planning_by_time_needs_hardware_that_is_known(never_runs: None, captured_once: None) -> None:
    request = ModelRequest("builtin:llama-tiny", batch=16, layers=1)
    with pytest.raises(RefusedError, match="RUN524"):
        explain_policy(request, policy_of("auto", **PLANNED), mode="graph")
    report = explain_policy(request, policy_of("auto", **PLANNED), mode="graph", hardware=H200)
    forecast = report.graphs[0].forecast
    assert forecast is not None
    assert forecast.hardware == "h200-pcie5"


def test_a_floor_that_is_named_can_be_set_as_the_limit(never_runs: None, captured_once: None) -> None:
    request = ModelRequest("builtin:llama-tiny", batch=16, layers=1)

    def explained(limit: str) -> Any:
        policy = policy_of("auto", **{**PLANNED, "limits": {"device_peak": limit}})
        return explain_policy(request, policy, mode="graph", hardware=H200)

    with pytest.raises(RefusedError, match="PLN412") as raised:
        explained("80MiB")
    found = re.search(r"set device_peak to (\d+)MiB or more", raised.value.diagnostics[0].hint or "")
    assert found is not None
    floor = int(found[1])
    assert explained(f"{floor}MiB").graphs[0].forecast.peak_bytes <= floor * 2**20
    with pytest.raises(RefusedError, match="PLN412") as raised:
        explained(f"{floor - 1}MiB")
    assert raised.value.diagnostics[0].hint == f"{found.string}"


def test_a_rule_that_matches_nothing_is_an_error_as_in_a_run(never_runs: None, captured_once: None) -> None:
    typo = {"name": "typo", "match": {"module": "**.atention.**"}, "action": "offload"}
    policy = policy_of(activations={"rules": [typo]})
    with pytest.raises(PolicyError, match=r"'typo' matches nothing; .* tensors were there"):
        explain_policy(ModelRequest("builtin:llama-tiny", batch=1, layers=2), policy, mode="graph")


def test_layers_that_name_no_module_are_an_error_as_in_a_run(never_runs: None, captured_once: None) -> None:
    policy = policy_of(activations={"layers_of": ["blocks.*"]})
    with pytest.raises(PolicyError, match="GRF312"):
        explain_policy(ModelRequest("builtin:llama-tiny", batch=1, layers=2), policy, mode="graph")


def test_a_clause_that_is_not_honoured_is_refused_before_anything_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explanation, "capture_request", None)
    with pytest.raises(RefusedError, match="gradients"):
        explain_policy(
            ModelRequest("builtin:llama-tiny"), policy_of(gradients={"offload": True}), mode="graph"
        )


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 16)
    def forward(self, x):
        x = self.up(x)
        {statement}
        return self.down(nn.functional.gelu(self.mid(nn.functional.gelu(x))))
def build():
    return Net(), (torch.randn(32, 16),)
"""


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("x = x if x.sum().item() < 1e9 else -x", "DataDependent"),
        ("torch._dynamo.graph_break()", "parts of a broken graph"),
    ],
)
def test_what_fake_tensors_cannot_show_is_explained_by_a_real_step_and_said(
    statement: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"explained_model_{next(_names)}"
    (tmp_path / f"{name}.py").write_text(
        f"import torch\nfrom torch import nn\n{NET.format(statement=statement)}"
    )
    request, policy = ModelRequest(f"{name}:build"), policy_of("save", schedule={"keep_last": 0})
    report = explain_policy(request, policy, mode="graph")
    note, breaks = report.diagnostics
    assert (note.code, note.severity) == ("MOD736", "note")
    assert reason in note.message
    assert (breaks.code, breaks.severity) == ("RUN544", "note")
    assert report.tensors == explain_real_step(request, policy, mode="graph").tensors
    assert report.moved_bytes == report.planned_bytes > 0


def test_the_model_is_built_once_and_trained_never(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(training, "_train", None)
    request = ModelRequest("builtin:llama-tiny", batch=1, layers=2)
    explain_policy(request, policy_of(), mode="graph", progress=lambda *step: seen.append(step))
    assert seen == [("policy", done, 2) for done in range(3)]
