"""A report never says less, or other, than what ran: shared graphs, changed options, parts that torch left alone."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import offload_runtime as off
from offload_runtime.record import Report
from offload_runtime.runtime.exit_report import render_reports
from offload_runtime.runtime.session import Session, living_sessions


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    yield
    torch._dynamo.reset()


def policy(name: str, action: str) -> dict[str, Any]:
    return {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": name,
        "schedule": {"keep_last": 0},
        "activations": {"default": action},
    }


OFFLOADING, RECOMPUTING = policy("first", "offload"), policy("second", "recompute")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.relu(self.first(x)))


def compile_with(model: Any, /, **options: Any) -> Any:
    return torch.compile(model, backend="offload", options=options)


def step(model: Any, batch: int = 8) -> None:
    model(torch.randn(batch, 16)).sum().backward()


def codes_of(report: Report) -> set[str]:
    return {finding.code for finding in report.diagnostics}


def test_a_second_model_reports_the_graphs_of_the_first_that_torch_runs_for_it() -> None:
    one, other = compile_with(Small(), policy=OFFLOADING), compile_with(Small(), policy=dict(OFFLOADING))
    step(one)
    assert "RUN542" not in codes_of(off.report(one))
    step(other)
    for model in (one, other):
        report = off.report(model)
        assert report.policy == "first"
        assert report.moved_bytes == report.planned_bytes > 0
        assert "RUN542" in codes_of(report)


def test_a_copy_of_a_compiled_model_has_a_report_once_it_ran() -> None:
    compiled = compile_with(Small(), policy=OFFLOADING)
    step(compiled)
    copied = copy.deepcopy(compiled)
    with pytest.raises(ValueError, match="RUN540 no graph of this model"):
        off.report(copied)
    step(copied)
    assert off.report(copied).moved_bytes == off.report(compiled).moved_bytes > 0


def num_sessions_with_graphs_beside(earlier: list[Session]) -> int:
    """Count what was compiled since ``earlier``, which other tests of the process may keep alive."""
    return len([session for session in living_sessions() if session not in earlier and session.graphs])


def test_models_named_in_the_options_have_graphs_of_their_own() -> None:
    earlier = living_sessions()
    models = [Small(), Small()]
    compiled = [compile_with(model, policy=OFFLOADING, model=model) for model in models]
    for model in (*compiled, copy.deepcopy(compiled[0])):
        step(model)
        assert "RUN542" not in codes_of(off.report(model))
    assert num_sessions_with_graphs_beside(earlier) == 3


def write_policy(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), "utf-8")


def test_a_policy_file_that_was_edited_is_read_by_the_next_call(tmp_path: Path) -> None:
    model, file = Small(), tmp_path / "policy.yaml"
    reports = []
    for document in (OFFLOADING, RECOMPUTING):
        write_policy(file, document)
        compiled = compile_with(model, policy=str(file))
        step(compiled)
        reports.append(off.report(compiled))
    assert [report.policy for report in reports] == ["first", "second"]
    assert [report.moved_bytes > 0 for report in reports] == [True, False]


def test_a_base_of_the_policy_file_that_was_edited_is_read_by_the_next_call(tmp_path: Path) -> None:
    model = Small()
    head = {"apiVersion": "offload/v1", "kind": "Policy", "name": "child", "extends": ["./base.yaml"]}
    write_policy(tmp_path / "policy.yaml", head)
    moved = []
    for document in (OFFLOADING, RECOMPUTING):
        write_policy(tmp_path / "base.yaml", document)
        compiled = compile_with(model, policy=tmp_path / "policy.yaml")
        step(compiled)
        moved.append(off.report(compiled).moved_bytes > 0)
    assert moved == [True, False]


def test_one_name_in_two_folders_is_two_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, names = Small(), []
    for document in (OFFLOADING, RECOMPUTING):
        folder = tmp_path / document["name"]
        folder.mkdir()
        write_policy(folder / "policy.yaml", document)
        monkeypatch.chdir(folder)
        compiled = compile_with(model, policy="policy.yaml")
        step(compiled)
        names.append(off.report(compiled).policy)
    assert names == ["first", "second"]


def test_options_that_their_owner_changed_are_read_by_the_next_call() -> None:
    model, options = Small(), {"policy": OFFLOADING}
    first = torch.compile(model, backend="offload", options=options)
    step(first)
    options["policy"] = RECOMPUTING
    second = torch.compile(model, backend="offload", options=options)
    step(second)
    report = off.report(second)
    assert (report.policy, report.moved_bytes) == ("second", 0)
    assert "RUN547" in codes_of(report)


def test_a_policy_mapping_that_was_changed_within_is_read_by_the_next_call() -> None:
    model, mapping = Small(), copy.deepcopy(OFFLOADING)
    step(compile_with(model, policy=mapping))
    mapping["activations"]["default"] = "recompute"
    second = compile_with(model, policy=mapping)
    step(second)
    assert off.report(second).moved_bytes == 0


def test_the_environment_is_read_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, names = Small(), []
    for document in (OFFLOADING, RECOMPUTING):
        write_policy(tmp_path / f"{document['name']}.yaml", document)
        monkeypatch.setenv("OFFLOAD_POLICY", str(tmp_path / f"{document['name']}.yaml"))
        compiled = torch.compile(model, backend="offload")
        step(compiled)
        names.append(off.report(compiled).policy)
    assert names == ["first", "second"]


def test_unchanged_options_share_graphs_instead_of_compiling_again(tmp_path: Path) -> None:
    earlier = living_sessions()
    write_policy(tmp_path / "policy.yaml", OFFLOADING)
    for _ in range(3):
        compiled = compile_with(Small(), policy=str(tmp_path / "policy.yaml"))
        step(compiled)
    assert num_sessions_with_graphs_beside(earlier) == 1


@pytest.mark.parametrize("gone", ["deleted", "another folder"])
def test_a_run_goes_on_where_its_policy_file_cannot_be_read_again(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(tmp_path / "policy.yaml", OFFLOADING)
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"policy": "policy.yaml"}
    compiled = torch.compile(Small(), backend="offload", options=options, dynamic=False)
    step(compiled)
    if gone == "deleted":
        (tmp_path / "policy.yaml").unlink()
    else:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    step(compiled, batch=4)
    assert off.report(compiled).moved_bytes == off.report(compiled).planned_bytes > 0
    with pytest.raises(BackendCompilerFailed, match=r"policy\.yaml"):
        step(compile_with(Small(), policy="policy.yaml"))


def test_a_call_that_torch_refused_to_compile_has_no_report_of_another_policy() -> None:
    model = Small()
    with torch._dynamo.config.patch(recompile_limit=2):
        for name in ("one", "two"):
            step(compile_with(model, policy=policy(name, "offload")))
        third = compile_with(model, policy=policy("three", "offload"))
        step(third)
    with pytest.raises(ValueError, match="Dynamo recompile limit exceeded"):
        off.report(third)


def test_a_model_that_torch_stopped_compiling_says_so() -> None:
    compiled = torch.compile(Small(), backend="offload", options={"policy": OFFLOADING}, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for batch in (2, 3):
            step(compiled, batch)
        assert "RUN545" not in codes_of(off.report(compiled))
        step(compiled, 4)
    assert "RUN545" in codes_of(off.report(compiled))


def test_a_container_of_torch_compiled_in_place_is_told_the_remedy() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    model.compile(backend="offload", options={"policy": OFFLOADING})
    step(model)
    with pytest.raises(
        ValueError, match=r"RUN541 Sequential.compile\(\) captured nothing.*torch.compile\(model"
    ):
        off.report(model)
    compiled = compile_with(model, policy=OFFLOADING)
    step(compiled)
    assert off.report(compiled).moved_bytes > 0


class BrokenLoop(nn.Module):
    """Torch runs a frame eagerly that has a graph break in a loop, and captures the call after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = Small()
        self.unused = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return self.head(x)


