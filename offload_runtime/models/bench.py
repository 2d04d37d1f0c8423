"""`offload bench`: policies and peers take turns on one model, in one process, and are compared in pairs.

    sides planned -> model built once -> each side compiled and warmed -> rounds -> result file

The measurement itself is `bench_rounds`; this module builds the model and what runs on it, and keeps the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from offload_runtime.errors import Diagnostic, OffloadError, RunError
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.bench_file import check_output, read_result, write_result
from offload_runtime.models.bench_identity import continued
from offload_runtime.models.bench_result import BenchModel, BenchResult, Environment
from offload_runtime.models.bench_rounds import Deadline, Measured, measure
from offload_runtime.models.bench_sides import SidesPlan
from offload_runtime.models.environment import read_environment
from offload_runtime.models.failures import explain_failure, is_out_of_memory
from offload_runtime.models.live_side import Meter, SharedStep, TrainingSide, choose_meter
from offload_runtime.models.peer_losses import FrontEnd
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.under_test import ModelUnderTest, described_inputs
from offload_runtime.runtime.options import refuse_unsupported

__all__ = ["BenchPlan", "BenchRun", "run_bench"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BenchPlan:
    """What to measure, and how long.

    ``rounds`` counts all rounds of the file, those of earlier runs included. ``started_s`` is when the command
    began, on `time.monotonic`; with ``time_limit_s`` it says when to stop. ``output`` is the result file, if
    one is wanted; ``resume`` goes on from what it holds. ``hardware`` is the profile that policies plan for, None
    that of the device. ``device_memory_bytes`` is what the process was given of the device, for the record.
    """

    sides: SidesPlan
    mode: str
    rounds: int
    steps: int
    warmup: int
    time_limit_s: float
    started_s: float
    command: str
    hardware: HardwareProfile | None = None
    output: Path | None = None
    resume: bool = False
    device_memory_bytes: int | None = None


@dataclass(frozen=True)
class BenchRun:
    """What one run of the command leaves: the result, and what was found on the way."""

    result: BenchResult
    diagnostics: tuple[Diagnostic, ...]


def run_bench(
    request: ModelRequest, plan: BenchPlan, *, progress: Progress | None = None, meter: Meter | None = None
) -> BenchRun:
    """Measure all sides of ``plan`` on the model of ``request``, and keep the result file after each round.

    Without an optimizer in ``request`` a step is forward and backward alone. ``meter`` is by default what the
    device has. Raises UnreadableError or RefusedError for a file that cannot be continued, RefusedError for a
    policy or model that cannot be used, RunError where not one round of all sides could be taken.
    """
    for side in plan.sides.sides:
        if side.policy is not None:
            refuse_unsupported(side.policy.policy, plan.mode)
    if plan.output is not None:
        check_output(plan.output)
    before = (
        read_result(plan.output)
        if plan.resume and plan.output is not None and os.path.exists(plan.output)
        else None
    )
    step = _build(replace(request, optimizer=request.optimizer or "none"))
    planned = _planned(plan, request, step.model)
    if before is not None:
        assert plan.output is not None
        planned = continued(planned, before, plan.output)
    if planned.complete:
        return BenchRun(planned, ())
    measured = _measure(plan, planned, step, progress, meter)
    return BenchRun(measured.result, (*measured.diagnostics, *_judge(measured, plan)))


def _build(request: ModelRequest) -> SharedStep:
    torch.compiler.reset()
    try:
        return SharedStep(request.resolve())
    except OffloadError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise explain_failure(error, f"building {request.spec}") from error
        message = f"{request.spec} alone runs out of device memory, before any step"
        hint = "give fewer --layers, or use a larger device"
        raise RunError(Diagnostic("BEN926", "error", message, hint=hint)) from error


def _planned(plan: BenchPlan, request: ModelRequest, model: ModelUnderTest) -> BenchResult:
    return BenchResult(
        command=plan.command,
        model=BenchModel(
            spec=model.name,
            description=model.description,
            inputs=described_inputs(model.example_args),
            num_parameters=model.num_parameters,
            num_layers=model.num_layers,
            dtype=model.dtype,
            optimizer=model.optimizer,
            seed=request.seed,
        ),
        mode=plan.mode,
        device=model.device.type,
        environment=read_environment(model.device, plan.device_memory_bytes),
        steps=plan.steps,
        warmup=plan.warmup,
        num_rounds=plan.rounds,
        hardware=plan.hardware.name if plan.hardware is not None else None,
        baseline=plan.sides.baseline,
        control=plan.sides.control,
        sides=plan.sides.recorded,
    )


def _measure(
    plan: BenchPlan, planned: BenchResult, step: SharedStep, progress: Progress | None, meter: Meter | None
) -> Measured:
    device = step.model.device
    meter = meter or choose_meter(device)
    front_end = FrontEnd(plan.mode, plan.hardware)
    sides = {
        side.name: TrainingSide(side, step, front_end, meter)
        for side in plan.sides.sides
        if planned.side(side.name).runs
    }
    deadline = Deadline(plan.time_limit_s, plan.started_s, time.monotonic)
    keeper = _Keeper(plan.output, device, plan.device_memory_bytes)
    # Torch runs a function eagerly, without a word, once it has compiled it this often: all sides share the
    # functions that graph breaks leave.
    limit = 8 * (len(sides) + 1)
    try:
        with torch._dynamo.config.patch(recompile_limit=limit, accumulated_recompile_limit=32 * limit):
            measured = measure(planned, sides, deadline, save=keeper.keep, advance=progress or _silent)
    finally:
        for side in sides.values():
            side.drop()
        torch.compiler.reset()
    return replace(measured, result=keeper.described(measured.result))


class _Keeper:
    """Keeps the result file up to date, and asks once about the machine: after a round, when its link was busy."""

    def __init__(self, output: Path | None, device: torch.device, device_memory_bytes: int | None) -> None:
        self.output = output
        self.device = device
        self.device_memory_bytes = device_memory_bytes
        self.environment: Environment | None = None

    def keep(self, result: BenchResult) -> None:
        """Write ``result``, if a file is wanted."""
        self.environment = self.environment or read_environment(self.device, self.device_memory_bytes)
        if self.output is not None:
            write_result(self.output, self.described(result))

    def described(self, result: BenchResult) -> BenchResult:
        """Return ``result`` with the machine as it was after a round, if there was one."""
        return replace(result, environment=self.environment or result.environment)


def _silent(phase: str, done: int, total: int) -> None:
    """Show nothing."""


def _judge(measured: Measured, plan: BenchPlan) -> tuple[Diagnostic, ...]:
    """Say what is missing. Raises RunError where there is not one round of all sides."""
    result = measured.result
    if not any(side.runs for side in result.sides):
        first = measured.diagnostics[0] if measured.diagnostics else None
        hint = "give fewer --layers, a smaller --batch or --seq"
        message = "no side runs here" + (f": {first.message}" if first is not None else "")
        raise RunError(Diagnostic("BEN926", "error", message, hint=hint))
    if not measured.out_of_time:
        return ()
    limit = f"the time limit of {plan.time_limit_s:g} s"
    again = (
        "run the same with --resume"
        if plan.output is not None
        else "give --output and --resume to go on later"
    )
    if not result.rounds:
        waiting = f"; not compiled: {', '.join(measured.not_warmed)}" if measured.not_warmed else ""
        hint = "list fewer sides or raise --time-limit; torch keeps compiled code, so that the next run is faster"
        message = f"{limit} came before one round of all sides{waiting}"
        raise RunError(Diagnostic("BEN921", "error", message, hint=hint))
    missing = result.num_rounds - len(result.rounds)
    message = f"{limit} came first: {missing} of {result.num_rounds} rounds are missing"
    return (Diagnostic("BEN922", "warning", message, hint=again),)
