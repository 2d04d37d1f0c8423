"""The arithmetic of offloading, spelled out: every line says what was computed from what.

Sizes are in GiB, as device memory is counted and as plans are printed; rates stay in GB/s (10**9 bytes), as those of
links are quoted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_options import FORWARD_SHARE, Measure, Option, recompute
from offload_runtime.tiers import OffloadArithmetic
from offload_runtime.training_state import TrainingShape, bytes_per_parameter, rank_state
from offload_runtime.units import format_size_short

__all__ = ["GIB", "KIND_WORDS", "ArithmeticLine", "ArithmeticSection", "arithmetic_sections", "percent"]

GIB = 1 << 30
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


def arithmetic_sections(arithmetic: OffloadArithmetic) -> tuple[ArithmeticSection, ...]:
    """Spell the arithmetic out, question by question; a section without lines has nothing to say."""
    return (
        ArithmeticSection("memory tiers", tuple(_tier_lines(arithmetic.hardware))),
        ArithmeticSection("what training holds on one rank", tuple(_state_lines(arithmetic))),
        ArithmeticSection("what hides copies", tuple(_window_lines(arithmetic))),
        ArithmeticSection(
            "what can leave, by what it frees for what it moves", tuple(_ladder_lines(arithmetic))
        ),
        ArithmeticSection("what should leave, by rates alone", tuple(_choice_lines(arithmetic.choice))),
    )


def _tier_lines(hardware: HardwareProfile) -> Iterator[ArithmeticLine]:
    yield _figure_line(hardware, "device memory", "device.memory", GIB, "GiB")
    yield _figure_line(hardware, "device memory rate", "device.hbm_rate", 1e6, "GB/s")
    yield _figure_line(hardware, "link, device to host", "link.d2h", 1e6, "GB/s")
    yield _figure_line(hardware, "link, host to device", "link.h2d", 1e6, "GB/s")
    yield _figure_line(hardware, "host memory rate", "host.dram_rate", 1e6, "GB/s")
    limit = hardware.host_limit_bytes
    yield ArithmeticLine(
        "host memory for one rank",
        f"80 % of host.memory / {_count(hardware.num_ranks, 'rank')}",
        None if limit is None else limit / GIB,
        "GiB",
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


def _state_lines(arithmetic: OffloadArithmetic) -> Iterator[ArithmeticLine]:
    shape = arithmetic.shape
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
    frozen = shape.num_parameters - shape.trained_parameters
    label = "state for one trained parameter" if frozen else "state for one parameter"
    yield ArithmeticLine(label, spelled, each.total, "B", precision)
    whole = each.total * shape.trained_parameters + each.parameters * frozen
    spelled = f"{each.total} B x {shape.trained_parameters:,} parameters"
    spelled += f" + {each.parameters} B x {frozen:,} frozen" if frozen else ""
    yield ArithmeticLine("model state", spelled, whole / GIB, "GiB", "the line above")
    state = rank_state(shape)
    held = {
        "optimizer state": state.optimizer_state,
        "gradients": state.gradients,
        "parameters": state.parameters,
    }
    if shape.num_ranks > 1:
        spelled = " + ".join(f"{format_size_short(size)} {name}" for name, size in held.items())
        rule = f"{shape.num_ranks} ranks, sharding: {shape.sharding}"
        yield ArithmeticLine("model state of one rank", spelled, state.total / GIB, "GiB", rule)
    activations = shape.activation_bytes
    source = "given" if arithmetic.demand is None else "predicted by the plan"
    yield ArithmeticLine(
        "activations",
        "all that is saved for backward",
        None if activations is None else activations / GIB,
        "GiB",
        "not given: not counted" if activations is None else source,
    )
    yield from _demand_lines(arithmetic)


def _demand_lines(arithmetic: OffloadArithmetic) -> Iterator[ArithmeticLine]:
    """Say what is held against the limit; after a plan that is its peak, at which not all of it is alive."""
    demand, over = arithmetic.demand, arithmetic.held_bytes - arithmetic.limit_bytes
    held, limit = format_size_short(arithmetic.held_bytes), format_size_short(arithmetic.limit_bytes)
    label = "more than fits" if over > 0 else "room that is left"
    if demand is None:
        spelled, source = f"{held} held, {limit} on the device", "the lines above, device.memory"
    else:
        spelled = f"{held} at the peak without a policy, {limit} allowed"
        source = f"predicted by the plan, {demand.limit_name}"
    yield ArithmeticLine(label, spelled, abs(over) / GIB, "GiB", source)
    if demand is not None and arithmetic.state_bytes:
        yield ArithmeticLine(
            "more than fits without activations",
            f"{format_size_short(demand.floor_bytes)} stay whatever becomes of them, {limit} allowed",
            arithmetic.state_bytes / GIB,
            "GiB",
            source,
        )


def _window_lines(arithmetic: OffloadArithmetic) -> Iterator[ArithmeticLine]:
    step_ms = arithmetic.step_ms
    yield _step_line(arithmetic)
    link = arithmetic.hardware.link()
    rates = (
        ("device to host", "link.d2h", link.d2h_bytes_per_ms),
        ("host to device", "link.h2d", link.h2d_bytes_per_ms),
    )
    for direction, key, rate in rates:
        yield ArithmeticLine(
            f"what a step can hide, {direction}",
            f"{rate / 1e6:g} GB/s x {_ms(step_ms)}",
            None if step_ms is None else rate * step_ms / GIB,
            "GiB",
            f"{key}; more than that stalls the step",
        )
    yield _window_line(arithmetic, link.d2h_bytes_per_ms)


def _window_line(arithmetic: OffloadArithmetic, rate: float) -> ArithmeticLine:
    """Say what leaves for free: the plan's own figure after a plan, a third of the step's time without."""
    label, step_ms, demand = "activations that leave for free", arithmetic.step_ms, arithmetic.demand
    if demand is not None and demand.window_ms is not None:
        return ArithmeticLine(
            label,
            f"{rate / 1e6:g} GB/s x {_ms(demand.window_ms)}",
            rate * demand.window_ms / GIB,
            "GiB",
            "predicted by the plan: from the first saved byte to the peak",
        )
    return ArithmeticLine(
        label,
        f"{rate / 1e6:g} GB/s x {_ms(step_ms)} / 3",
        None if step_ms is None else rate * step_ms * FORWARD_SHARE / GIB,
        "GiB",
        "they leave in forward, a third of a step's compute",
    )


def _step_line(arithmetic: OffloadArithmetic) -> ArithmeticLine:
    hardware, shape, step_ms = arithmetic.hardware, arithmetic.shape, arithmetic.step_ms
    label = "forward and backward of one step"
    if shape.step_ms is not None and arithmetic.demand is not None:
        return ArithmeticLine(label, "without a policy", step_ms, "ms", "predicted by the plan")
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


def _ladder_lines(arithmetic: OffloadArithmetic) -> Iterator[ArithmeticLine]:
    hardware, shape, step_ms = arithmetic.hardware, arithmetic.shape, arithmetic.step_ms
    for measure in arithmetic.order:
        words = KIND_WORDS[measure.kind]
        yield ArithmeticLine(
            f"{words}: freed", _traffic(measure), measure.freed_bytes / GIB, "GiB", _why(measure, shape)
        )
        if measure.kind == "optimizer_state":
            yield from _mixed_line(shape)
        yield _link_line(hardware, measure)
        if step_ms is not None:
            yield ArithmeticLine(
                f"{words}: copies against the step",
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
            f"one more forward frees at most {format_size_short(again.freed_bytes)}",
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
        rank_state(replace(shape, master_weights=True)).optimizer_state / GIB,
        "GiB",
        f"as mixed precision keeps it (plan --master-weights); the line above is all in {shape.parameter_dtype}, "
        "as apply trains",
    )


def _link_line(hardware: HardwareProfile, measure: Measure) -> ArithmeticLine:
    link = hardware.link()
    spelled = (
        f"{format_size_short(measure.d2h_bytes)} / {link.d2h_bytes_per_ms / 1e6:g} GB/s"
        f" + {format_size_short(measure.h2d_bytes)} / {link.h2d_bytes_per_ms / 1e6:g} GB/s"
    )
    label = f"{KIND_WORDS[measure.kind]}: copies in a step"
    return ArithmeticLine(label, spelled, measure.link_ms, "ms", "link.d2h, link.h2d, one after another")


def _choice_lines(choice: Option | None) -> Iterator[ArithmeticLine]:
    if choice is None:
        return
    for measure in choice.measures:
        yield ArithmeticLine(
            KIND_WORDS[measure.kind],
            f"{percent(measure.fraction)} of it",
            measure.freed_bytes / GIB,
            "GiB",
            f"{format_size_short(measure.moved_bytes)} moved in a step",
        )
    yield ArithmeticLine(
        "host memory taken", "with staging buffers", choice.host_bytes / GIB, "GiB", "the lines above"
    )
    yield ArithmeticLine(
        "added to a step",
        "copies that are not hidden + CPU step + recomputation",
        choice.stall_ms,
        "ms",
        "an estimate: a CPU step is counted as exposed",
    )


def _figure_line(hardware: HardwareProfile, label: str, key: str, scale: float, unit: str) -> ArithmeticLine:
    figure = hardware.figure(key)
    value = None if figure is None else figure.amount / scale
    return ArithmeticLine(label, key, value, unit, _source(hardware, key))


def _source(hardware: HardwareProfile, key: str) -> str:
    figure = hardware.figure(key)
    return f"{hardware.name} does not state {key}" if figure is None else figure.source


def _traffic(measure: Measure) -> str:
    ratio = measure.freed_per_moved
    moved = (
        f"{format_size_short(measure.d2h_bytes)} down + {format_size_short(measure.h2d_bytes)} up in a step"
    )
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


def _ms(duration_ms: float | None) -> str:
    return "a step that is not known" if duration_ms is None else f"{duration_ms:.4g} ms"


def percent(fraction: float) -> str:
    """Write a share to two figures or more."""
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{fraction:.2%}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
