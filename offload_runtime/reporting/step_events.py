"""A simulated step as events that trace viewers open (Chrome's trace format; Perfetto, chrome://tracing).

Kernels and copies have the categories and names that PyTorch's profiler gives them, so that tools for its traces read
a predicted step too. Source of the format: Google's "Trace Event Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offload_runtime.models.plan_result import PlanResult, SimulatedStep

__all__ = ["step_events"]

_US_PER_MS = 1000.0
_LANES = {"compute": 7, "d2h": 8, "h2d": 9}
_NAMES = {"compute": "compute", "d2h": "copies to the host", "h2d": "copies to the device"}
_COPIES = {"d2h": "Memcpy DtoH (Device -> Pinned)", "h2d": "Memcpy HtoD (Pinned -> Device)"}
_PROCESSES = ("policy", "baseline")


def step_events(result: PlanResult) -> dict[str, Any]:
    """Return the trace of the policy's step and, as a second process, of the baseline's. Times are microseconds."""
    events = [
        event
        for process, step in enumerate((result.policy_step, result.baseline_step))
        for event in _process_events(process, step)
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "predicted": True,
            "model": result.model,
            "policy": result.policy_name,
            "mode": result.mode,
            "hardware": result.hardware,
        },
    }


def _process_events(process: int, step: SimulatedStep) -> Iterator[dict[str, Any]]:
    named: dict[str, Any] = {"ph": "M", "pid": process}
    yield {**named, "name": "process_name", "args": {"name": f"{_PROCESSES[process]} (predicted)"}}
    for lane, thread in _LANES.items():
        yield {**named, "tid": thread, "name": "thread_name", "args": {"name": _NAMES[lane]}}
    yield from _kernel_events(process, step)
    for copy in step.simulation.copies:
        yield {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": _COPIES[copy.direction],
            "pid": process,
            "tid": _LANES[copy.direction],
            **_times(copy.start_ms, copy.end_ms),
            "args": {"tensor": copy.item, "bytes": copy.num_bytes, "stall_ms": copy.stall_ms},
        }


def _kernel_events(process: int, step: SimulatedStep) -> Iterator[dict[str, Any]]:
    trace, run = step.trace, step.simulation
    for index, kernel in enumerate(trace.kernels):
        start_ms = run.starts_ms[index]
        side = "forward" if index < trace.num_forward else "backward"
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": kernel.name,
            "pid": process,
            "tid": _LANES["compute"],
            **_times(start_ms, run.ends_ms[index]),
            "args": {"layer": kernel.layer, "side": side},
        }
        yield {
            "ph": "C",
            "name": "memory (bytes)",
            "pid": process,
            "ts": round(start_ms * _US_PER_MS, 3),
            "args": {"device": run.device_bytes[index], "host": run.host_bytes[index]},
        }


def _times(start_ms: float, end_ms: float) -> dict[str, float]:
    return {"ts": round(start_ms * _US_PER_MS, 3), "dur": round((end_ms - start_ms) * _US_PER_MS, 3)}
