"""`offload explain`: what a policy does with each saved tensor of a model, and why."""

from __future__ import annotations

import shlex
from typing import Unpack

import click

from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.options import (
    DECIDED_FOR,
    ModelOptions,
    format_option,
    hardware_option,
    mode_option,
    model_options,
    model_request,
    repeated_arguments,
    rows_options,
    set_option,
)
from offload_runtime.cli.outcome import EXIT_FINDINGS, Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.compiler import load_policy
from offload_runtime.hardware import load_hardware
from offload_runtime.reporting.explanation import GROUPINGS, Grouping, explanation_data, render_explanation


@click.command(short_help="Say what POLICY does with each saved tensor.")
@click.argument("policy")
@model_options
@mode_option
@hardware_option(DECIDED_FOR)
@rows_options(GROUPINGS, default="rule", one_row="each rule, layer or tensor", held="tensor")
@set_option
@format_option()
def command(
    policy: str,
    mode: str,
    hardware: str | None,
    device_memory: int | None,
    by: Grouping,
    limit: int | None,
    overrides: tuple[str, ...],
    **model: Unpack[ModelOptions],
) -> Outcome:
    """Say for each saved tensor of a model what POLICY does with it, by which rule, and why.

    POLICY is a path or the name of a shipped policy (`offload list policies`). The model is traced without
    weights and without a device, and never runs, unless its own code needs values. Fates: save, recompute,
    offload, or skip (a parameter, an input, an output).

    \b
    Example:
      offload explain balanced --model builtin:llama-tiny --by tensor --limit 20
    """
    compiled = load_policy(policy, overrides=overrides)
    profile = load_hardware(hardware) if hardware is not None else None
    # From here on torch is needed; a policy with a mistake in it has been refused without.
    from offload_runtime.models.explanation import explain_policy
    from offload_runtime.models.hardware_here import profile_of_memory

    request = model_request(model)
    profile = profile_of_memory(profile, request.device, device_memory)
    with foreign_code(), shown_progress() as advance:
        report = explain_policy(request, compiled, mode=mode, hardware=profile, progress=advance)
    again = repeated_arguments(model, mode, hardware, overrides, device_memory=device_memory)
    findings = (*report.diagnostics, *(found for graph in report.graphs for found in graph.diagnostics))
    return Outcome(
        data=explanation_data(report),
        text=render_explanation(report, request.spec, by=by, limit=limit),
        diagnostics=findings,
        exit_code=EXIT_FINDINGS if any(finding.is_error for finding in findings) else 0,
        next=(shlex.join(["offload", "apply", policy, *again]),),
    )