def finding_of(report: Report, code: str) -> str:
    (found,) = [finding for finding in report.diagnostics if finding.code == code]
    return str(found)


@pytest.mark.parametrize("named", [True, False])
def test_modules_that_ran_outside_of_graphs_are_named_with_torchs_reason(named: bool) -> None:
    model = BrokenLoop()
    compiled = compile_with(model, policy=OFFLOADING, **({"model": model} if named else {}))
    step(compiled)
    text = finding_of(off.report(compiled), "RUN543")
    assert "6 of 10 parameters, layers.0.*, layers.1.*, unused.*" in text
    assert "torch._dynamo.graph_break" in text


class Unread(nn.Module):
    """Has a parameter of its own that no step reads, as a mask that is switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.zeros(16))
        self.inner = Small()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def test_one_parameter_that_is_not_read_is_named_and_not_its_module() -> None:
    compiled = compile_with(Unread(), policy=OFFLOADING)
    step(compiled)
    assert "reads 1 of 5 parameters, mask: they" in finding_of(off.report(compiled), "RUN543")


class GivenUp(nn.Module):
    """Its own frame is left alone by torch, which captures those of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Small(), Small()

    @torch.compiler.disable(recursive=False)
    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x))


def test_a_model_of_several_graphs_without_a_break_is_said_to_be_split() -> None:
    compiled = compile_with(GivenUp(), policy=OFFLOADING)
    step(compiled)
    report = off.report(compiled)
    assert report.num_graphs == 2
    assert "ran as 2 graphs" in finding_of(report, "RUN544")


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Small(), Small()

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.last(x)


