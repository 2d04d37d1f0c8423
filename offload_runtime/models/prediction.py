"""What is predicted of the runs that a comparison makes, beside what it measures.

    baseline    the captured model without a policy, simulated as `offload plan` does it
    policy      the graph that ran, as its own compilation simulated it; where there is none, as `offload plan` does it

The baseline of mode ``inductor`` never goes through the back end on an accelerator, so that only a capture shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.fake_capture import as_traced
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.planning import plan_policy, predict_baseline
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import PredictedRuns, Prediction
from offload_runtime.models.traced_model import trace_request
from offload_runtime.offload_plan import Forecast
from offload_runtime.record import Report

__all__ = ["Predicted", "predict_runs"]


@dataclass(frozen=True)
class Predicted:
    """The predictions, and notes on what could not be predicted."""

    runs: PredictedRuns
    diagnostics: tuple[Diagnostic, ...] = ()


def predict_runs(
    request: ModelRequest, policy: CompiledPolicy, *, mode: str, hardware: HardwareProfile, ran: Report | None
) -> Predicted:
    """Predict peak and step time on ``hardware``; ``ran`` is the report of a policy run there, if there was one.

    What cannot be predicted (a model that fake tensors cannot run) is None, and a note says why.
    """
    try:
        traced = trace_request(request, mode=mode)
        with as_traced(traced.graphs):
            baseline = predict_baseline(traced, hardware)
    except OffloadError as error:
        return Predicted(PredictedRuns(hardware.name), (_not_predicted("", error),))
    whole_ms = baseline.whole_step_ms
    without = Prediction(baseline.forecast.peak_device_bytes, whole_ms(baseline.forecast.step_ms))
    own = _own_forecast(ran, baseline)
    if own is not None:
        peak = max(own.peak_bytes, baseline.optimizer_step_bytes)
        return Predicted(
            PredictedRuns(hardware.name, without, Prediction(peak, whole_ms(own.step_ms))),
            traced.diagnostics,
        )
    try:
        with as_traced(traced.graphs):
            forecast = plan_policy(baseline, policy).policy
    except OffloadError as error:
        return Predicted(PredictedRuns(hardware.name, without), (_not_predicted(" with the policy", error),))
    with_policy = Prediction(forecast.peak_device_bytes, whole_ms(forecast.step_ms))
    return Predicted(PredictedRuns(hardware.name, without, with_policy), traced.diagnostics)


def _own_forecast(ran: Report | None, baseline: Baseline) -> Forecast | None:
    """Return the forecast of the graph that ran, if it is the whole step: one graph, and its loss inside of it."""
    if ran is None or ran.num_graphs != 1 or baseline.traced.loss_graphs:
        return None
    return ran.graphs[0].forecast


def _not_predicted(what: str, error: OffloadError) -> Diagnostic:
    first = error.diagnostics[0]
    message = f"the step{what} is not predicted: {first.message}"
    return Diagnostic("MOD737", "note", message, hint=first.hint)
