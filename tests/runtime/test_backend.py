"""The torch.compile back end as users call it: options, sessions, reports, what stays alive."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import offload_runtime as off
from offload_runtime.runtime.options import read_options
from offload_runtime.runtime.session import living_sessions, unwrap_error

POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "products",
    "schedule": {"keep_last": 0},
    "activations": {
        "default": "recompute",
        "rules": [{"name": "products", "match": {"op": "matmul"}, "action": "offload"}],
    },
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 4))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


def run(model: nn.Module, compiled: Any, x: torch.Tensor) -> list[torch.Tensor]:
    compiled(x).square().sum().backward()
    return gradients(model)


def test_the_back_end_is_found_by_name_and_changes_no_number() -> None:
    model, x = perceptron(), torch.randn(8, 16)
    expected = run(model, model, x)
    compiled = torch.compile(model, backend="offload", options={"policy": POLICY})
    assert all(map(torch.equal, run(model, compiled, x), expected))
    report = off.report(compiled)
    assert report.planned_bytes == report.moved_bytes == report.reloaded_bytes > 0
    assert off.report(model).graphs == report.graphs


def test_a_python_function_is_a_policy() -> None:
    model, x = perceptron(), torch.randn(8, 16)

    def offload_products(activation: off.SavedActivation) -> str:
        return "offload" if activation.op_class == "matmul" else "recompute"

    compiled = torch.compile(model, backend="offload", options={"policy": offload_products, "model": model})
    expected = run(model, model, x)
    assert all(map(torch.equal, run(model, compiled, x), expected))
    fates = {
        tensor.activation.op_class: tensor.fate for tensor in off.report(compiled).tensors if tensor.rule
    }
    assert fates["activation"] == "recompute"
    assert "offload" in {tensor.fate for tensor in off.report(compiled).tensors}


def test_two_policies_in_one_process_do_not_share_a_graph() -> None:
    x = torch.randn(8, 16)
    one, other = perceptron(), perceptron()
    nothing = {**POLICY, "limits": {"budget": "0B"}}
    first = torch.compile(one, backend="offload", options={"policy": POLICY})
    second = torch.compile(other, backend="offload", options={"policy": nothing})
    assert all(map(torch.equal, run(one, first, x), run(other, second, x)))
    assert off.report(first).moved_bytes > 0
    assert off.report(second).moved_bytes == off.report(second).planned_bytes == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "CLI611"),
        ({"polcy": POLICY}, "CLI610"),
        ({"policy": POLICY, "mode": "eager"}, "CLI612"),
        ({"policy": POLICY, "variant": "both"}, "CLI612"),
        ({"policy": POLICY, "model": "llama"}, "CLI612"),
        ({"policy": POLICY, "verify": "no"}, "CLI612"),
        ({"policy": POLICY, "profile": 1}, "CLI612"),
        ({"policy": POLICY, 1: 2}, "CLI610"),
        ({"policy": POLICY, "hardware": 200}, "RUN521"),
        ({"policy": POLICY, "hardware": "h200-pci5"}, "HWP801"),
        ({"policy": POLICY, "hardware": {"kind": "Hardware"}}, "POL101"),
        ({"policy": {**POLICY, "gradients": {"offload": True}}}, "POL190"),
        ({"policy": {**POLICY, "requires": {"fact": "pipeline_parallel", "gt": 1}}}, "RUN520"),
        ({"policy": {**POLICY, "requires": {"fact": "slowdown", "lt": 1.05}}}, "RUN520"),
        ({"policy": {**POLICY, "requires": {"fact": "phase_of_the_moon", "is": "full"}}}, "POL114"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(
    options: dict[Any, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFLOAD_POLICY", raising=False)
    with pytest.raises(off.OffloadError) as raised:
        read_options(options)
    assert code in {diagnostic.code for diagnostic in raised.value.diagnostics}
    assert all(diagnostic.hint for diagnostic in raised.value.diagnostics)


def test_requires_holds_where_one_process_settles_it() -> None:
    options = read_options({"policy": {**POLICY, "requires": {"fact": "pipeline_parallel", "le": 1}}})
    assert options.policy.name == "products"


def test_the_environment_names_the_policy_where_no_options_can_be_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOAD_POLICY", "sac-default")
    model = perceptron()
    compiled = torch.compile(model, backend="offload")
    run(model, compiled, torch.randn(8, 16))
    assert off.report(compiled).policy == "sac-default"


def test_an_error_of_ours_is_found_inside_torchs() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="offload", options={"policy": "no-such-policy"})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        compiled(torch.randn(8, 16))
    error = unwrap_error(raised.value)
    assert isinstance(error, off.OffloadError)
    assert unwrap_error(ValueError("not ours")) is None


def test_layers_of_that_names_no_module_is_an_error_with_what_was_there() -> None:
    activations = {"default": "recompute", "layers_of": ["blocks.*"]}
    compiled = torch.compile(
        perceptron(), backend="offload", options={"policy": {**POLICY, "activations": activations}}
    )
    with pytest.raises(off.PolicyError, match=r"GRF312 layers_of \(blocks\.\*\) names no module"):
        compiled(torch.randn(8, 16)).sum().backward()


def test_the_baseline_honours_a_models_own_checkpoint_around_batch_norm() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU())

    def run_block(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    compiled = torch.compile(
        run_block, backend="offload", options={"policy": "sac-default", "variant": "baseline"}
    )
    compiled(torch.randn(8, 16, requires_grad=True)).sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_a_mode_of_torchs_own_is_refused_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_POLICY", "sac-default")
    compiled = torch.compile(perceptron(), backend="offload", mode="max-autotune")
    with pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match="means nothing to the offload back end"
    ):
        compiled(torch.randn(8, 16))


def test_a_model_without_a_compiled_graph_has_no_report() -> None:
    with pytest.raises(ValueError, match="no graph of this model"):
        off.report(nn.Linear(2, 2))


def test_each_of_two_policies_for_one_model_has_its_own_report() -> None:
    model, x = perceptron(), torch.randn(8, 16)
    names = ["first", "second"]
    both = [torch.compile(model, backend="offload", options={"policy": {**POLICY, "name": n}}) for n in names]
    for compiled in both:
        run(model, compiled, x)
    assert [off.report(compiled).policy for compiled in both] == names
    assert off.report(nn.Sequential(both[0])).policy == "first"
    assert off.report(model).policy == "second"


def test_a_model_whose_parameters_were_replaced_is_known_by_what_compiled_it() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend="offload", options={"policy": POLICY})
    run(model, compiled, torch.randn(8, 16))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    assert off.report(compiled).moved_bytes > 0


def test_a_compiled_function_is_told_how_to_get_its_report() -> None:
    model = perceptron()
    compiled = torch.compile(lambda x: model(x), backend="offload", options={"policy": POLICY})
    run(model, compiled, torch.randn(8, 16))
    with pytest.raises(ValueError, match=r"report\(\) without an argument"):
        off.report(compiled)
    assert off.report().moved_bytes > 0


def test_a_model_of_which_torch_captured_nothing_is_told_how_to_see_why() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                torch._dynamo.graph_break()
            return x

    model = Loop()
    compiled = torch.compile(model, backend="offload", options={"policy": POLICY})
    compiled(torch.randn(8, 16)).sum().backward()
    with pytest.raises(ValueError, match="TORCH_LOGS=graph_breaks"):
        off.report(compiled)


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_a_model_and_its_session_die_with_their_last_reference(mode: str) -> None:
    gc.collect()
    before = living_sessions()
    model = perceptron()
    compiled = torch.compile(
        model, backend="offload", options={"policy": POLICY, "model": model, "mode": mode}
    )
    run(model, compiled, torch.randn(8, 16))
    gone = weakref.ref(model)
    del model, compiled
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None
    assert living_sessions() == before


def test_the_first_step_is_checked_where_verify_asks_for_it() -> None:
    model, x = perceptron(), torch.randn(8, 16)
    compiled = torch.compile(model, backend="offload", options={"policy": POLICY, "verify": True})
    expected = run(model, model, x)
    for _ in range(3):
        assert all(map(torch.equal, run(model, compiled, x), expected))
        report = off.report(compiled)
        assert report.moved_bytes == report.planned_bytes == report.reloaded_bytes > 0


def test_a_must_rule_that_cannot_hold_names_rule_tensor_and_reason() -> None:
    rules = [{"name": "fixed", "match": {"op": "matmul"}, "action": "offload", "must": True}]
    policy = {**POLICY, "limits": {"budget": "1KiB"}, "activations": {"default": "recompute", "rules": rules}}
    compiled = torch.compile(perceptron(), backend="offload", options={"policy": policy})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        compiled(torch.randn(8, 16))
    error = unwrap_error(raised.value)
    assert isinstance(error, off.RefusedError)
    assert {diagnostic.code for diagnostic in error.diagnostics} == {"PLN401"}
    assert "'fixed' must offload" in str(error)
    assert "budget" in str(error)


REPORTS = ("report.json", "report.txt", "-")
TRAINING = """
import os, sys
import torch, torch._inductor.compile_fx  # once for all runs, each of which is a process and ends as one
for name in sys.argv[1:]:
    if (run := os.fork()) == 0:
        os.environ["OFFLOAD_REPORT"] = name
        break
    assert os.waitpid(run, 0)[1] == 0
else:
    sys.exit()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
compiled = torch.compile(model, backend="offload")
for _ in range(2):
    compiled(torch.randn(4, 8)).sum().backward()
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train once for each report; return the folder that the files are in, and what stderr showed."""
    folder = tmp_path_factory.mktemp("reported")
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, *REPORTS],
        cwd=folder,
        env={**os.environ, "OFFLOAD_POLICY": "sac-default"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


@pytest.mark.parametrize("name", REPORTS)
def test_a_run_that_passes_nothing_gets_policy_and_report_from_the_environment(
    name: str, reported: tuple[Path, str]
) -> None:
    folder, stderr = reported
    written = stderr if name == "-" else (folder / name).read_text()
    if name.endswith(".json"):
        assert json.loads(written)["policy"] == "sac-default"
    else:
        assert "policy sac-default (graph, cpu, simulated engine)" in written