def test_graph_breaks_are_named_with_their_place_and_captured_parts_are_not_missed() -> None:
    compiled = compile_with(Broken(), policy=OFFLOADING)
    step(compiled)
    report = off.report(compiled)
    assert report.num_graphs == 2
    assert "at test_model_report.py:" in finding_of(report, "RUN544")
    assert "RUN543" not in codes_of(report)


def test_a_whole_model_leaves_nothing_to_say() -> None:
    compiled = compile_with(Small(), policy=OFFLOADING)
    for batch in (8, 4, 2):
        step(compiled, batch)
    assert {code for code in codes_of(off.report(compiled)) if code >= "RUN540"} == set()


def test_weights_that_were_replaced_are_not_taken_for_modules_that_torch_left_alone() -> None:
    model = Small()
    compiled = compile_with(model, policy=OFFLOADING)
    step(compiled)
    for module in (model.first, model.last):
        module.weight, module.bias = nn.Parameter(module.weight + 1), nn.Parameter(module.bias + 1)
    assert "RUN543" not in codes_of(off.report(compiled))
    step(compiled)
    assert codes_of(off.report(compiled)).isdisjoint({"RUN542", "RUN543"})


def test_a_tensor_of_another_size_than_torch_traced_is_a_warning_with_both_numbers() -> None:
    with torch.library._scoped_library("misstated", "DEF") as library:
        library.define("wide(Tensor x) -> Tensor")
        library.impl("wide", lambda x: x.double(), "CPU")
        library.impl("wide", lambda x: torch.empty_like(x), "Meta")

        class Wide(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                wide = torch.ops.misstated.wide(x)
                ctx.save_for_backward(wide)
                return wide.float().sin()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Any:
                (wide,) = ctx.saved_tensors
                return grad * wide.float()

        apply: Any = Wide.apply
        compiled = compile_with(lambda layer, x: apply(layer(x)), policy=OFFLOADING)
        compiled(nn.Linear(16, 16), torch.randn(8, 16))
        assert "moved 1024 bytes to the host, and 512 were planned" in finding_of(off.report(), "RUN546")


def test_a_run_of_which_nothing_was_captured_has_a_report_that_says_so(tmp_path: Path) -> None:
    training = (
        "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 4))\nmodel.compile(backend='offload')\n"
        "model(torch.randn(2, 4)).sum().backward()\n"
    )
    environment = {**os.environ, "OFFLOAD_POLICY": "sac-default", "OFFLOAD_REPORT": "report.json"}
    command = [sys.executable, "-c", training]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads((tmp_path / "report.json").read_text())["diagnostics"]
    assert finding["code"] == "RUN540"
    assert render_reports([], as_json=False).startswith("RUN540 no graph has been compiled")
