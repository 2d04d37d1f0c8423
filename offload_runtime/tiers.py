"""The arithmetic of offloading, spelled out: memory tiers, state, the window that hides copies, what to move first.

Every line says what was computed from what, so that a report can show the reasoning and not only its result.
Sizes are in GB (10**9 bytes) and times in milliseconds, as the rates of links are quoted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_options import (
    FORWARD_SHARE,
    Measure,
    Option,
    best_option,
    ladder,
    offload_options,
    recompute,
)
from offload_runtime.training_state import TrainingShape, bytes_per_parameter, rank_state

__all__ = [
    "ArithmeticLine",
    "ArithmeticSection",
    "OffloadArithmetic",
    "TrainingShape",
    "offload_arithmetic",
    "step_time_ms",
]

GB = 1e9
FLOPS_PER_PARAMETER_AND_TOKEN = 6
KIND_WORDS = {
    "optimizer_state": "optimizer state",
    "gradients": "gradients",
    "parameters": "parameters",
    "activations": "activations",
    "recompute": "recomputed activations",
}


@dataclass(frozen=True)
class ArithmeticLine:
    """One step: ``label`` = ``expression`` = ``value`` ``unit``; ``value`` is None where a figure is not known.

    ``source`` says where the figures come from: a profile's figure, the run, or a rule.
    """

    label: str
    expression: str
    value: float | None
    unit: str
    source: str


@dataclass(frozen=True)
class ArithmeticSection:
    """Lines that answer one question."""

    title: str
    lines: tuple[ArithmeticLine, ...]


@dataclass(frozen=True)
class OffloadArithmetic:
    """The answer with its reasoning.

    ``needed_bytes`` is what has to leave the device (0: everything fits). ``order`` is the ladder, whole kinds.
    ``choice`` is the option that stalls least, None where nothing has to leave or the host cannot hold any option.
    Buffers of the layer at work are not counted.
    """

    hardware: str
    sections: tuple[ArithmeticSection, ...]
    needed_bytes: int
    order: tuple[Measure, ...]
    options: tuple[Option, ...]
    choice: Option | None
    verdict: str

    @property
    def lines(self) -> tuple[ArithmeticLine, ...]:
        """All lines, in order."""
        return tuple(line for section in self.sections for line in section.lines)


def offload_arithmetic(hardware: HardwareProfile, shape: TrainingShape) -> OffloadArithmetic:
    """Work out whether anything has to leave the device, what should, and what it costs a step."""
    step_ms = step_time_ms(hardware, shape)
    needed = max(rank_state(shape).total + (shape.activation_bytes or 0) - hardware.device_memory_bytes, 0)
    order = ladder(shape, hardware)
    options = offload_options(shape, hardware, step_ms=step_ms, needed_bytes=needed)
    choice = best_option(options, hardware.host_limit_bytes)
    sections = (
        ArithmeticSection("memory tiers", tuple(_tier_lines(hardware))),
        ArithmeticSection("what training holds on one rank", tuple(_state_lines(hardware, shape, needed))),
        ArithmeticSection("the window that hides copies", tuple(_window_lines(hardware, shape, step_ms))),
        ArithmeticSection("what can leave, in order", tuple(_ladder_lines(hardware, shape, order, step_ms))),
        ArithmeticSection("what should leave", tuple(_choice_lines(choice))),
    )
    verdict = _verdict(hardware, shape, needed, options, choice)
    return OffloadArithmetic(hardware.name, sections, needed, order, options, choice, verdict)


def step_time_ms(hardware: HardwareProfile, shape: TrainingShape) -> float | None:
    """Return the compute time of one step: as given, else 6 FLOP for each parameter and token; None if neither."""
    if shape.step_ms is not None:
        return shape.step_ms
    rate = hardware.matmul_flops_per_ms(shape.parameter_dtype)
    if shape.num_tokens is None or rate is None:
        return None
    return FLOPS_PER_PARAMETER_AND_TOKEN * shape.num_parameters * shape.num_tokens / rate


# The lines


def _tier_lines(hardware: HardwareProfile) -> Iterator[ArithmeticLine]:
    yield _figure_line(hardware, "device memory", "device.memory", GB, "GB")
    yield _figure_line(hardware, "device memory rate", "device.hbm_rate", 1e6, "GB/s")
    yield _figure_line(hardware, "link, device to host", "link.d2h", 1e6, "GB/s")
    yield _figure_line(hardware, "link, host to device", "link.h2d", 1e6, "GB/s")
    yield _figure_line(hardware, "host memory rate", "host.dram_rate", 1e6, "GB/s")
    limit = hardware.host_limit_bytes
    yield ArithmeticLine(
        "host memory for one rank",
        f"80 % of host.memory / {_count(hardware.num_ranks, 'rank')}",
        None if limit is None else limit / GB,
        "GB",
        _source(hardware, "host.memory"),
    )
    rate = hardware.figure("device.hbm_rate")
    down = hardware.figure("link.d2h")
    assert down is not None
    yield ArithmeticLine(
        "how much slower the link is",
        "device.hbm_rate / link.d2h",
        None if rate is None else rate.amount / down.amount,
        "times",
        "the two figures above",
    )


def _state_lines(hardware: HardwareProfile, shape: TrainingShape, needed: int) -> Iterator[ArithmeticLine]:
    each = bytes_per_parameter(shape)
    precision = f"{shape.optimizer}, {shape.parameter_dtype}"
    precision += " with float32 master weights" if each.master else ""
    parts = {
        "weights": each.parameters,
        "gradients": each.gradients,
        "master weights": each.master,
        "moments": each.moments,
    }
    spelled = " + ".join(f"{size} B {name}" for name, size in parts.items())
    yield ArithmeticLine("state for one parameter", spelled, each.total, "B", precision)
    whole = each.total * shape.num_parameters
    yield ArithmeticLine(
        "model state",
        f"{each.total} B x {shape.num_parameters:,} parameters",
        whole / GB,
        "GB",
        "the line above",
    )
    state = rank_state(shape)
    held = {
        "optimizer state": state.optimizer_state,
        "gradients": state.gradients,
        "parameters": state.parameters,
    }
    if shape.num_ranks > 1:
        spelled = " + ".join(f"{_gb(size)} {name}" for name, size in held.items())
        rule = f"{shape.num_ranks} ranks, sharding: {shape.sharding}"
        yield ArithmeticLine("model state of one rank", spelled, state.total / GB, "GB", rule)
    activations = shape.activation_bytes
    yield ArithmeticLine(
        "activations",
        "saved for backward at the peak",
        None if activations is None else activations / GB,
        "GB",
        "not given: not counted" if activations is None else "given",
    )
    total = state.total + (activations or 0)
    yield ArithmeticLine(
        "more than fits" if needed else "room that is left",
        f"{_gb(total)} held, {_gb(hardware.device_memory_bytes)} on the device",
        abs(total - hardware.device_memory_bytes) / GB,
        "GB",
        "the lines above, device.memory",
    )


def _window_lines(
    hardware: HardwareProfile, shape: TrainingShape, step_ms: float | None
) -> Iterator[ArithmeticLine]:
    yield _step_line(hardware, shape, step_ms)
    link = hardware.link()
    rates = (
        ("device to host", "link.d2h", link.d2h_bytes_per_ms),
        ("host to device", "link.h2d", link.h2d_bytes_per_ms),
    )
    for direction, key, rate in rates:
        yield ArithmeticLine(
            f"what a step can hide, {direction}",
            f"{rate / 1e6:g} GB/s x {_ms(step_ms)}",
            None if step_ms is None else rate * step_ms / GB,
            "GB",
            f"{key}; more than that stalls the step",
        )
    yield ArithmeticLine(
        "activations that leave for free",
        f"{link.d2h_bytes_per_ms / 1e6:g} GB/s x {_ms(step_ms)} / 3",
        None if step_ms is None else link.d2h_bytes_per_ms * step_ms * FORWARD_SHARE / GB,
        "GB",
        "they leave in forward, a third of a step's compute",
    )


def _step_line(hardware: HardwareProfile, shape: TrainingShape, step_ms: float | None) -> ArithmeticLine:
    label = "compute of one step"
    if shape.step_ms is not None:
        return ArithmeticLine(label, "predicted by a plan, or measured", step_ms, "ms", "given")
    rate = hardware.matmul_flops_per_ms(shape.parameter_dtype)
    missing = [
        name
        for name, value in (("the time or tokens of a step", shape.num_tokens), ("a matmul rate", rate))
        if value is None
    ]
    if rate is None or shape.num_tokens is None:
        return ArithmeticLine(label, "not known", None, "ms", f"needs {' and '.join(missing)}")
    spelled = (
        f"6 x {shape.num_parameters:,} parameters x {shape.num_tokens:,} tokens / {rate / 1e9:.4g} TFLOP/s"
    )
    return ArithmeticLine(
        label, spelled, step_ms, "ms", "6 FLOP for each parameter and token, at the matmul rate reached"
    )


def _ladder_lines(
    hardware: HardwareProfile, shape: TrainingShape, order: tuple[Measure, ...], step_ms: float | None
) -> Iterator[ArithmeticLine]:
    for measure in order:
        words = KIND_WORDS[measure.kind]
        yield ArithmeticLine(
            f"{words}: freed", _traffic(measure), measure.freed_bytes / GB, "GB", _why(measure, shape)
        )
        if measure.kind == "optimizer_state":
            yield from _mixed_line(shape)
        yield _link_line(hardware, measure)
        if step_ms is not None:
            yield ArithmeticLine(
                f"{words}: copies against the window",
                f"{_ms(measure.link_ms)} / {_ms(step_ms)}",
                measure.link_ms / step_ms if step_ms else None,
                "times",
                "up to 1 is hidden; the rest stalls the step",
            )
        if measure.kind == "optimizer_state" and shape.step_device == "cpu":
            yield ArithmeticLine(
                f"{words}: step on the CPU",
                f"{rank_state(shape).stepped_parameters:,} parameters of one rank / host.adamw_rate",
                measure.cpu_ms,
                "ms",
                "at the rate of one rank's share of the cores; fewer cores a rank take longer; counted as exposed; "
                + _source(hardware, "host.adamw_rate"),
            )
    again = recompute(shape, step_ms)
    if again is not None:
        yield ArithmeticLine(
            "activations: recomputed instead",
            f"{_ms(step_ms)} / 3",
            again.compute_ms,
            "ms",
            f"one more forward frees at most {_gb(again.freed_bytes)}",
        )


def _mixed_line(shape: TrainingShape) -> Iterator[ArithmeticLine]:
    """Yield what the state of mixed precision would free, where the shape trains all in 16 bit."""
    mixed, plain = bytes_per_parameter(replace(shape, master_weights=True)), bytes_per_parameter(shape)
    if shape.step_device != "cpu" or mixed.optimizer_state == plain.optimizer_state:
        return
    moved = mixed.gradients + mixed.parameters
    yield ArithmeticLine(
        "optimizer state: freed with float32 master weights",
        f"{mixed.optimizer_state} B freed, {mixed.gradients} B down + {mixed.parameters} B up for each parameter: "
        f"{mixed.optimizer_state / moved:.3g} freed for each byte moved",
        rank_state(replace(shape, master_weights=True)).optimizer_state / GB,
        "GB",
        f"as mixed precision keeps it; the line above is all in {shape.parameter_dtype}, as plan and apply train",
    )


def _link_line(hardware: HardwareProfile, measure: Measure) -> ArithmeticLine:
    link = hardware.link()
    spelled = (
        f"{_gb(measure.d2h_bytes)} / {link.d2h_bytes_per_ms / 1e6:g} GB/s"
        f" + {_gb(measure.h2d_bytes)} / {link.h2d_bytes_per_ms / 1e6:g} GB/s"
    )
    label = f"{KIND_WORDS[measure.kind]}: copies in a step"
    return ArithmeticLine(label, spelled, measure.link_ms, "ms", "link.d2h, link.h2d, one after another")


def _choice_lines(choice: Option | None) -> Iterator[ArithmeticLine]:
    if choice is None:
        return
    for measure in choice.measures:
        yield ArithmeticLine(
            KIND_WORDS[measure.kind],
            f"{_percent(measure.fraction)} of it",
            measure.freed_bytes / GB,
            "GB",
            f"{_gb(measure.moved_bytes)} moved in a step",
        )
    yield ArithmeticLine(
        "host memory taken", "with staging buffers", choice.host_bytes / GB, "GB", "the lines above"
    )
    yield ArithmeticLine(
        "added to a step",
        "copies that are not hidden + CPU step + recomputation",
        choice.stall_ms,
        "ms",
        "an estimate: a CPU step is counted as exposed",
    )


def _verdict(
    hardware: HardwareProfile,
    shape: TrainingShape,
    needed: int,
    options: tuple[Option, ...],
    choice: Option | None,
) -> str:
    if not needed:
        counted = "" if shape.activation_bytes is not None else "; activations were not given"
        return f"nothing has to leave the device: what training holds fits{counted}"
    if choice is not None:
        kinds = " and ".join(
            f"{_percent(measure.fraction)} of {KIND_WORDS[measure.kind]}"
            if measure.kind != "recompute"
            else f"recomputation of {_percent(measure.fraction)} of activations"
            for measure in choice.measures
        )
        cost = "a time that is not known" if choice.stall_ms is None else f"about {choice.stall_ms:,.0f} ms"
        return f"{_gb(needed)} have to leave: {kinds}; this adds {cost} to a step"
    # Everything can leave, so what stands in the way is the host.
    least = min(option.host_bytes for option in options)
    limit = hardware.host_limit_bytes or 0
    return f"{_gb(needed)} have to leave, and the host has too little memory: {_gb(least)} of {_gb(limit)}"


# Words


def _figure_line(hardware: HardwareProfile, label: str, key: str, scale: float, unit: str) -> ArithmeticLine:
    figure = hardware.figure(key)
    value = None if figure is None else figure.amount / scale
    return ArithmeticLine(label, key, value, unit, _source(hardware, key))


def _source(hardware: HardwareProfile, key: str) -> str:
    figure = hardware.figure(key)
    return f"{hardware.name} does not state {key}" if figure is None else figure.source


def _traffic(measure: Measure) -> str:
    ratio = measure.freed_per_moved
    moved = f"{_gb(measure.d2h_bytes)} down + {_gb(measure.h2d_bytes)} up in a step"
    return (
        "moved by those above already" if ratio is None else f"{moved}: {ratio:.3g} freed for each byte moved"
    )


def _why(measure: Measure, shape: TrainingShape) -> str:
    if measure.kind == "optimizer_state":
        if shape.step_device == "gpu":
            return "touched once in a step; it comes to the GPU for the step and goes back"
        return "touched once in a step; gradients go down, updated parameters come up"
    return {
        "gradients": "born layer by layer in backward, they leave as they come",
        "parameters": "fetched in forward and again in backward; an update sent above is one of the two",
        "activations": "they leave in forward and come back in backward",
        "recompute": "",
    }[measure.kind]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GB:.4g} GB"


def _ms(duration_ms: float | None) -> str:
    return "a step that is not known" if duration_ms is None else f"{duration_ms:.4g} ms"


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{fraction:.2%}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
