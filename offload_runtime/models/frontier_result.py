"""The frontier of a model: what each target of device memory costs in time; no torch, so that reports can read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from offload_runtime.errors import Diagnostic
from offload_runtime.models.plan_result import Holding, PlanResult, StepForecast, forecast_data

__all__ = ["FrontierFloor", "FrontierPlan", "FrontierResult"]


@dataclass(frozen=True)
class FrontierPlan:
    """One plan of a frontier.

    ``asked_bytes`` is the target of device memory, or the budget of what is offloaded. ``forecast`` is None where no
    plan keeps to it, and ``reason`` says why.
    """

    asked_bytes: int
    forecast: StepForecast | None
    offloaded_bytes: int = 0
    num_recomputed: int = 0
    stall_ms: float = 0.0
    optimality_gap: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class FrontierFloor:
    """The least peak that any plan was found to reach, and what is alive there; nothing at the optimizer's step."""

    num_bytes: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class FrontierResult:
    """A sweep: ``planned`` under falling targets, ``largest_first`` under rising budgets, of one captured model.

    ``current`` is the plan of the policy as it was given, None where it cannot hold. ``complete``: no plan is missing.
    """

    model: str
    mode: str
    hardware: str
    capacity_bytes: int
    baseline: StepForecast
    planned_policy: str
    planned: tuple[FrontierPlan, ...]
    largest_first_policy: str
    largest_first: tuple[FrontierPlan, ...]
    floor: FrontierFloor | None
    current: PlanResult | None
    diagnostics: tuple[Diagnostic, ...] = ()
    complete: bool = True

    def to_data(self) -> dict[str, Any]:
        """Return the plain values that ``offload plan --frontier`` writes."""
        return {
            "complete": self.complete,
            "model": self.model,
            "mode": self.mode,
            "hardware": self.hardware,
            "capacity_bytes": self.capacity_bytes,
            "baseline": forecast_data(self.baseline),
            "floor_bytes": None if self.floor is None else self.floor.num_bytes,
            "floor_holdings": [] if self.floor is None else [asdict(held) for held in self.floor.holdings],
            "planned": {
                "policy": self.planned_policy,
                "points": [self._point(plan, "target_bytes") for plan in self.planned],
            },
            "largest_first": {
                "policy": self.largest_first_policy,
                "points": [self._point(plan, "budget_bytes") for plan in self.largest_first],
            },
        }

    def relative(self, forecast: StepForecast) -> float | None:
        """Return the step time as a share of the baseline's."""
        return forecast.step_ms / self.baseline.step_ms if self.baseline.step_ms else None

    def _point(self, plan: FrontierPlan, asked: str) -> dict[str, Any]:
        data: dict[str, Any] = {asked: plan.asked_bytes, "feasible": plan.forecast is not None}
        if plan.forecast is None:
            return {**data, "reason": plan.reason}
        return {
            **data,
            "fits": plan.forecast.fits,
            "peak_device_bytes": plan.forecast.peak_device_bytes,
            "step_ms": plan.forecast.step_ms,
            "relative_step_time": self.relative(plan.forecast),
            "offloaded_bytes": plan.offloaded_bytes,
            "num_recomputed": plan.num_recomputed,
            "stall_ms": plan.stall_ms,
            "optimality_gap": plan.optimality_gap,
        }
