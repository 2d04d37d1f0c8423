"""The arithmetic behind advice, spelled out: bytes per parameter, resident against capacity, the window, the floor.

Sizes are in GiB, as device memory is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.state_facts import (
    TrainedState,
    is_state_elsewhere,
    limit_bytes,
    offloaded_shares,
    planned_limit,
    raised_limit,
    sharding_of,
    trained_state,
)
from offload_runtime.tier_lines import ArithmeticLine, ArithmeticSection
from offload_runtime.training_state import DTYPE_BYTES, Sharding
from offload_runtime.units import format_size_short

__all__ = ["AdamForms", "adam_forms", "arithmetic_sections"]

GIB = 1 << 30
_SHARED: Mapping[Sharding, str] = MappingProxyType(
    {
        "none": "nothing",
        "optimizer": "optimizer state",
        "gradients": "gradients and optimizer state",
        "full": "parameters, gradients and optimizer state",
    }
)


@dataclass(frozen=True)
class AdamForms:
    """Two ways to keep the state of a 16-bit model, where nobody said which: all in 16 bit, or mixed precision."""

    plain_state: TrainedState
    mixed_state: TrainedState
    capacity_bytes: int | None

    @property
    def plain(self) -> str:
        """The size of the state in the parameters' own type."""
        return format_size_short(self.plain_state.device_bytes)

    @property
    def mixed(self) -> str:
        """The size of the state with float32 master weights and moments."""
        return format_size_short(self.mixed_state.device_bytes)

    @property
    def hangs_on_master_weights(self) -> bool:
        """Tell whether one form fits the device and the other does not."""
        capacity = self.capacity_bytes
        return (
            capacity is not None and self.plain_state.device_bytes <= capacity < self.mixed_state.device_bytes
        )


def adam_forms(sheet: FactSheet) -> AdamForms | None:
    """Return both forms; None where the run's form is known, or there are not two."""
    dtype, optimizer = sheet.get("dtype"), sheet.get("optimizer")
    if sheet.get("master_weights") is not None or optimizer == "none":
        return None
    if not isinstance(dtype, str) or DTYPE_BYTES.get(dtype, 4) == 4:
        return None
    plain, mixed = (trained_state(sheet, master_weights=masters) for masters in (False, True))
    if plain is None or mixed is None:
        return None
    return AdamForms(plain, mixed, sheet.size("gpu_total_bytes"))


def arithmetic_sections(result: FactsResult) -> tuple[ArithmeticSection, ...]:
    """Return the sections that the facts suffice for."""
    sections = (
        ArithmeticSection("what training holds on one rank", tuple(_state_lines(result.sheet))),
        ArithmeticSection("a step without a policy", tuple(_step_lines(result))),
        ArithmeticSection("what can leave", tuple(_leaving_lines(result))),
    )
    return tuple(section for section in sections if section.lines)


def _state_lines(sheet: FactSheet) -> Iterator[ArithmeticLine]:
    forms = adam_forms(sheet)
    if forms is None:
        state = trained_state(sheet)
        if state is not None:
            yield from _form_lines(state, str(sheet.get("optimizer")))
    else:
        yield from _form_lines(
            forms.plain_state,
            f"{sheet.get('optimizer')}, all in {sheet.get('dtype')}, as plan and apply train",
        )
        yield from _form_lines(
            forms.mixed_state, f"{sheet.get('optimizer')}, float32 master weights and moments"
        )
    kinds = {"parameter": "parameters", "gradient": "gradients", "optimizer_state": "optimizer state"}
    sizes = {words: sheet.size(f"{name}_bytes") for name, words in kinds.items()}
    resident, capacity = sheet.size("resident_bytes"), sheet.size("gpu_total_bytes")
    if resident is not None:
        shares = offloaded_shares(sheet)
        off = [kinds[kind] for kind in shares]
        whole = {kinds[kind] for kind, share in shares.items() if share >= 1}
        spelled = " + ".join(
            f"{format_size_short(size)} {words}"
            for words, size in sizes.items()
            if size is not None and words not in whole
        )
        if off and spelled:
            spelled += f", less what is offloaded already of {' and '.join(off)}"
        yield _size_line("resident", spelled or "given", resident, sheet.origin("resident_bytes"))
    if resident is not None and capacity is not None:
        over = resident - capacity
        label = "resident, more than the device has" if over > 0 else "room beside what is resident"
        spelled = f"{format_size_short(resident)} of {format_size_short(capacity)}"
        yield _size_line(label, spelled, abs(over), sheet.origin("gpu_total_bytes"))


