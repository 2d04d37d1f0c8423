"""What a policy would do for a model on hardware that need not be there: the whole of ``offload plan``.

    request -> traced model -> baseline (no policy) -> plan under the policy -> PlanResult

Nothing is computed; no device and no weights are needed. The plan is the one that a run makes of the same graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, PolicyError
from offload_runtime.hardware import HardwareProfile, load_hardware
from offload_runtime.judgement import judge_layers, judge_matches, judge_moved
from offload_runtime.models.eager_step import eager_peak_bytes
from offload_runtime.models.fake_capture import NotTraceable
from offload_runtime.models.layer_runs import layer_runs
from offload_runtime.models.optimizer_step import resident_bytes
from offload_runtime.models.plan_arithmetic import arithmetic_of
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.plan_limits import (
    host_forecast,
    judge_offloads,
    judge_target,
    judge_time,
    limits_in_bytes,
    refuse_host_overflow,
    refuse_optimizer_step,
    refuse_several_graphs,
)
from offload_runtime.models.plan_result import (
    HostForecast,
    PlanResult,
    ResidentBytes,
    StepForecast,
    WindowForecast,
)
from offload_runtime.models.planned_model import PlannedModel, count_candidates, plan_graphs, plan_loss
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.traced_model import TracedModel, trace_request
from offload_runtime.offload_plan import OffloadPlan, TensorVerdict
from offload_runtime.planning import window_bound
from offload_runtime.policy import Limits
from offload_runtime.runtime.options import refuse_unsupported

__all__ = [
    "Progress",
    "baseline_of",
    "plan",
    "plan_model",
    "plan_policy",
    "predict_baseline",
]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(phase, done, total)``."""

_NO_POLICY = {
    "apiVersion": "offload/v1",
    "kind": "Policy",
    "name": "baseline",
    "activations": {"default": "auto"},
}


def plan_model(
    request: ModelRequest,
    policy: CompiledPolicy | str | Path | Mapping[str, Any],
    *,
    mode: str = "graph",
    hardware: HardwareProfile | str,
    view_replay: bool = True,
    progress: Progress | None = None,
) -> PlanResult:
    """Predict what ``policy`` does for the model of ``request`` on ``hardware`` (a profile, or the name of one).

    ``view_replay`` is that of `Baseline`. Raises PolicyError where a rule matches nothing, and RefusedError for a
    model that cannot be traced, and for limits that no plan keeps to, naming the floor and what holds it.
    """
    compiled = load_policy(policy)
    profile = load_hardware(hardware) if isinstance(hardware, str) else hardware
    notify = progress or (lambda phase, done, total: None)
    baseline = baseline_of(
        request, compiled, mode=mode, hardware=profile, view_replay=view_replay, progress=notify
    )
    notify("plan", 0, 1)
    result = plan_policy(baseline, compiled)
    notify("plan", 1, 1)
    return result


def baseline_of(
    request: ModelRequest,
    policy: CompiledPolicy,
    *,
    mode: str,
    hardware: HardwareProfile,
    view_replay: bool = True,
    master_weights: bool = False,
    with_eager: bool = False,
    progress: Progress | None = None,
) -> Baseline:
    """Trace the model of ``request`` and simulate it without a policy, unless ``mode`` cannot honour ``policy``.

    ``view_replay`` and ``master_weights`` are those of `predict_baseline`; ``with_eager`` also counts the peak of a
    loop that is not compiled.
    Raises RefusedError for such a policy, and for a model that cannot be traced.
    """
    refuse_unsupported(policy.policy, mode, hardware)
    notify = progress or (lambda phase, done, total: None)
    notify("trace", 0, 1)
    traced = trace_request(request, mode=mode)
    notify("trace", 1, 1)
    notify("baseline", 0, 1)
    baseline = predict_baseline(traced, hardware, view_replay=view_replay, master_weights=master_weights)
    notify("baseline", 1, 1)
    if with_eager:
        notify("eager", 0, 1)
        baseline = replace(baseline, eager_peak_bytes=_eager_peak_bytes(baseline))
        notify("eager", 1, 1)
    return replace(baseline, optimizer_is_given=request.optimizer is not None)


def _eager_peak_bytes(baseline: Baseline) -> int | None:
    """Return the peak of an eager loop: of forward and backward, or of the optimizer's step; None if not known."""
    try:
        found = eager_peak_bytes(baseline.traced.model)
    except NotTraceable:
        return None
    resident = baseline.resident
    return max(found + resident.optimizer_state + resident.workspace, baseline.optimizer_step_bytes)


