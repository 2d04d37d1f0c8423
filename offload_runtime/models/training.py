"""One training of a model under test: compiled in one way, run for some steps, measured, and cleared away.

A training builds its own model, and nothing of it is on the device when it returns: only one model is there
at a time. What is measured is frozen values and host copies.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RefusedError, RunError, error_text
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.failures import explain_failure, is_out_of_memory
from offload_runtime.models.numbers import (
    FinalNumbers,
    StepNumbers,
    final_numbers,
    first_final_difference,
    starting_point,
    step_numbers,
)
from offload_runtime.models.optimizer_step import optimizer_state_bytes, resident_bytes
from offload_runtime.models.plan_limits import refuse_optimizer_step
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.result import Difference
from offload_runtime.models.under_test import ModelUnderTest, StateBytes, described_inputs
from offload_runtime.offload_plan import Variant
from offload_runtime.record import Report
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.runtime.model_report import report, torchs_reasons
from offload_runtime.runtime.setting import profile_of_device
from offload_runtime.runtime.transfer import get_engine

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class TrainingPlan:
    """How one training runs.

    ``variant`` is the policy itself, the reference (its offloads replaced by saves) or the baseline (no
    policy). ``numbers`` records what is compared, or compares it at the end with ``against``, the final
    numbers of another training. ``deterministic`` asks torch for deterministic kernels; ``profile`` times
    each transfer of the last step.
    """

    variant: Variant
    policy: CompiledPolicy
    mode: str
    steps: int
    hardware: HardwareProfile | None = None
    numbers: bool = False
    deterministic: bool = False
    profile: bool = False
    against: FinalNumbers | None = None


@dataclass(frozen=True)
class Training:
    """What one training showed.

    ``report`` is None where no graph went through the offload back end: the baseline of mode ``inductor``
    on an accelerator. ``num_pins`` counts the times that host memory was pinned after the first step.
    ``start`` is a fingerprint of weights and data before the first step.
    """

    name: str
    inputs: tuple[str, ...]
    dtype: str
    optimizer: str
    num_parameters: int
    num_layers: int | None
    losses: tuple[float, ...]
    step_ms: float | None
    peak_device_bytes: int | None
    report: Report | None
    num_pins: int
    start: int | None
    steps: tuple[StepNumbers, ...]
    final: FinalNumbers | None
    final_difference: Difference | None


def train(request: ModelRequest, plan: TrainingPlan, advance: Advance) -> Training | None:
    """Build the model, train it as ``plan`` says, return what was seen; None if device memory ran out.

    ``advance(done, total)`` is called after each step. Raises RefusedError for a model that cannot be traced,
    RunError for one that fails, and the back end's own errors as they are.
    """
    _clear(request.device)
    options: dict[str, Any] = {}
    kernels = deterministic_kernels() if plan.deterministic else nullcontext()
    try:
        with kernels, torch.random.fork_rng(devices=_cuda_devices(request.device)):
            return _train(request, plan, options, advance)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise explain_failure(error, request.spec) from error
    finally:
        _clear(request.device)


def _train(request: ModelRequest, plan: TrainingPlan, options: dict[str, Any], advance: Advance) -> Training:
    model = request.resolve()
    torch.manual_seed(request.seed)
    start = starting_point(model.module, model.example_args) if plan.numbers else None
    compiled = _compiled(model, plan, options)
    optimizer = model.make_optimizer()
    meter = _CudaMeter(model.device, plan.steps, plan.profile) if model.device.type == "cuda" else _NoMeter()
    losses: list[Tensor] = []
    numbers: list[StepNumbers] = []
    pins_at_first = 0
    for step in range(plan.steps):
        if plan.profile and step == plan.steps - 1:
            # One step is profiled, and not timed: reading the profile makes the host wait for the device.
            get_engine(model.device).set_profiling(True)
        meter.start(step)
        loss = _accumulate(model, compiled, step)
        losses.append(loss)
        if plan.numbers:
            numbers.append(step_numbers(model.module, loss))
        if optimizer is not None:
            _step(optimizer, model, request.spec)
        if step < plan.steps - 1:
            model.module.zero_grad(set_to_none=True)
        meter.stop(step)
        if step == 0:
            pins_at_first = _num_pins(model.module, options)
        advance(step + 1, plan.steps)
    found = _report(request, model.module) if options else None
    if plan.profile:
        get_engine(model.device).set_profiling(False)
    return Training(
        name=model.description,
        inputs=described_inputs(model.example_args),
        dtype=model.dtype,
        optimizer=model.optimizer,
        num_parameters=model.num_parameters,
        num_layers=model.num_layers,
        losses=tuple(float(loss) for loss in losses),
        step_ms=meter.step_ms(),
        peak_device_bytes=meter.peak_bytes() or _simulated_peak(model, found),
        report=found,
        num_pins=(found.num_pins if found is not None else 0) - pins_at_first,
        start=start,
        steps=tuple(numbers),
        final=final_numbers(model.module) if plan.numbers and plan.against is None else None,
        final_difference=_final_difference(model.module, plan),
    )


def _step(optimizer: torch.optim.Optimizer, model: ModelUnderTest, spec: str) -> None:
    """Run the optimizer's step; raises RunError where it cannot use these gradients, as AdamW no sparse ones."""
    try:
        optimizer.step()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        message = f"the step of optimizer {model.optimizer} failed on {spec}: {error_text(error)}"
        hint = "give another --optimizer, such as sgd, or none; forward and backward went through"
        raise RunError(Diagnostic("MOD733", "error", message, hint=hint)) from error