def _form_lines(state: TrainedState, source: str) -> Iterator[ArithmeticLine]:
    each = state.per_parameter
    spelled = (
        f"{each.parameters} B weight + {each.gradients} B gradient + {each.master} B master"
        f" + {each.moments} B moments"
    )
    yield ArithmeticLine("state for one trained parameter", spelled, each.total, "B", source)
    frozen = state.num_parameters - state.num_trained
    spelled = f"{each.total} B x {state.num_trained:,} trained"
    if frozen:
        spelled += f" + {each.parameters} B x {frozen:,} frozen"
    if state.num_ranks > 1:
        spelled += f", {_SHARED[state.sharding]} shared by {state.num_ranks} ranks"
    yield _size_line("model state", spelled, state.held.total, "the line above")


def _step_lines(result: FactsResult) -> Iterator[ArithmeticLine]:
    sheet, estimate = result.sheet, result.estimate
    peak, capacity = sheet.size("peak_bytes"), sheet.size("gpu_total_bytes")
    saved = sheet.size("activation_bytes")
    if saved is not None:
        yield _size_line("saved for backward", "all activations", saved, sheet.origin("activation_bytes"))
    if peak is not None:
        # Without the state that is elsewhere another place may be the peak.
        where = "" if estimate is None or is_state_elsewhere(sheet) else f"in {estimate.peak_at}"
        yield _size_line("peak", where, peak, sheet.origin("peak_bytes"))
    if estimate is not None and estimate.step_bytes:
        parts = " + ".join(f"{format_size_short(p.num_bytes)} {p.what}" for p in estimate.step_parts)
        yield _size_line("the optimizer's step", parts, estimate.step_bytes, "activations are gone by then")
    limit = planned_limit(sheet)
    has_room = sheet.get("fits") is True and sheet.get("out_of_memory") is not True
    if peak is not None and capacity is not None and limit is not None and peak > limit and not has_room:
        if limit == limit_bytes(capacity):
            spelled = f"{format_size_short(peak)} less 94 % of {format_size_short(capacity)}"
            source = "6 % are left, as device_peak: auto does"
        elif limit == raised_limit(sheet):
            spelled = f"{format_size_short(peak)} less a limit of {format_size_short(limit)}"
            source = "the floor, which is over what device_peak: auto takes"
        else:
            spelled = f"{format_size_short(peak)} less a limit of {format_size_short(limit)}"
            source = "the run took more than was predicted, and 6 % are left"
        yield _size_line("has to go", spelled, peak - limit, source)


def _leaving_lines(result: FactsResult) -> Iterator[ArithmeticLine]:
    sheet, estimate = result.sheet, result.estimate
    window, rate = sheet.size("window_bytes"), sheet.number("link_d2h_gbps")
    if window is not None:
        spelled = ""
        if estimate is not None and rate is not None:
            spelled = f"{rate:g} GB/s x {estimate.window_ms:.4g} ms from the first saved byte to the peak"
        yield _size_line("window: leaves for free", spelled, window, sheet.origin("window_bytes"))
    floor = sheet.size("floor_bytes")
    if floor is not None:
        parts = () if estimate is None else estimate.floor_parts
        if estimate is not None and floor == estimate.step_bytes:
            parts = estimate.step_parts
        spelled = " + ".join(f"{format_size_short(part.num_bytes)} {part.what}" for part in parts)
        yield _size_line("floor", spelled, floor, sheet.origin("floor_bytes"))
    elif sheet.get("fits") is False and sheet.get("floor_fits") is None:
        yield ArithmeticLine("floor", "not known", None, "GiB", "give --model and --hardware")
    if sharding_of(sheet) is None and sheet.size("resident_bytes") is None:
        yield ArithmeticLine(
            "state of one rank",
            "not known",
            None,
            "GiB",
            "give resident_bytes of one rank: what the ranks divide among them is not said, or not known here",
        )


def _size_line(label: str, expression: str, num_bytes: int, source: str | None) -> ArithmeticLine:
    return ArithmeticLine(label, expression, num_bytes / GIB, "GiB", source or "")
