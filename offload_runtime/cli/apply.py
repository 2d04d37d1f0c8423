"""`offload apply`: train with and without a policy, and compare."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import click

from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.options import (
    PREDICTED_FOR,
    ModelOptions,
    accumulation_option,
    format_option,
    hardware_option,
    mode_option,
    model_options,
    model_request,
    set_option,
)
from offload_runtime.cli.outcome import Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.compiler import load_policy
from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.hardware import load_hardware

_NO_MASTERS = Diagnostic(
    "MOD757",
    "error",
    "apply trains parameters in their own type with torch.optim, which keeps no float32 master weights",
    hint="leave --master-weights out, train in float32 (--dtype float32), or count them with "
    "`offload plan --master-weights`",
)


@click.command(short_help="Train a model with and without POLICY, and compare.")
@click.argument("policy")
@model_options
@accumulation_option
@mode_option
@click.option(
    "--steps", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Steps to train."
)
@click.option(
    "--master-weights",
    is_flag=True,
    help="Refused: apply trains with torch.optim, which keeps none. `offload plan --master-weights` counts them.",
)
@hardware_option(PREDICTED_FOR, caps=True)
@set_option
@format_option()
def command(
    policy: str,
    gradient_accumulation_steps: int,
    mode: str,
    steps: int,
    master_weights: bool,
    hardware: str | None,
    device_memory: int | None,
    overrides: tuple[str, ...],
    **model: Unpack[ModelOptions],
) -> Outcome:
    """Train a model with and without POLICY, and compare numbers, memory and time.

    POLICY is a path or the name of a shipped policy (`offload list policies`). The model is trained three
    times from the same seed: without a policy, with it, and with each of its offloads replaced by a save.
    The last two must agree bitwise; the first gives the memory and the time to compare with. What a hardware
    profile predicts stands beside what was measured. Without an accelerator the simulated engine runs:
    numbers are real, peaks simulated, times not measured. Where the device has no room for a run without offloads,
    no times are compared, and numbers at as many layers as fit.

    The step time is the median without the first three steps (fewer where --steps is below six), which compile and
    pin memory. `offload bench` leaves out --warmup steps, and measures in turns.

    \b
    Example:
      offload apply balanced --model builtin:llama-tiny --steps 20 --set limits.budget=4MiB
      offload apply fit --model builtin:llama3-8b-lora --batch 2 --mode inductor --device-memory 80GB
    """
    compiled = load_policy(policy, overrides=overrides)
    if master_weights:
        raise RefusedError(_NO_MASTERS)
    profile = load_hardware(hardware) if hardware is not None else None
    # From here on torch is needed; a policy with a mistake in it has been refused without.
    from offload_runtime.models.comparison import compare_training
    from offload_runtime.models.devices import capped_memory
    from offload_runtime.models.hardware_here import profile_of_memory
    from offload_runtime.reporting.training import render_training

    request = replace(model_request(model), gradient_accumulation_steps=gradient_accumulation_steps)
    profile = profile_of_memory(profile, request.device, device_memory)
    with capped_memory(request.device, device_memory), foreign_code(), shown_progress() as advance:
        result = compare_training(
            request,
            compiled,
            steps=steps,
            mode=mode,
            hardware=profile,
            progress=advance,
        )
    environment = replace(result.environment, device_memory_bytes=device_memory)
    result = replace(result, environment=environment)
    return Outcome(
        data=result.to_data(),
        text=render_training(result),
        diagnostics=result.diagnostics,
        exit_code=result.exit_code,
    )
