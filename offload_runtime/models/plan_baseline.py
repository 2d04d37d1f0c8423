"""A traced model on a hardware profile, and what is predicted of it without a policy: what plans are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.optimizer_step import (
    accumulation_ms,
    optimizer_step_bytes,
    optimizer_step_holdings,
    optimizer_step_ms,
    rounding_ms,
)
from offload_runtime.models.plan_result import Holding, ResidentBytes, StepForecast, WindowForecast
from offload_runtime.models.planned_model import PlannedModel
from offload_runtime.models.traced_model import TracedModel

__all__ = ["Baseline"]


@dataclass(frozen=True, eq=False)
class Baseline:
    """A traced model on a hardware profile, and what is predicted of it without a policy.

    Without ``view_replay`` plans are those of an offloader that knows of no views; a run always replays them.
    ``optimizer_is_given``: the caller named it, and it is not merely the model's default. ``eager_peak_bytes`` is the
    peak of a loop that is not compiled; None where it was not asked for, or is not known.
    """

    traced: TracedModel
    hardware: HardwareProfile
    optimizer: str
    resident: ResidentBytes
    planned: PlannedModel
    forecast: StepForecast
    window: WindowForecast
    view_replay: bool = True
    optimizer_is_given: bool = True
    eager_peak_bytes: int | None = None

    @property
    def optimizer_step_bytes(self) -> int:
        """Device bytes of the optimizer's step."""
        return optimizer_step_bytes(self.resident, self.optimizer)

    @property
    def optimizer_step_holdings(self) -> tuple[Holding, ...]:
        """What is alive on the device in the optimizer's step beside what stays throughout."""
        parameters = self.traced.model.module.parameters()
        num_trained = sum(parameter.requires_grad for parameter in parameters)
        return optimizer_step_holdings(self.resident, self.optimizer, num_trained)

    @property
    def optimizer_ms(self) -> float:
        """What a step takes beside forward and backward: adding gradients up, and the optimizer's step."""
        resident, number = self.resident, self.traced.model.gradient_accumulation_steps
        adding_ms = accumulation_ms(number, resident.gradients, self.hardware)
        stepping_ms = optimizer_step_ms(self.optimizer, resident.stepped, self.hardware)
        return adding_ms + stepping_ms + rounding_ms(resident, self.hardware)

    def whole_step_ms(self, step_ms: float) -> float:
        """Return what a step takes whose forward and backward of one batch take ``step_ms``."""
        return self.traced.model.gradient_accumulation_steps * step_ms + self.optimizer_ms
