from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.compiler import load_policy
from offload_runtime.errors import OffloadError, RefusedError
from offload_runtime.hardware import HardwareProfile, hardware_document, load_hardware
from offload_runtime.policy import Limits, Policy
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.runtime.model_report import report
from offload_runtime.runtime.session import unwrap_error
from offload_runtime.runtime.setting import (
    AUTO_MARGIN,
    limits_left,
    needs_hardware,
    profile_of_device,
    read_hardware_option,
    resolve_limits,
    setting_for,
)

CPU = torch.device("cpu")
H200 = load_hardware("h200-pcie5")
A100 = load_hardware("a100-pcie4")


def policy(**schedule: Any) -> Policy:
    document = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "p",
        "schedule": schedule,
        "activations": {"default": "auto"},
    }
    return load_policy(document).policy


def allow_share(fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a process that may have this share of a device; torch still judges how the device is named."""
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", lambda index: fraction, raising=False)


@pytest.mark.parametrize(
    ("schedule", "needed"),
    [
        ({}, False),
        ({"defer": 8, "prefetch": 2}, False),
        ({"select": "planned"}, True),
        ({"defer": "auto"}, True),
        ({"prefetch": "auto"}, True),
    ],
)
def test_what_goes_by_time_needs_hardware(schedule: dict[str, Any], needed: bool) -> None:
    assert needs_hardware(policy(**schedule)) is needed
    if needed:
        with pytest.raises(RefusedError) as raised:
            setting_for(policy(**schedule), None, CPU)
        (diagnostic,) = raised.value.diagnostics
        assert diagnostic.code == "RUN524"
        assert diagnostic.path == f"schedule.{next(iter(schedule))}"
    assert setting_for(policy(**schedule), H200, CPU).profile is H200


def test_a_policy_that_counts_layers_runs_on_unknown_hardware() -> None:
    found = setting_for(policy(), None, CPU)
    assert (found.profile, found.resident_bytes, found.allocated_bytes) == (None, 0, 0)


def test_a_profile_brings_its_workspace() -> None:
    assert setting_for(policy(), H200, CPU).resident_bytes == H200.workspace_bytes == 68 * 2**20


def test_a_hardware_option_is_a_name_a_path_data_or_a_profile(tmp_path: Path) -> None:
    document = hardware_document(H200)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(document))
    assert read_hardware_option(None) is None
    assert read_hardware_option(H200) is H200
    assert read_hardware_option("h200-pcie5") == H200
    assert read_hardware_option(document) == H200
    assert read_hardware_option(file) == H200
    assert read_hardware_option(str(file)) == H200


@pytest.mark.parametrize(
    ("given", "code"),
    [("h200", "HWP801"), (7, "RUN521"), (["h200-pcie5"], "RUN521"), ({"kind": "x"}, "POL101")],
)
def test_an_option_that_is_no_profile_is_refused_by_name(given: object, code: str) -> None:
    with pytest.raises(OffloadError) as raised:
        read_hardware_option(given)
    assert code in {diagnostic.code for diagnostic in raised.value.diagnostics}
    assert all(diagnostic.hint for diagnostic in raised.value.diagnostics)


@pytest.mark.parametrize(
    ("device_name", "profile"),
    [
        ("NVIDIA H200", "h200-pcie5"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie5"),
        ("NVIDIA A100-SXM4-80GB", "a100-pcie4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-pcie4"),
        ("NVIDIA T4", None),
    ],
)
def test_the_device_in_use_is_known_by_the_name_that_its_driver_gives(
    device_name: str, profile: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: device_name)
    found = profile_of_device(torch.device("cuda", 0))
    assert (found.name if found is not None else None) == profile
    assert profile_of_device(CPU) is None


def test_auto_is_what_the_device_has_less_a_margin() -> None:
    limits = Limits(device_peak="auto", budget=7)
    resolved = resolve_limits(limits, CPU, H200)
    assert resolved == Limits(device_peak=int(H200.device_memory_bytes * (1 - AUTO_MARGIN)), budget=7)
    assert resolve_limits(Limits(device_peak=5), CPU, None) == Limits(device_peak=5)


def test_auto_on_a_device_counts_what_is_free_and_what_this_process_has_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * 2**30)
    allow_share(1.0, monkeypatch)
    resolved = resolve_limits(Limits(device_peak="auto"), torch.device("cuda", 0), None)
    assert resolved.device_peak == int(75 * 2**30 * 0.94)


@pytest.mark.parametrize(
    ("fraction", "profile", "capacity_bytes"),
    [(0.5, None, 70 * 2**30), (0.5, A100, 70 * 2**30), (1.0, A100, A100.device_memory_bytes)],
)
def test_auto_is_no_more_than_a_cap_on_the_process_or_the_memory_of_the_profile(
    fraction: float, profile: HardwareProfile | None, capacity_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (140 * 2**30, 140 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    allow_share(fraction, monkeypatch)
    resolved = resolve_limits(Limits(device_peak="auto"), torch.device("cuda"), profile)
    assert resolved.device_peak == int(capacity_bytes * (1 - AUTO_MARGIN))


def test_graphs_of_one_model_share_a_budget() -> None:
    limits = Limits(budget=100)
    assert limits_left(policy(), limits, {}, is_partial=True) == limits
    assert limits_left(policy(), limits, {"a": 30, "b": 50}, is_partial=True) == Limits(budget=20)
    assert limits_left(policy(), limits, {"a": 300}, is_partial=True) == Limits(budget=0)
    assert limits_left(policy(), Limits(), {"a": 300}, is_partial=True) == Limits()


@pytest.mark.parametrize(("others", "is_partial"), [({"a": 0}, False), ({}, True)])
def test_a_limit_on_device_memory_is_refused_where_there_are_several_graphs(
    others: dict[object, int], is_partial: bool
) -> None:
    with pytest.raises(RefusedError, match="several graphs") as raised:
        limits_left(policy(), Limits(device_peak=100), others, is_partial=is_partial)
    assert [d.code for d in raised.value.diagnostics] == ["PLN414"]
    assert limits_left(policy(), Limits(device_peak=100), {}, is_partial=False) == Limits(device_peak=100)


class Broken(nn.Module):
    """Two linear layers with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).sin()
        torch._dynamo.graph_break()
        return self.second(x).sin()


