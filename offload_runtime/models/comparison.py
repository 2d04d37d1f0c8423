"""Training with and without a policy, and what that shows: the whole of ``offload apply``.

    measured:  baseline (no policy), policy                   memory, time, transfers
    compared:  policy, reference (each offload is a save)     losses, gradients, parameters, buffers, bitwise

On an accelerator measured and compared runs are separate, because deterministic kernels and the copies that
are compared would spoil both time and memory. Without one nothing is timed, and three runs serve for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, RefusedError, RunError
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.construction import refuse_if_short
from offload_runtime.models.environment import read_environment
from offload_runtime.models.findings import findings
from offload_runtime.models.layer_runs import layer_runs
from offload_runtime.models.numbers import first_step_difference
from offload_runtime.models.prediction import Predicted, predict_runs
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import (
    ApplyResult,
    BitwiseScope,
    Difference,
    Losses,
    PredictedRuns,
    RunResult,
)
from offload_runtime.models.training import Training, TrainingPlan, train
from offload_runtime.offload_plan import Variant
from offload_runtime.record import Report
from offload_runtime.runtime.options import refuse_unsupported
from offload_runtime.runtime.setting import (
    needs_hardware,
    profile_of_device,
    read_hardware_option,
    resolve_limits,
    setting_for,
)

Progress = Callable[[str, int, int], None]
"""Called as ``progress(phase, steps_done, num_steps)`` after each step."""


@dataclass(frozen=True)
class _Compared:
    """The two runs whose numbers are compared, at ``num_layers`` layers; None where they did not fit."""

    policy: Training | None
    reference: Training | None
    scope: BitwiseScope
    deterministic: bool
    diagnostics: tuple[Diagnostic, ...] = ()


def compare_training(
    request: ModelRequest,
    policy: CompiledPolicy | str | Path | Mapping[str, Any],
    *,
    steps: int = 3,
    mode: str = "graph",
    hardware: HardwareProfile | str | Path | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ApplyResult:
    """Train ``request`` without the policy, with it, and with its offloads replaced by saves.

    All runs start from the same seed and see the same data. ``mode`` is ``graph`` or ``inductor``. What a profile
    of the hardware predicts stands beside what was measured: ``hardware``, or that of the device. Findings
    (numbers that differ, bytes that were planned and not moved, ``expect`` missed) are diagnostics of the
    result. Raises PolicyError, RefusedError or RunError where nothing could be compared.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if mode not in ("graph", "inductor"):
        raise ValueError(f"mode={mode!r} must be one of graph, inductor")
    compiled_policy = load_policy(policy)
    refuse_unsupported(compiled_policy.policy, mode)
    device = torch.device(request.device)
    profile = _profile(compiled_policy, hardware, device)
    plan = TrainingPlan("policy", _settled(compiled_policy, device, profile), mode, steps, profile)
    runner = _Runner(request, plan, progress or (lambda phase, done, total: None))
    return runner.on_accelerator() if device.type == "cuda" else runner.simulated()


def _settled(policy: CompiledPolicy, device: torch.device, profile: HardwareProfile | None) -> CompiledPolicy:
    """Return the policy with ``device_peak: auto`` in bytes: all runs of a comparison have to plan for the same."""
    limits = resolve_limits(policy.policy.limits, device, profile)
    return replace(policy, policy=replace(policy.policy, limits=limits))


def _profile(policy: CompiledPolicy, given: object, device: torch.device) -> HardwareProfile | None:
    """Return the profile that was given, or that of the device.

    Raises RefusedError, before anything is trained, where there is none and the policy plans by time.
    """
    profile = read_hardware_option(given)
    if profile is None and torch.cuda.is_available():
        profile = profile_of_device(device)
    if profile is None and needs_hardware(policy.policy):
        setting_for(policy.policy, None, device)
    return profile


