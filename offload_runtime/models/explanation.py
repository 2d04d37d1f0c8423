"""What a policy decides for the saved tensors of a model, without running it.

request -> joint graphs, traced with fake tensors -> the rewrite that a run would do -> verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, PolicyError, RunError
from offload_runtime.hardware import HardwareProfile
from offload_runtime.judgement import judge_layers, judge_matches
from offload_runtime.models.fake_capture import (
    CapturedModel,
    NotTraceable,
    as_traced,
    capture_request,
)
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.training import TrainingPlan, train
from offload_runtime.passes.pipeline import RewrittenPair, rewrite_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.record import Report
from offload_runtime.runtime.backend import OPS
from offload_runtime.runtime.options import refuse_unsupported
from offload_runtime.runtime.session import graph_report
from offload_runtime.runtime.setting import setting_for
from offload_runtime.simulator import peak_memory

__all__ = ["explain_policies", "explain_policy", "explain_real_step"]

_BROKEN = "where the parts of a broken graph stand in the model shows only when they run"

Progress = Callable[[str, int, int], None]


def explain_policy(
    request: ModelRequest,
    policy: CompiledPolicy,
    *,
    mode: str,
    hardware: HardwareProfile | None = None,
    progress: Progress | None = None,
) -> Report:
    """Trace the model of ``request`` with fake tensors, and return what ``policy`` decides: what a run would do.

    With ``hardware`` it is what a run on that device would do; without, on the device of ``request``. A model that
    fake tensors cannot run, or that breaks the graph, is explained by one real step, and a note says so; else
    nothing has moved in the report. Raises PolicyError where a rule matches nothing, RefusedError for what cannot
    be carried out, and what ``compare_training`` raises for a model that cannot be had.
    """
    (report,) = explain_policies(request, (policy,), mode=mode, hardware=hardware, progress=progress)
    return report


def explain_policies(
    request: ModelRequest,
    policies: Sequence[CompiledPolicy],
    *,
    mode: str,
    hardware: HardwareProfile | None = None,
    progress: Progress | None = None,
) -> tuple[Report, ...]:
    """Trace the model of ``request`` once, and return what each of ``policies`` decides for the same tensors.

    Raises as `explain_policy` does, for the first policy that gives cause.
    """
    device = torch.device(request.device)
    settings = []
    for policy in policies:
        refuse_unsupported(policy.policy, mode, hardware)
        settings.append(setting_for(policy.policy, hardware, device))
    num_steps = 1 + len(policies)
    notify = progress or (lambda phase, done, total: None)
    notify("policy", 0, num_steps)
    on_accelerator = device.type == "cuda" or hardware is not None
    try:
        captured = capture_request(request, mode=mode, accelerator=on_accelerator)
        reason = _BROKEN if any(graph.inputs.names.partial for graph in captured.graphs) else ""
    except NotTraceable as error:
        reason = f"fake tensors cannot run it: {error}"
    reports = []
    for index, (policy, setting) in enumerate(zip(policies, settings, strict=True), start=1):
        notify("policy", index, num_steps)
        if reason:
            found = explain_real_step(request, policy, mode=mode, hardware=hardware)
            note = _real_step(request, reason)
            reports.append(replace(found, diagnostics=(note, *found.diagnostics)))
        else:
            pairs = _rewritten(captured, policy, mode, setting)
            reports.append(_report(pairs, policy, mode, str(device)))
    notify("policy", num_steps, num_steps)
    return tuple(reports)


def explain_real_step(
    request: ModelRequest, policy: CompiledPolicy, *, mode: str, hardware: HardwareProfile | None = None
) -> Report:
    """Run one training step under ``policy``, and return its report.

    Raises as ``compare_training`` does, and RunError where the step runs out of device memory.
    """
    plan = TrainingPlan("policy", policy, mode, steps=1, hardware=hardware)
    training = train(request, plan, lambda done, total: None)
    if training is None:
        message = f"{request.spec} runs out of device memory with policy {policy.name}"
        hint = "offload or recompute more, or give fewer --layers, a smaller --batch or --seq"
        raise RunError(Diagnostic("MOD734", "error", message, hint=hint))
    assert training.report is not None, "a policy always runs through the offload back end"
    return training.report


def _rewritten(
    captured: CapturedModel, policy: CompiledPolicy, mode: str, setting: Setting
) -> tuple[RewrittenPair, ...]:
    """Rewrite every graph as the back end does; transfers get numbers that mean nothing to the runtime."""
    numbers = itertools.count()
    with as_traced(captured.graphs):
        return tuple(
            rewrite_joint(
                graph.copy(),
                graph.inputs,
                policy=policy,
                mode=mode,
                variant="policy",
                ops=OPS,
                register=lambda source: next(numbers),
                setting=setting,
            )
            for graph in captured.graphs
        )


def _report(pairs: Sequence[RewrittenPair], policy: CompiledPolicy, mode: str, device: str) -> Report:
    """Judge the whole model, and return the report of a step that was never run."""
    activations = [activation for pair in pairs for activation in pair.planned.judged_activations]
    graphs = tuple(graph_report(pair, index, mode=mode, variant="policy") for index, pair in enumerate(pairs))
    has_layers = any(graph.layer_table for graph in graphs)
    findings = (
        *judge_matches(policy, activations),
        *judge_layers(policy.policy, activations, has_layers=has_layers),
    )
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        raise PolicyError(*errors)
    return Report(
        policy=policy.name,
        policy_hash=policy.hash,
        mode=mode,
        device=device,
        engine="none",
        graphs=graphs,
        planned_bytes=sum(graph.plan.planned_bytes for graph in graphs),
        moved_bytes=0,
        reloaded_bytes=0,
        host_bytes=0,
        host_waste_bytes=0,
        simulated_peak=peak_memory([pair.tape for pair in pairs]),
        diagnostics=findings,
    )


def _real_step(request: ModelRequest, reason: str) -> Diagnostic:
    message = f"explained {request.spec} by a real training step: {reason}"
    hint = (
        "look for what breaks the graph with TORCH_LOGS=graph_breaks, or computes with values outside of it"
    )
    return Diagnostic("MOD736", "note", message, hint=hint)
