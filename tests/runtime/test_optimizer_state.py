"""A limit on device memory counts what the optimizer allocates after the plan was made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import offload_runtime as off
from offload_runtime.errors import UsageError
from offload_runtime.offload_plan import Forecast
from offload_runtime.record import Report
from offload_runtime.runtime.options import read_options
from offload_runtime.runtime.setting import judge_unknown_state, setting_for
from tests.passes.planned import HARDWARE, batch, planned_policy, stack

ROWS = 1024


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the moments that an optimizer holds."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for key, value in state.items()
        if key != "step" and isinstance(value, torch.Tensor)
    )


def train(steps: int = 3, limits: dict[str, Any] | None = None, **options: Any) -> tuple[Report, int]:
    """Train the small model with AdamW; return the last report, and the bytes of the optimizer's state."""
    torch.compiler.reset()
    model = stack()
    policy = planned_policy(limits=limits)
    compiled = torch.compile(
        model, backend="offload", options={"policy": policy, "hardware": HARDWARE, "model": model, **options}
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        compiled(batch(step, ROWS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return off.report(compiled), state_bytes(optimizer)


def forecast_of(report: Report) -> Forecast:
    (graph,) = report.graphs
    assert graph.forecast is not None
    return graph.forecast


def test_a_peak_with_the_state_of_adamw_keeps_to_the_limit_in_every_step() -> None:
    free, state = train()
    without_state = forecast_of(free).peak_bytes
    assert state > 2**20
    limit = without_state + state // 2
    limits = {"device_peak": f"{limit}B"}

    unaware, _ = train(limits=limits)
    assert [found.code for found in unaware.diagnostics].count("PLN404") == 1
    assert unaware.planned_bytes == 0
    assert forecast_of(unaware).peak_bytes == without_state
    assert without_state + state > limit  # so that the second step would exceed it

    aware, held = train(limits=limits, optimizer_state_bytes=state)
    assert held == state
    assert "PLN404" not in {found.code for found in aware.diagnostics}
    assert without_state < forecast_of(aware).peak_bytes <= limit
    assert aware.simulated_peak is not None
    assert free.simulated_peak is not None
    saved_bytes = free.simulated_peak.num_bytes - aware.simulated_peak.num_bytes
    assert saved_bytes >= without_state + state - limit
    assert aware.moved_bytes == aware.planned_bytes


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"limit": None}, False),
        ({"num_bytes": 0}, False),
        ({"num_bytes": 12}, False),
        ({"is_first_step": False}, False),
        ({"trains": False}, False),
    ],
    ids=str,
)
def test_a_limit_is_planned_without_the_state_only_where_nobody_can_know_of_it(
    changes: dict[str, Any], warned: bool
) -> None:
    given = {"limit": "40GiB", "num_bytes": None, "is_first_step": True, "trains": True, **changes}
    limits = {"device_peak": given["limit"]} if given["limit"] else None
    found = judge_unknown_state(
        planned_policy(limits=limits).policy,
        given["num_bytes"],
        is_first_step=given["is_first_step"],
        trains=given["trains"],
    )
    assert [diagnostic.code for diagnostic in found] == ["PLN404"] * warned
    assert all("optimizer_state_bytes" in (diagnostic.hint or "") for diagnostic in found)


def test_what_nobody_said_of_the_state_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFLOAD_OPTIMIZER_STATE_BYTES", raising=False)
    assert read_options({"policy": "balanced"}).optimizer_state_bytes is None


def test_what_is_still_to_come_is_added_to_what_is_allocated_and_later_found_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    policy, device = planned_policy().policy, torch.device("cuda")
    first = setting_for(policy, HARDWARE, device, optimizer_state_bytes=64)
    later = setting_for(policy, HARDWARE, device, optimizer_state_bytes=64, is_first_step=False)
    assert (first.resident_bytes, first.allocated_bytes) == (64, 1064)
    assert (later.resident_bytes, later.allocated_bytes) == (64, 1000)


@pytest.mark.parametrize(
    ("given", "num_bytes"), [(0, 0), (4096, 4096), ("12GiB", 12 * 2**30), ("1.5 MiB", 3 * 2**19)]
)
def test_the_state_is_given_as_a_number_or_as_a_size(given: object, num_bytes: int) -> None:
    options = read_options({"policy": "balanced", "optimizer_state_bytes": given})
    assert options.optimizer_state_bytes == num_bytes


def test_the_state_may_stand_in_the_environment_where_the_options_leave_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLOAD_OPTIMIZER_STATE_BYTES", "2GiB")
    assert read_options({"policy": "balanced"}).optimizer_state_bytes == 2 * 2**30
    given = {"policy": "balanced", "optimizer_state_bytes": 5}
    assert read_options(given).optimizer_state_bytes == 5
    monkeypatch.setenv("OFFLOAD_OPTIMIZER_STATE_BYTES", "much")
    with pytest.raises(UsageError, match="optimizer_state_bytes"):
        read_options({"policy": "balanced"})


@pytest.mark.parametrize("given", [-1, True, 1.5, "12", "much", None])
def test_what_is_no_size_is_refused_by_name(given: object) -> None:
    with pytest.raises(UsageError, match="optimizer_state_bytes") as raised:
        read_options({"policy": "balanced", "optimizer_state_bytes": given})
    (found,) = raised.value.diagnostics
    assert found.code == "CLI612"
    assert "12GiB" in (found.hint or "")