@dataclass(frozen=True)
class _Runner:
    """One comparison under way: which model, which policy, and whom to tell."""

    request: ModelRequest
    plan: TrainingPlan
    progress: Progress

    def simulated(self) -> ApplyResult:
        """Compare on the CPU: the simulator gives the peaks, and three runs serve for everything."""
        predicted = self.predicted(None)
        if (peak_bytes := predicted.runs.baseline.peak_device_bytes) is not None:
            refuse_if_short(f"a step of {self.request.spec}, run on the CPU,", peak_bytes)
        baseline = self.run("baseline", deterministic=True)
        assert baseline is not None, "a CPU does not run out of device memory"
        compared = self.compared(self.request)
        assert compared.policy is not None
        return self.result(baseline, compared.policy, compared, predicted)

    def on_accelerator(self) -> ApplyResult:
        """Measure baseline and policy, then compare numbers, at fewer layers where all do not fit."""
        baseline = self.run("baseline")
        policy = self.run("policy", profile=True)
        if policy is None:
            hint = "offload or recompute more, or give fewer --layers, a smaller --batch or --seq"
            message = f"{self.request.spec} runs out of device memory with policy {self.plan.policy.name}"
            message += "" if baseline is not None else ", as it does without"
            raise RunError(Diagnostic("MOD734", "error", message, hint=hint))
        compared = self.compared(self.request)
        if compared.policy is None:
            compared = self.reduced(policy.num_layers)
        predicted = self.predicted(policy.report)
        runs = _beside(predicted.runs, _run_result(baseline), _run_result(policy))
        return self.result(baseline, policy, compared, replace(predicted, runs=runs))

    def run(
        self, variant: Variant, *, request: ModelRequest | None = None, **changes: Any
    ) -> Training | None:
        """Train once; None if the device ran out of memory."""
        request = request or self.request
        phase = variant if request == self.request else f"{variant}, {request.layers} layers"
        plan = replace(self.plan, variant=variant, **changes)
        return train(request, plan, lambda done, total: self.progress(phase, done, total))

    def compared(self, request: ModelRequest, scope: BitwiseScope = "full") -> _Compared:
        """Run reference and policy for their numbers, without deterministic kernels where some have none."""
        try:
            return _Compared(*self._pair(request, deterministic=True), scope, True)
        except RunError as error:
            if "deterministic implementation" not in str(error):
                raise
            cause = _not_deterministic(error)
        return _Compared(*self._pair(request, deterministic=False), scope, False, (cause,))

    def _pair(self, request: ModelRequest, *, deterministic: bool) -> tuple[Training | None, Training | None]:
        reference = self.run("reference", request=request, numbers=True, deterministic=deterministic)
        if reference is None:
            return None, None
        policy = self.run(
            "policy", request=request, numbers=True, deterministic=deterministic, against=reference.final
        )
        if policy is not None and policy.start != reference.start:
            message = f"{self.request.spec} starts from other weights or data each time it is built"
            hint = "draw what is random from torch's generator, which is seeded before the function is called"
            raise RefusedError(Diagnostic("MOD735", "error", message, hint=hint))
        return policy, reference

    def reduced(self, num_layers: int | None) -> _Compared:
        """Compare at the largest number of layers whose reference fits, found by bisection."""
        nothing = _Compared(None, None, "reduced", deterministic=False)
        fits, too_many = 0, num_layers or 1
        while too_many - fits > 1:
            layers = (fits + too_many) // 2
            probe = self.run("reference", request=self.request.with_layers(layers), steps=1)
            fits, too_many = (fits, layers) if probe is None else (layers, too_many)
        # The compared run holds fingerprints and other kernels' workspaces beside what the probe held.
        for layers in range(fits, 0, -1):
            compared = self.compared(self.request.with_layers(layers), "reduced")
            if compared.policy is not None:
                return compared
        return nothing

    def predicted(self, ran: Report | None) -> Predicted:
        """Predict baseline and policy, where the hardware is known; ``ran`` is what a policy run on it reports."""
        profile = self.plan.hardware
        if profile is None:
            return Predicted(PredictedRuns())
        self.progress("prediction", 0, 1)
        found = predict_runs(self.request, self.plan.policy, mode=self.plan.mode, hardware=profile, ran=ran)
        self.progress("prediction", 1, 1)
        return found

    def result(
        self, baseline: Training | None, policy: Training, compared: _Compared, predicted: Predicted
    ) -> ApplyResult:
        """Put together what the runs showed and what was predicted."""
        difference = _first_difference(compared)
        report = policy.report
        assert report is not None, "a policy always runs through the offload back end"
        runs = _run_result(baseline), _run_result(policy)
        identical = None if compared.policy is None else difference is None
        result = ApplyResult(
            model=self.request.spec,
            inputs=policy.inputs,
            environment=read_environment(torch.device(report.device)),
            policy_name=self.plan.policy.name,
            policy_hash=self.plan.policy.hash,
            mode=self.plan.mode,
            device=report.device,
            engine=report.engine,
            dtype=policy.dtype,
            optimizer=policy.optimizer,
            num_parameters=policy.num_parameters,
            steps=self.plan.steps,
            seed=self.request.seed,
            bitwise_identical=identical,
            bitwise_scope=compared.scope,
            bitwise_layers=compared.policy.num_layers if compared.policy is not None else None,
            deterministic=compared.deterministic,
            first_difference=difference,
            losses=Losses(
                _losses(baseline),
                policy.losses,
                _losses(compared.policy),
                _losses(compared.reference),
            ),
            baseline=runs[0],
            policy=runs[1],
            reference=replace(_run_result(compared.reference), step_ms=None),
            predicted=predicted.runs,
            planned_bytes=report.planned_bytes,
            moved_bytes=report.moved_bytes,
            host_bytes=report.host_bytes,
            host_waste_bytes=report.host_waste_bytes,
            hidden_fraction=report.hidden_fraction,
            stall_ms=report.stall_ms,
            stalls=report.stalls,
            num_pins=policy.num_pins,
            numa=report.numa,
            num_graphs=report.num_graphs,
            layer_runs=layer_runs(report.tensors),
            diagnostics=(),
            gradient_accumulation_steps=self.request.gradient_accumulation_steps,
        )
        findings = (*self._diagnostics(result, report, compared), *predicted.diagnostics)
        return replace(result, diagnostics=tuple(dict.fromkeys(findings)))

    def _diagnostics(
        self, result: ApplyResult, report: Report, compared: _Compared
    ) -> tuple[Diagnostic, ...]:
        said = [*report.diagnostics, *(found for graph in report.graphs for found in graph.diagnostics)]
        ours = findings(result, self.plan.policy.policy)
        return tuple(dict.fromkeys([*said, *compared.diagnostics, *ours]))


def _losses(training: Training | None) -> tuple[float, ...]:
    return () if training is None else training.losses


def _run_result(training: Training | None) -> RunResult:
    if training is None:
        return RunResult(fits=False, peak_device_bytes=None, step_ms=None)
    return RunResult(True, training.peak_device_bytes, training.step_ms)


def _beside(predicted: PredictedRuns, baseline: RunResult, policy: RunResult) -> PredictedRuns:
    return replace(
        predicted, baseline=predicted.baseline.beside(baseline), policy=predicted.policy.beside(policy)
    )


def _first_difference(compared: _Compared) -> Difference | None:
    policy, reference = compared.policy, compared.reference
    if policy is None or reference is None:
        return None
    for step, (ours, theirs) in enumerate(zip(policy.steps, reference.steps, strict=True), start=1):
        difference = first_step_difference(ours, theirs, step)
        if difference is not None:
            return difference
    return policy.final_difference


def _not_deterministic(error: RunError) -> Diagnostic:
    cause = error.diagnostics[0].message
    return Diagnostic(
        "MOD741",
        "warning",
        f"the numbers were compared without deterministic kernels: {cause}",
        hint="a difference may then be the kernel's own; replace the operator to be sure",
    )
