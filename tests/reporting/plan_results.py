"""Builders of predictions, so that a test names only what it is about."""

from __future__ import annotations

from typing import Any

from offload_runtime.models.frontier_result import FrontierFloor, FrontierPlan, FrontierResult
from offload_runtime.models.layer_runs import layer_runs
from offload_runtime.models.plan_result import (
    Holding,
    HostForecast,
    PeakSite,
    PlanResult,
    ResidentBytes,
    SimulatedStep,
    StepForecast,
    WindowForecast,
)
from tests.reporting.plots.drawn import GIB, MIB, copies_of, simulation, step
from tests.reporting.records import verdict

TRACE = step(3)
BASELINE_SITE = PeakSite(
    "backward", "log_softmax_backward", "aten._log_softmax_backward_data.default", "loss"
)
POLICY_SITE = PeakSite("forward", "mm_2", "aten.mm.default", "layers.2.mlp", 2)
VERDICTS = (
    verdict("a", "offload", "heavy", 0, GIB),
    verdict("b", "save", "heavy", 1, GIB),
    verdict("c", "recompute", "default", 1, 200 * MIB),
    verdict("d", "skip", None, None, 8 * GIB),
)


def forecast(
    peak_gib: float, step_ms: float, site: PeakSite = POLICY_SITE, *, fits: bool = True
) -> StepForecast:
    """Build a forecast; at its peak two saved products and the logits are alive."""
    holdings = (Holding("saved aten.mm.default", 2, 2 * GIB), Holding("logits", 1, GIB))
    return StepForecast(fits, int(peak_gib * GIB), step_ms, site, holdings)


def plan_result(**changes: Any) -> PlanResult:
    """Build the prediction of a policy that offloads one tensor of two, under a target of 10 GiB."""
    copies = (*copies_of(TRACE, "d2h", [1.0]), *copies_of(TRACE, "h2d", [16.0], stall_ms=0.5))
    values: dict[str, Any] = {
        "model": "builtin:llama3-8b",
        "policy_name": "wide",
        "policy_hash": "abc",
        "mode": "inductor",
        "hardware": "h200-pcie5",
        "dtype": "bfloat16",
        "optimizer": "adamw",
        "view_replay": True,
        "num_parameters": 8_030_261_248,
        "num_graphs": 1,
        "num_layers": 3,
        "resident_bytes": ResidentBytes(2 * GIB, 0, 2 * GIB, 4 * GIB, MIB, 64 * MIB),
        "capacity_is_given": False,
        "capacity_bytes": 80 * GIB,
        "target_bytes": 10 * GIB,
        "window": WindowForecast(int(1.5 * GIB), 29.13, 55.3e6),
        "baseline": forecast(12, 20.0, BASELINE_SITE),
        "policy": forecast(9, 20.5),
        "num_candidates": 2,
        "num_offloaded": 1,
        "offloaded_bytes": GIB,
        "num_recomputed": 1,
        "host": HostForecast(GIB + 4096, 4096, 200 * GIB, 8, 2000 * GIB),
        "hidden_fraction": 0.95,
        "stall_ms": 0.5,
        "stalls": (("a", 0.5),),
        "optimizer_ms": 1.25,
        "gradient_accumulation_steps": 1,
        "assumes_no_state": False,
        "bound_ms": 20.4,
        "optimality_gap": 0.0049,
        "layer_runs": layer_runs(VERDICTS),
        "verdicts": VERDICTS,
        "baseline_step": SimulatedStep(step(4), simulation(step(4))),
        "policy_step": SimulatedStep(TRACE, simulation(TRACE, stalls_ms={12: 0.5}, copies=copies)),
        "arithmetic": None,
        "diagnostics": (),
    }
    return PlanResult(**{**values, **changes})


def frontier_result(**changes: Any) -> FrontierResult:
    """Build a sweep of two targets, of which one cannot be reached, and one budget."""
    values: dict[str, Any] = {
        "model": "builtin:llama3-8b",
        "mode": "inductor",
        "hardware": "h200-pcie5",
        "capacity_bytes": 80 * GIB,
        "baseline": forecast(12, 20.0, BASELINE_SITE),
        "planned_policy": "fit",
        "planned": (
            FrontierPlan(10 * GIB, forecast(9.5, 20.4), GIB, 3, 0.5, 0.0123),
            FrontierPlan(5 * GIB, None, reason="no plan keeps to it"),
        ),
        "largest_first_policy": "balanced",
        "largest_first": (FrontierPlan(2 * GIB, forecast(10.5, 22.0), 2 * GIB),),
        "floor": FrontierFloor(8 * GIB, (Holding("what stays throughout", 1, 6 * GIB),)),
        "current": plan_result(),
    }
    return FrontierResult(**{**values, **changes})
