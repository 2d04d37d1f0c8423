"""The arithmetic of offloading in numbers: what has to leave the device, in which order, and what it costs a step.

Bytes and milliseconds of one rank. What was computed from what is spelled out by `offload_runtime.tier_lines`.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_options import Measure, Option, best_option, ladder, offload_options
from offload_runtime.training_state import TrainingShape, rank_state

__all__ = [
    "DeviceDemand",
    "OffloadArithmetic",
    "TrainingShape",
    "offload_arithmetic",
    "step_time_ms",
]

FLOPS_PER_PARAMETER_AND_TOKEN = 6
_OF_ACTIVATIONS = ("activations", "recompute")


@dataclass(frozen=True)
class DeviceDemand:
    """What a plan knows better than one line of arithmetic, in bytes.

    ``limit_bytes`` is what the step may take, called ``limit_name``; ``peak_bytes`` what it takes without a policy.
    ``floor_bytes`` is what no fate of activations gets below: the optimizer's step, or the least that was planned.
    ``host_limit_bytes`` may be pinned, None where nobody knows. ``window_ms`` is the time from the first saved byte to
    that peak, in which copies to the host are free.
    """

    limit_bytes: int
    limit_name: str
    peak_bytes: int
    floor_bytes: int
    host_limit_bytes: int | None
    window_ms: float | None = None


@dataclass(frozen=True)
class OffloadArithmetic:
    """The answer, with what it was worked out from.

    ``needed_bytes`` have to leave the device (0: everything fits), ``state_bytes`` of them whatever becomes of
    activations. ``order`` is the ladder, whole kinds. ``choice`` is the option that stalls least, None where nothing
    has to leave or the host cannot hold any option; after a plan (``demand``), which decides on activations, it is one
    of these alone wherever they are enough. Without a plan, buffers of the layer at work are not counted.
    """

    hardware: HardwareProfile
    shape: TrainingShape
    demand: DeviceDemand | None
    step_ms: float | None
    held_bytes: int
    needed_bytes: int
    state_bytes: int
    order: tuple[Measure, ...]
    options: tuple[Option, ...]
    choice: Option | None

    @property
    def limit_bytes(self) -> int:
        """What the step may take on the device."""
        return self.hardware.device_memory_bytes if self.demand is None else self.demand.limit_bytes

    @property
    def host_limit_bytes(self) -> int | None:
        """What may be pinned; None where nobody knows."""
        return self.hardware.host_limit_bytes if self.demand is None else self.demand.host_limit_bytes


def offload_arithmetic(
    hardware: HardwareProfile, shape: TrainingShape, demand: DeviceDemand | None = None
) -> OffloadArithmetic:
    """Work out whether anything has to leave the device, what should, and what it costs a step.

    Judged by the ``demand`` of a plan; without one by state and activations against the device's memory.
    """
    step_ms = step_time_ms(hardware, shape)
    if demand is None:
        held, state = rank_state(shape).total + (shape.activation_bytes or 0), 0
        limit, host_limit = hardware.device_memory_bytes, hardware.host_limit_bytes
    else:
        held, limit, host_limit = demand.peak_bytes, demand.limit_bytes, demand.host_limit_bytes
        state = max(demand.floor_bytes - limit, 0)
    needed = max(held - limit, state)
    options = tuple(
        option
        for option in offload_options(shape, hardware, step_ms=step_ms, needed_bytes=needed)
        if _state_freed(option) >= state
    )
    of_activations = [option for option in options if not _state_freed(option)]
    choice = best_option(of_activations, host_limit) if demand is not None else None
    return OffloadArithmetic(
        hardware=hardware,
        shape=shape,
        demand=demand,
        step_ms=step_ms,
        held_bytes=held,
        needed_bytes=needed,
        state_bytes=state,
        order=ladder(shape, hardware),
        options=options,
        choice=choice or best_option(options, host_limit),
    )


def _state_freed(option: Option) -> int:
    return sum(measure.freed_bytes for measure in option.measures if measure.kind not in _OF_ACTIVATIONS)


def step_time_ms(hardware: HardwareProfile, shape: TrainingShape) -> float | None:
    """Return the compute time of one step: as given, else 6 FLOP for each parameter and token; None if neither."""
    if shape.step_ms is not None:
        return shape.step_ms
    rate = hardware.matmul_flops_per_ms(shape.parameter_dtype)
    if shape.num_tokens is None or rate is None:
        return None
    return FLOPS_PER_PARAMETER_AND_TOKEN * shape.num_parameters * shape.num_tokens / rate
