"""`offload diff`: the saved tensors of a model whose fate changes from one policy to another."""

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
)
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.compiler import load_policy
from offload_runtime.hardware import load_hardware
from offload_runtime.reporting.policy_difference import (
    DIFFERENCE_GROUPINGS,
    DifferenceGrouping,
    difference_data,
    policy_difference,
    render_difference,
)


@click.command(short_help="Show whose fate changes from policy A to policy B.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@model_options
@mode_option
@hardware_option(DECIDED_FOR)
@rows_options(
    DIFFERENCE_GROUPINGS,
    default="change",
    one_row="tensors that change alike, or for each tensor",
    held="change",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override one value of B, such as limits.budget=8GiB. Repeatable.",
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 where any fate or rule differs, like git diff.")
@format_option()
def command(
    before: str,
    after: str,
    mode: str,
    hardware: str | None,
    device_memory: int | None,
    by: DifferenceGrouping,
    limit: int | None,
    overrides: tuple[str, ...],
    exit_code: bool,
    **model: Unpack[ModelOptions],
) -> Outcome:
    """Show the saved tensors of a model whose fate or rule changes from policy A to policy B.

    A and B are paths or names of shipped policies (`offload list policies`). The model is traced once, with fake
    tensors, and never runs, unless its own code needs values. Bytes are those that each fate holds, before and after.

    \b
    Example:
      offload diff conservative balanced --model builtin:llama-tiny
      offload diff balanced balanced --set limits.budget=4MiB --model builtin:llama-tiny --exit-code
    """
    policies = (load_policy(before), load_policy(after, overrides=overrides))
    profile = load_hardware(hardware) if hardware is not None else None
    # From here on torch is needed; a policy with a mistake in it has been refused without.
    from offload_runtime.models.explanation import explain_policies
    from offload_runtime.models.hardware_here import profile_of_memory

    request = model_request(model)
    profile = profile_of_memory(profile, request.device, device_memory)
    with foreign_code(), shown_progress() as advance:
        reports = explain_policies(request, policies, mode=mode, hardware=profile, progress=advance)
    difference = policy_difference(*reports)
    findings = tuple(dict.fromkeys(found for report in reports for found in report.diagnostics))
    again = repeated_arguments(model, mode, hardware, overrides, device_memory=device_memory)
    return Outcome(
        data=difference_data(difference),
        text=render_difference(difference, request.spec, by=by, limit=limit),
        diagnostics=findings,
        exit_code=EXIT_FINDINGS if exit_code and difference.changes else EXIT_OK,
        next=(shlex.join(["offload", "explain", after, *again]),),
    )