def plan(
    joint: TracedModel,
    policy: CompiledPolicy | str | Path | Mapping[str, Any],
    hardware: HardwareProfile | str | Path | Mapping[str, Any],
) -> OffloadPlan:
    """Return what ``policy`` does with the saved tensors of a captured model on ``hardware``, and when.

    ``joint`` comes from `capture`. ValueError where it has several graphs (after graph breaks): a plan names
    positions of one graph. Raises as `plan_model` does.
    """
    if len(joint.graphs) != 1:
        raise ValueError(
            f"{joint.model.name} was captured as {len(joint.graphs)} graphs, and a plan is of one graph"
        )
    compiled = load_policy(policy)
    profile = hardware if isinstance(hardware, HardwareProfile) else load_hardware(hardware)
    refuse_unsupported(compiled.policy, joint.mode, profile)
    resident = _resident(joint, profile)
    limits = limits_in_bytes(compiled, profile)
    refuse_optimizer_step(compiled, limits, resident, joint.model.optimizer, profile.device_memory_bytes)
    planned = plan_graphs(
        joint, compiled, variant="policy", limits=limits, hardware=profile, resident=resident
    )
    refuse_host_overflow(compiled, host_forecast(planned, limits), profile)
    return planned.pairs[0].plan


def predict_baseline(
    traced: TracedModel, hardware: HardwareProfile, *, view_replay: bool = True, master_weights: bool = False
) -> Baseline:
    """Simulate the model without a policy: in mode ``graph`` everything is saved, in ``inductor`` torch decides.

    With ``master_weights`` its optimizer keeps float32 copies of 16-bit parameters, and float32 moments.
    """
    no_policy = load_policy(_NO_POLICY)
    resident = _resident(traced, hardware, master_weights=master_weights)
    optimizer = traced.model.optimizer
    planned = plan_graphs(
        traced,
        no_policy,
        variant="baseline",
        limits=Limits(),
        hardware=hardware,
        resident=resident,
        loss_pairs=plan_loss(traced, no_policy, hardware),
        view_replay=view_replay,
    )
    window = window_bound(planned.offloadable_trace(), hardware.link())
    found = Baseline(
        traced=traced,
        hardware=hardware,
        optimizer=optimizer,
        resident=resident,
        planned=planned,
        forecast=planned.forecast(()),
        window=WindowForecast(
            window.num_bytes,
            window.duration_ms,
            hardware.link().d2h_bytes_per_ms,
            hardware.link().contention,
        ),
        view_replay=view_replay,
    )
    return replace(found, forecast=planned.forecast(found.optimizer_step_holdings))


def plan_policy(baseline: Baseline, policy: CompiledPolicy) -> PlanResult:
    """Plan the model of ``baseline`` under ``policy``. Raises as `plan_model` does."""
    traced, hardware = baseline.traced, baseline.hardware
    limits = limits_in_bytes(policy, hardware)
    refuse_several_graphs(policy, limits, len(traced.graphs))
    refuse_optimizer_step(policy, limits, baseline.resident, baseline.optimizer, hardware.device_memory_bytes)
    planned = plan_graphs(
        traced,
        policy,
        variant="policy",
        limits=limits,
        hardware=hardware,
        resident=baseline.resident,
        loss_pairs=baseline.planned.loss_pairs,
        view_replay=baseline.view_replay,
    )
    findings = _judge(policy, planned)
    host = host_forecast(planned, limits)
    refuse_host_overflow(policy, host, hardware)
    forecast = planned.forecast(baseline.optimizer_step_holdings)
    findings += (
        *judge_target(policy, limits, forecast),
        *judge_time(policy, limits, baseline.forecast, forecast),
        *judge_offloads(planned, forecast),
        *judge_moved(policy.policy, sum(pair.plan.planned_bytes for pair in planned.pairs)),
        *(found for pair in planned.pairs for found in pair.diagnostics),
    )
    return _result(baseline, policy, limits, planned, forecast, host, (*traced.diagnostics, *findings))


def _resident(
    traced: TracedModel, hardware: HardwareProfile, *, master_weights: bool = False
) -> ResidentBytes:
    model = traced.model
    return resident_bytes(
        traced.state,
        model.optimizer,
        hardware,
        gradient_accumulation_steps=model.gradient_accumulation_steps,
        master_weights=master_weights,
    )