def train_once(model: nn.Module, limits: dict[str, Any], mode: str, **schedule: Any) -> Any:
    torch._dynamo.reset()
    document = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "p",
        "limits": limits,
        "schedule": {"keep_last": 0, **schedule},
        "activations": {"default": "offload"},
    }
    options = {"policy": document, "mode": mode, "hardware": H200}
    run: Any = torch.compile(model, backend=offload_backend, options=options)
    run(torch.randn(8, 16)).sum().backward()
    return report(run)


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_a_limit_on_device_memory_is_refused_at_a_graph_break(mode: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        train_once(Broken(), {"device_peak": "1GiB"}, mode, select="planned")
    refusal = unwrap_error(raised.value)
    assert refusal is not None
    assert [(d.code, d.path) for d in refusal.diagnostics] == [("PLN414", "limits.device_peak")]
    whole = train_once(
        nn.Sequential(nn.Linear(16, 16), nn.Tanh()), {"device_peak": "1GiB"}, mode, select="planned"
    )
    assert whole.num_graphs == 1


def test_graphs_of_a_broken_model_share_a_budget() -> None:
    everything = train_once(Broken(), {}, "graph")
    assert everything.num_graphs == 2
    each = [graph.plan.planned_bytes for graph in everything.graphs]
    assert min(each) > 0
    shared = train_once(Broken(), {"budget": f"{max(each)}B"}, "graph")
    assert shared.planned_bytes == shared.moved_bytes <= max(each)
