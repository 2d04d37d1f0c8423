"""What the arithmetic of offloading comes to, in one sentence."""

from __future__ import annotations

from offload_runtime.offload_options import Option
from offload_runtime.tier_lines import KIND_WORDS, percent
from offload_runtime.tiers import OffloadArithmetic
from offload_runtime.units import format_size_short

__all__ = ["arithmetic_verdict"]


def arithmetic_verdict(arithmetic: OffloadArithmetic) -> str:
    """Say in one sentence what has to leave, and what should."""
    needed, demand, choice = arithmetic.needed_bytes, arithmetic.demand, arithmetic.choice
    if not needed and demand is not None:
        peak, limit = format_size_short(demand.peak_bytes), format_size_short(demand.limit_bytes)
        return f"nothing has to leave the device: the peak of {peak} is within {demand.limit_name}, {limit}"
    if not needed:
        counted = "" if arithmetic.shape.activation_bytes is not None else "; activations were not given"
        return f"nothing has to leave the device: what training holds fits{counted}"
    sentence = f"{format_size_short(needed)} have to leave"
    if arithmetic.state_bytes:
        sentence += f", {format_size_short(arithmetic.state_bytes)} of them whatever becomes of activations"
    if choice is not None:
        weighed = "" if demand is None else "; rates alone say so, a plan weighs each tensor"
        return f"{sentence}: {_chosen(choice)}{weighed}{_carried_out_by(arithmetic, choice)}"
    if not arithmetic.options:
        return f"{sentence}, and all that can leave is not enough"
    # Everything can leave, so what stands in the way is the host.
    least = min(option.host_bytes for option in arithmetic.options)
    host = format_size_short(arithmetic.host_limit_bytes or 0)
    return f"{sentence}, and the host has too little memory: {format_size_short(least)} of {host}"


def _chosen(choice: Option) -> str:
    kinds = " and ".join(
        f"{percent(measure.fraction)} of {KIND_WORDS[measure.kind]}"
        if measure.kind != "recompute"
        else f"recomputation of {percent(measure.fraction)} of activations"
        for measure in choice.measures
    )
    cost = "a time that is not known" if choice.stall_ms is None else f"about {choice.stall_ms:,.0f} ms"
    return f"{kinds}; this adds {cost} to a step"


def _carried_out_by(arithmetic: OffloadArithmetic, choice: Option) -> str:
    """Say after a plan, which moves activations alone, that what it cannot carry out takes another system."""
    of_state = any(
        measure.kind in ("optimizer_state", "gradients", "parameters") for measure in choice.measures
    )
    if arithmetic.demand is None or not of_state:
        return ""
    return "; state leaves by another system (offload export), a plan moves activations alone"