def _accumulate(model: ModelUnderTest, compiled: Callable[..., Any], step: int) -> Tensor:
    """Run forward and backward of each batch of a step; return the mean of their losses, whose gradients are there."""
    number = model.gradient_accumulation_steps
    if number == 1:
        loss = model.loss(compiled(*model.make_batch(step)))
        loss.backward()
        return loss.detach()
    losses = []
    for batch in range(number):
        loss = model.loss(compiled(*model.make_batch(step * number + batch)))
        (loss / number).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def _compiled(model: ModelUnderTest, plan: TrainingPlan, options: dict[str, Any]) -> Callable[..., Any]:
    """Compile the model.

    The baseline of mode ``inductor`` is what a user has today, torch alone; that of mode ``graph`` is the
    traced graph under torch's default partitioner, which saves everything. On the CPU both go through the
    back end, which simulates their memory.
    """
    if plan.variant == "baseline" and plan.mode == "inductor" and model.device.type != "cpu":
        return torch.compile(model.module)
    state = StateBytes.of(model)
    if plan.variant != "baseline":
        profile = plan.hardware or profile_of_device(model.device)
        resident = resident_bytes(
            state,
            model.optimizer,
            profile,
            gradient_accumulation_steps=model.gradient_accumulation_steps,
        )
        refuse_optimizer_step(
            plan.policy,
            plan.policy.policy.limits,
            resident,
            model.optimizer,
            None if profile is None else profile.device_memory_bytes,
        )
    options.update(
        # What the policy expects is judged on the whole comparison, so that its numbers are shown, too.
        policy=replace(plan.policy, policy=replace(plan.policy.policy, expect=None)),
        mode=plan.mode,
        model=model.module,
        variant=plan.variant,
        # Gradients of earlier batches are held as the optimizer's state is: from the second backward on.
        optimizer_state_bytes=optimizer_state_bytes(state, model.optimizer)
        + _accumulated_bytes(model, state),
        # The checking engine stands in during the first step: with one step the real one would never run.
        verify=plan.numbers and plan.steps > 1,
    )
    if plan.hardware is not None:
        options["hardware"] = plan.hardware
    return torch.compile(model.module, backend=offload_backend, options=options)


def _final_difference(module: nn.Module, plan: TrainingPlan) -> Difference | None:
    return None if plan.against is None else first_final_difference(module, plan.against, plan.steps)


def _report(request: ModelRequest, module: nn.Module) -> Report:
    try:
        return report(module)
    except ValueError as error:
        raise RefusedError(
            Diagnostic(
                "MOD731",
                "error",
                f"no graph of {request.spec} could be captured: all of it runs outside torch.compile"
                f"{torchs_reasons()}",
                hint="look for what breaks the graph with TORCH_LOGS=graph_breaks",
            )
        ) from error


def _num_pins(module: nn.Module, options: dict[str, Any]) -> int:
    if not options:
        return 0
    try:
        return report(module).num_pins
    except ValueError:
        return 0


def _simulated_peak(model: ModelUnderTest, found: Report | None) -> int | None:
    """Return the peak of a backward that comes with gradients of earlier batches there, where there are such."""
    if found is None or found.simulated_peak is None:
        return None
    return found.simulated_peak.num_bytes + _accumulated_bytes(model, StateBytes.of(model))


def _accumulated_bytes(model: ModelUnderTest, state: StateBytes) -> int:
    return state.trainable if model.gradient_accumulation_steps > 1 else 0


class _NoMeter:
    """Measure nothing: without an accelerator, times say nothing about one."""

    def start(self, step: int) -> None:
        pass

    def stop(self, step: int) -> None:
        pass

    def step_ms(self) -> float | None:
        return None

    def peak_bytes(self) -> int | None:
        return None


class _CudaMeter:
    """Time steps by events on the current stream, and take the peak of allocated memory of the warm steps.

    The first steps, which compile and pin memory, are dropped: three of them, or fewer where there are
    fewer than six; a single step is not timed at all.
    """

    def __init__(self, device: torch.device, steps: int, last_is_profiled: bool) -> None:
        self.device = device
        self.last_is_profiled = last_is_profiled
        self.num_warmup = min(3, steps // 2)
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self, step: int) -> None:
        if step == self.num_warmup:
            torch.cuda.reset_peak_memory_stats(self.device)
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        self.events.append((begin, end))

    def stop(self, step: int) -> None:
        self.events[step][1].record()

    def step_ms(self) -> float | None:
        warm = self.events[self.num_warmup :] if self.num_warmup else []
        if self.last_is_profiled and len(warm) > 1:
            warm = warm[:-1]
        torch.cuda.synchronize(self.device)
        return median(begin.elapsed_time(end) for begin, end in warm) if warm else None

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device)


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Ask torch for deterministic kernels while the context is open, then restore what was asked before."""
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace or ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        if workspace is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]


def _cuda_devices(device: str) -> list[torch.device]:
    return [torch.device(device)] if torch.device(device).type == "cuda" else []


def _clear(device: str) -> None:
    torch.compiler.reset()
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
