"""What can leave the device, what that moves across the link, and which choice stalls least.

The order is that of bytes freed for each byte moved: optimizer state is the bulk and is touched once in a step,
gradients leave as they are born, parameters are fetched twice in a step. Activations leave in forward and come back
in backward, or are recomputed. A copy is free while compute hides it: all copies of a step together within the time
of its compute, and those of activations to the host within forward. An optimizer step on the CPU is counted as
exposed. This is an estimate in one line of arithmetic for each kind; the planner simulates activations one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from offload_runtime.hardware import HardwareProfile
from offload_runtime.training_state import RankState, TrainingShape, bytes_per_parameter, rank_state

__all__ = [
    "FORWARD_SHARE",
    "Measure",
    "MeasureKind",
    "Option",
    "best_option",
    "ladder",
    "offload_options",
    "recompute",
]

MeasureKind = Literal["optimizer_state", "gradients", "parameters", "activations", "recompute"]

# Backward does twice the matmul work of forward.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Measure:
    """A share of one kind of state off the device: what it frees, and what it costs a step on top of earlier ones.

    Bytes and milliseconds of one rank and step. ``d2h_ms`` and ``h2d_ms`` are copies, ``cpu_ms`` the optimizer's
    step on the CPU (None: its rate is not known), ``compute_ms`` recomputation (None: the step's time is not known).
    """

    kind: MeasureKind
    fraction: float
    freed_bytes: int
    d2h_bytes: int
    h2d_bytes: int
    host_bytes: int
    d2h_ms: float
    h2d_ms: float
    cpu_ms: float | None = 0.0
    compute_ms: float | None = 0.0

    @property
    def moved_bytes(self) -> int:
        """Bytes across the link, both directions."""
        return self.d2h_bytes + self.h2d_bytes

    @property
    def link_ms(self) -> float:
        """Time of the copies, one after another."""
        return self.d2h_ms + self.h2d_ms

    @property
    def freed_per_moved(self) -> float | None:
        """Bytes freed for each byte moved; None where nothing moves."""
        return self.freed_bytes / self.moved_bytes if self.moved_bytes else None

    def scaled(self, fraction: float) -> Measure:
        """Return this share of the measure; freed bytes are rounded up, so that a need is met."""
        return replace(
            self,
            fraction=self.fraction * fraction,
            freed_bytes=math.ceil(self.freed_bytes * fraction),
            d2h_bytes=math.ceil(self.d2h_bytes * fraction),
            h2d_bytes=math.ceil(self.h2d_bytes * fraction),
            host_bytes=math.ceil(self.host_bytes * fraction),
            d2h_ms=self.d2h_ms * fraction,
            h2d_ms=self.h2d_ms * fraction,
            cpu_ms=None if self.cpu_ms is None else self.cpu_ms * fraction,
            compute_ms=None if self.compute_ms is None else self.compute_ms * fraction,
        )


@dataclass(frozen=True)
class Option:
    """Measures taken together. ``stall_ms`` is what they add to a step, None where a time is not known."""

    measures: tuple[Measure, ...]
    stall_ms: float | None

    @property
    def freed_bytes(self) -> int:
        """Device bytes that all free."""
        return sum(measure.freed_bytes for measure in self.measures)

    @property
    def host_bytes(self) -> int:
        """Pinned host bytes that all take."""
        return sum(measure.host_bytes for measure in self.measures)

    @property
    def link_ms(self) -> float:
        """Time of all copies, one after another."""
        return sum(measure.link_ms for measure in self.measures)


def ladder(shape: TrainingShape, hardware: HardwareProfile) -> tuple[Measure, ...]:
    """Return what can leave, whole kinds in order, without those of no bytes.

    Each costs what it moves on top of those before it: gradients that go down for a step on the CPU leave the
    device for nothing, and parameters that live on the host need no update sent back.
    """
    state = rank_state(shape)
    on_cpu = shape.step_device == "cpu" and state.optimizer_state > 0
    measures = [
        _optimizer_state(shape, state, hardware),
        _gradients(state, hardware, leave_anyway=on_cpu),
        _parameters(shape, state, hardware, on_cpu=on_cpu),
    ]
    if shape.activation_bytes is not None:
        size = shape.activation_bytes
        measures.append(_measure("activations", size, size, size, size, hardware))
    return tuple(measure for measure in measures if measure.freed_bytes)


def _optimizer_state(shape: TrainingShape, state: RankState, hardware: HardwareProfile) -> Measure:
    size = state.optimizer_state
    if shape.step_device == "gpu":
        return _measure("optimizer_state", size, size, size, size, hardware)
    # Down go the gradients of the parameters stepped here, up come those parameters; both have a host buffer.
    per_parameter = bytes_per_parameter(shape)
    down = state.stepped_parameters * per_parameter.gradients
    up = state.stepped_parameters * per_parameter.parameters
    rate = hardware.adamw_parameters_per_ms
    cpu_ms = None if rate is None else state.stepped_parameters / rate
    return _measure("optimizer_state", size, down, up, size + down + up, hardware, cpu_ms=cpu_ms)


def _gradients(state: RankState, hardware: HardwareProfile, *, leave_anyway: bool) -> Measure:
    size = state.gradients
    moved = 0 if leave_anyway else size
    return _measure("gradients", size, moved, moved, moved, hardware)


def _parameters(
    shape: TrainingShape, state: RankState, hardware: HardwareProfile, *, on_cpu: bool
) -> Measure:
    size = state.parameters
    sent_anyway = state.stepped_parameters * bytes_per_parameter(shape).parameters if on_cpu else 0
    up = max(2 * size - sent_anyway, 0)
    down = 0 if on_cpu else size
    return _measure("parameters", size, down, up, 0 if on_cpu else size, hardware)


def _measure(
    kind: MeasureKind,
    freed: int,
    down: int,
    up: int,
    host: int,
    hardware: HardwareProfile,
    *,
    cpu_ms: float | None = 0.0,
) -> Measure:
    link = hardware.link()
    return Measure(
        kind, 1.0, freed, down, up, host, down / link.d2h_bytes_per_ms, up / link.h2d_bytes_per_ms, cpu_ms
    )


def recompute(shape: TrainingShape, step_ms: float | None) -> Measure | None:
    """Return recomputing all activations: at most all of their bytes, for one more forward."""
    if not shape.activation_bytes:
        return None
    compute_ms = None if step_ms is None else step_ms * FORWARD_SHARE
    return Measure("recompute", 1.0, shape.activation_bytes, 0, 0, 0, 0.0, 0.0, compute_ms=compute_ms)


def offload_options(
    shape: TrainingShape, hardware: HardwareProfile, *, step_ms: float | None, needed_bytes: int
) -> tuple[Option, ...]:
    """Return every way to free ``needed_bytes``: so far down the ladder, and activations offloaded, recomputed or both.

    The last kind of a way leaves in part, as far as is needed. Empty where nothing is needed, or nothing is enough.
    """
    if needed_bytes <= 0:
        return ()
    rungs = ladder(shape, hardware)
    states = [rung for rung in rungs if rung.kind != "activations"]
    activations = next((rung for rung in rungs if rung.kind == "activations"), None)
    again = recompute(shape, step_ms)
    options = []
    for depth in range(len(states) + 1):
        for treatment in _treatments(activations, again, step_ms, alone=depth == 0):
            measures = _taken(treatment, states[:depth], needed_bytes)
            if measures:
                options.append(Option(measures, _stall_ms(measures, step_ms)))
    return tuple(options)


def _treatments(
    activations: Measure | None, again: Measure | None, step_ms: float | None, *, alone: bool
) -> Iterator[tuple[Measure, ...]]:
    """Yield what can be done with activations before state leaves; only what is hidden, unless nothing follows."""
    yield ()
    if activations is None or again is None:
        return
    hidden = 1.0 if step_ms is None else _hidden_fraction(activations, step_ms)
    yield (activations if alone else activations.scaled(hidden),)
    yield (again,)
    if 0 < hidden < 1:
        yield (activations.scaled(hidden), again.scaled(1 - hidden))


def _hidden_fraction(activations: Measure, step_ms: float) -> float:
    return min(1.0, step_ms * FORWARD_SHARE / activations.d2h_ms, step_ms / activations.link_ms)


def _taken(
    treatment: Sequence[Measure], rungs: Sequence[Measure], needed_bytes: int
) -> tuple[Measure, ...] | None:
    """Return the measures as far as they are needed; None where they are not enough, or one is not needed at all.

    A rung above the last is taken whole: the ones below it rest on it.
    """
    above, last = rungs[:-1], rungs[-1:]
    rest = needed_bytes - sum(rung.freed_bytes for rung in above)
    partly = []
    for measure in (*treatment, *last):
        if rest <= 0:
            return None
        partly.append(measure.scaled(min(1.0, rest / measure.freed_bytes)))
        rest -= partly[-1].freed_bytes
    if rest > 0:
        return None
    return (*partly[: len(treatment)], *above, *partly[len(treatment) :])


def _stall_ms(measures: Sequence[Measure], step_ms: float | None) -> float | None:
    """Return what the measures add to a step; None where a time is not known."""
    if step_ms is None or any(m.cpu_ms is None or m.compute_ms is None for m in measures):
        return None
    copies = sum(m.link_ms for m in measures) - step_ms
    forward = sum(m.d2h_ms for m in measures if m.kind == "activations") - step_ms * FORWARD_SHARE
    own = sum((m.cpu_ms or 0.0) + (m.compute_ms or 0.0) for m in measures)
    return max(copies, forward, 0.0) + own


def best_option(options: Sequence[Option], host_limit_bytes: int | None) -> Option | None:
    """Return the option that fits the host and stalls least; of equals the one with fewer measures, then the first.

    Where a stall is not known, those of which it is known come first.
    """
    fitting = [o for o in options if host_limit_bytes is None or o.host_bytes <= host_limit_bytes]

    def cost(option: Option) -> tuple[bool, float, int]:
        return option.stall_ms is None, round(option.stall_ms or 0.0, 6), len(option.measures)

    return min(fitting, key=cost, default=None)