def _result(
    baseline: Baseline,
    policy: CompiledPolicy,
    limits: Limits,
    planned: PlannedModel,
    forecast: StepForecast,
    host: HostForecast,
    diagnostics: tuple[Diagnostic, ...],
) -> PlanResult:
    traced, model = baseline.traced, baseline.traced.model
    verdicts = _verdicts_that_matter(baseline.planned, planned)
    simulation = planned.step.simulation
    is_planned = policy.policy.schedule.select == "planned"
    bound_ms, gap = _optimality(planned)
    return PlanResult(
        model=model.name,
        policy_name=policy.name,
        policy_hash=policy.hash,
        mode=traced.mode,
        hardware=baseline.hardware.name,
        dtype=model.dtype,
        optimizer=baseline.optimizer,
        view_replay=baseline.view_replay,
        num_parameters=model.num_parameters,
        num_graphs=len(traced.graphs),
        num_layers=planned.num_layers,
        resident_bytes=baseline.resident,
        capacity_bytes=baseline.hardware.device_memory_bytes,
        capacity_is_given=baseline.hardware.has_given_memory,
        target_bytes=limits.device_peak if isinstance(limits.device_peak, int) else None,
        window=baseline.window,
        baseline=baseline.forecast,
        policy=forecast,
        num_candidates=count_candidates(
            (baseline.planned if is_planned else planned).pairs, policy, among_saved=is_planned
        ),
        num_offloaded=sum(verdict.fate == "offload" for verdict in verdicts),
        offloaded_bytes=sum(pair.plan.planned_bytes for pair in planned.pairs),
        num_recomputed=sum(verdict.fate == "recompute" for verdict in verdicts),
        host=host,
        hidden_fraction=simulation.hidden_fraction,
        stall_ms=simulation.stall_ms,
        stalls=_stalls(planned),
        optimizer_ms=baseline.optimizer_ms,
        gradient_accumulation_steps=model.gradient_accumulation_steps,
        assumes_no_state=not (
            baseline.optimizer_is_given
            or baseline.resident.optimizer_state
            or not baseline.resident.gradients
        ),
        bound_ms=bound_ms,
        optimality_gap=gap,
        layer_runs=layer_runs(verdicts),
        verdicts=verdicts,
        baseline_step=baseline.planned.step,
        policy_step=planned.step,
        arithmetic=arithmetic_of(baseline, policy),
        diagnostics=tuple(dict.fromkeys(diagnostics)),
        prediction_error=baseline.hardware.prediction_error,
        eager_peak_bytes=baseline.eager_peak_bytes,
    )


def _verdicts_that_matter(baseline: PlannedModel, planned: PlannedModel) -> tuple[TensorVerdict, ...]:
    """Return the verdicts, without those on what is computed again in the baseline too: nothing was to be decided."""
    verdicts: list[TensorVerdict] = []
    for before, after in zip(baseline.pairs, planned.pairs, strict=True):
        saved = {candidate.activation.name for candidate in before.selected.candidates}
        verdicts += [
            verdict
            for verdict in after.plan.verdicts
            if verdict.fate != "recompute" or verdict.activation.name in saved
        ]
    return tuple(verdicts)


def _judge(policy: CompiledPolicy, planned: PlannedModel) -> tuple[Diagnostic, ...]:
    """Judge rules over all graphs; raises PolicyError where one does nothing that has to."""
    activations = [activation for pair in planned.pairs for activation in pair.judged_activations]
    findings = (
        *judge_matches(policy, activations),
        *judge_layers(policy.policy, activations, has_layers=planned.num_layers is not None),
    )
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        raise PolicyError(*errors)
    return findings


def _stalls(planned: PlannedModel) -> tuple[tuple[str, float], ...]:
    waits: dict[str, float] = {}
    for copy in planned.step.simulation.copies:
        if copy.stall_ms > 0:
            waits[copy.item] = waits.get(copy.item, 0.0) + copy.stall_ms
    return tuple(sorted(waits.items(), key=lambda stall: (-stall[1], stall[0])))


def _optimality(planned: PlannedModel) -> tuple[float | None, float | None]:
    """Return the bound on the step time, and how far the plan is above its bound: of time, or else of the peak."""
    steps = [pair.selected.planned for pair in planned.pairs]
    if any(step is None for step in steps):
        return None, None
    bounds_ms = [step.bound_ms for step in steps if step is not None and step.bound_ms is not None]
    if len(bounds_ms) == len(steps):
        bound_ms = sum(bounds_ms)
        reached_ms = sum(link.simulation.step_ms for link in planned.links[: len(steps)])
        return bound_ms, max(0.0, reached_ms / bound_ms - 1) if bound_ms else None
    (first, *others) = steps
    if others or first is None or not first.bound_bytes:
        return None, None
    return None, max(0.0, planned.links[0].simulation.peak_bytes / first.bound_bytes - 1)
