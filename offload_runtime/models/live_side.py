"""Sides that really run: all share one model, and are timed by events and by the peak of allocated memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from offload_runtime.models.bench_result import Prediction
from offload_runtime.models.bench_rounds import OutOfDeviceMemory, WarmUp
from offload_runtime.models.bench_sides import SidePlan
from offload_runtime.models.failures import explain_failure, is_out_of_memory
from offload_runtime.models.peer_losses import FrontEnd, SideLoss, side_loss
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.record import Report
from offload_runtime.runtime.session import Session, living_sessions

__all__ = ["CudaMeter", "Meter", "NoMeter", "SharedStep", "TrainingSide", "choose_meter"]

Action = Callable[[], None]


class Meter(Protocol):
    """What tells times and peaks."""

    timed: bool

    def seconds(self, action: Action) -> float:
        """Return the wall time of ``action`` until the device has finished it."""

    def measure(self, action: Action, times: int) -> tuple[tuple[float, ...] | None, int | None]:
        """Run ``action`` so many ``times``; return the milliseconds of each and the peak in bytes, if known."""


class NoMeter:
    """Measure nothing but the wall time by which rounds are planned: on a CPU, times say nothing."""

    timed = False

    def seconds(self, action: Action) -> float:
        """Return the wall time of ``action``."""
        started_s = time.perf_counter()
        action()
        return time.perf_counter() - started_s

    def measure(self, action: Action, times: int) -> tuple[None, None]:
        """Run ``action``; nothing is known of it."""
        for _ in range(times):
            action()
        return None, None


class CudaMeter:
    """Measure by events on the current stream, which run without making the host wait between steps."""

    timed = True

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device = device
        self.cuda = cuda

    def seconds(self, action: Action) -> float:
        """Return the wall time of ``action`` until the device has finished it."""
        started_s = time.perf_counter()
        action()
        self.cuda.synchronize(self.device)
        return time.perf_counter() - started_s

    def measure(self, action: Action, times: int) -> tuple[tuple[float, ...], int]:
        """Run ``action`` so many ``times``; return the milliseconds of each, and the peak over all of them."""
        self.cuda.reset_peak_memory_stats(self.device)
        marks = [
            (self.cuda.Event(enable_timing=True), self.cuda.Event(enable_timing=True)) for _ in range(times)
        ]
        for begin, end in marks:
            begin.record()
            action()
            end.record()
        self.cuda.synchronize(self.device)
        step_ms = tuple(round(begin.elapsed_time(end), 3) for begin, end in marks)
        return step_ms, int(self.cuda.max_memory_allocated(self.device))


def choose_meter(device: torch.device) -> Meter:
    """Return what can measure on ``device``."""
    return CudaMeter(device) if device.type == "cuda" else NoMeter()


class SharedStep:
    """The training step on the model that all sides share; gradients are freed after each."""

    def __init__(self, model: ModelUnderTest) -> None:
        self.model = model
        self.batch = model.make_batch(0)
        self.optimizer = model.make_optimizer()

    def run(self, side: SideLoss) -> None:
        """Run one step: forward, backward and, where there is one, the optimizer."""
        side.loss(self.batch).backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.module.zero_grad(set_to_none=True)

    def abandon(self) -> None:
        """Free what a step that was broken off left on the device."""
        self.model.module.zero_grad(set_to_none=True)
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()


class TrainingSide:
    """One side, live: see `offload_runtime.models.bench_rounds.LiveSide`."""

    def __init__(self, plan: SidePlan, step: SharedStep, front_end: FrontEnd, meter: Meter) -> None:
        self.plan = plan
        self.step = step
        self.front_end = front_end
        self.meter = meter
        self.loss: SideLoss | None = None
        self.session: Session | None = None

    def warm_up(self, steps: int) -> WarmUp:
        """Compile with the first step, run ``steps`` more, and at least one."""
        before = living_sessions()
        first_s = self._guarded(lambda: self.meter.seconds(self._start))
        self.session = next((each for each in living_sessions() if each not in before), None)
        for _ in range(max(1, steps)):
            step_s = self._guarded(lambda: self.meter.seconds(self._step))
        report = self._report()
        return WarmUp(
            compile_s=round(first_s, 3) if self.meter.timed else None,
            step_s=step_s,
            planned_bytes=report.planned_bytes if report is not None else None,
            moved_bytes=report.moved_bytes if report is not None else None,
            predicted=_prediction(report),
        )

    def take_turn(self, steps: int) -> tuple[tuple[float, ...] | None, int | None]:
        """Run one step untimed and ``steps`` timed; the peak is the simulator's where nothing is measured."""
        self._guarded(self._step)
        step_ms, peak_bytes = self._guarded(lambda: self.meter.measure(self._step, steps))
        return step_ms, peak_bytes if self.meter.timed else self._simulated_peak()

    def drop(self) -> None:
        """Forget the compiled code, the session with its pinned memory, and what is left of a broken step."""
        if self.loss is not None:
            self.loss.forget()
        self.loss = self.session = None
        self.step.abandon()

    def _start(self) -> None:
        self.loss = side_loss(self.plan, self.step.model, self.front_end)
        self._step()

    def _step(self) -> None:
        assert self.loss is not None, "a side is warmed before it takes a turn"
        self.step.run(self.loss)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Run ``action``; raise OutOfDeviceMemory or an OffloadError for whatever breaks it."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever a model raises is explained and raised below
            failure = _failure(error, f"{self.plan.name} on {self.step.model.name}")
        # Raised here, where the frames of the broken step and the tensors in them are gone.
        raise failure

    def _report(self) -> Report | None:
        return self.session.report() if self.session is not None else None

    def _simulated_peak(self) -> int | None:
        report = self._report()
        return report.simulated_peak.num_bytes if report is not None and report.simulated_peak else None


def _prediction(report: Report | None) -> Prediction | None:
    """Return what was predicted of a step in one graph; several graphs have no prediction together."""
    forecast = report.graphs[0].forecast if report is not None and len(report.graphs) == 1 else None
    if forecast is None:
        return None
    return Prediction(
        hardware=forecast.hardware,
        step_ms=round(forecast.step_ms, 3),
        peak_device_bytes=forecast.peak_bytes,
        stall_ms=round(forecast.stall_ms, 3),
        window_bytes=forecast.window_bytes,
        gap=None if forecast.gap is None else round(forecast.gap, 6),
    )


def _failure(error: Exception, what: str) -> Exception:
    if is_out_of_memory(error):
        return OutOfDeviceMemory(what)
    explained = explain_failure(error, what)
    return explained.with_traceback(None)
