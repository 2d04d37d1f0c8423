"""What holds the floor of a training that no policy on activations makes fit, and what would lower it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.state_facts import MIB, limit_bytes, offloaded_shares, sharding_of
from offload_runtime.units import format_size_short

__all__ = ["Floor", "find_floor", "limit_near_the_device", "what_lowers"]


@dataclass(frozen=True)
class Floor:
    """What stays whatever becomes of activations; ``is_of_activations``: one step needs most of it."""

    num_bytes: int
    sentence: str
    is_of_activations: bool


def find_floor(result: FactsResult) -> Floor | None:
    """Return the floor of a step, or of what stays where no step was simulated; None where neither is known."""
    sheet, estimate = result.sheet, result.estimate
    floor, resident = sheet.size("floor_bytes"), sheet.size("resident_bytes")
    names = {"parameter": "parameters", "gradient": "gradients", "optimizer_state": "optimizer state"}
    sizes = {words: sheet.size(f"{name}_bytes") for name, words in names.items()}
    state = [(words, size) for words, size in sizes.items() if size]
    if floor is not None and estimate is not None and floor > estimate.step_bytes:
        where, held = (
            "at the least peak that a plan reaches",
            [(p.what, p.num_bytes) for p in estimate.floor_parts],
        )
    elif estimate is not None and estimate.step_bytes >= max(floor or 0, resident or 0):
        floor = estimate.step_bytes
        where = "in the optimizer's step, when activations are gone"
        held = [(part.what, part.num_bytes) for part in estimate.step_parts]
    elif floor is None and resident is not None:
        floor, where, held = resident, "before any activation", state
    else:
        where, held = "at least", state
    if floor is None:
        return None
    parts = ", ".join(f"{words} {format_size_short(size)}" for words, size in held)
    sentence = f"the floor is {format_size_short(floor)}, {where}{f' ({parts})' if parts else ''}"
    capacity = sheet.size("gpu_total_bytes")
    if capacity is not None:
        sentence += f", of {format_size_short(capacity)} on the device"
        if floor <= capacity:
            sentence += f", of which a plan may take {format_size_short(limit_bytes(capacity))} (94 %)"
    return Floor(floor, sentence, is_of_activations=resident is not None and 2 * resident < floor)


def what_lowers(result: FactsResult, floor: Floor | None) -> tuple[str, ...]:
    """Say what would make it fit, with what each leaves where the arithmetic knows."""
    sheet = result.sheet
    sizes = {kind: sheet.size(f"{kind}_bytes") for kind in ("parameter", "gradient", "optimizer_state")}
    off = offloaded_shares(sheet)
    # What is off the device already is neither a cure nor what stays.
    sizes = {kind: s if s is None else s - int(s * off.get(kind, 0.0)) for kind, s in sizes.items()}
    known = [size for size in sizes.values() if size is not None]
    found = []
    estimate = result.estimate
    if floor is not None and estimate is not None and floor.num_bytes == estimate.step_bytes:
        temporary_bytes = estimate.step_temporary_bytes
        if temporary_bytes and sheet.get("optimizer") == "adamw":
            found.append(
                f"AdamW(fused=True), planned as --optimizer adamw-fused: its step holds no temporaries, "
                f"{format_size_short(temporary_bytes)} less, and takes "
                f"{format_size_short(floor.num_bytes - temporary_bytes)}"
            )
    near = limit_near_the_device(sheet, floor)
    if near is not None:
        found.append(
            f"a limit nearer to the device: plan with --set limits.device_peak={near // MIB}MiB or more; less than the "
            "usual 6 % is then left for what no plan counts (CUDA context, fragmentation)"
        )
    if sizes["optimizer_state"] and len(known) == len(sizes):
        freed = format_size_short(sizes["optimizer_state"])
        left = format_size_short(sum(known) - sizes["optimizer_state"])
        found.append(
            f"offload the optimizer's state, {freed}, with a system that can: {left} stay, and activations"
        )
    shared = _shared_further(sheet, {kind: size for kind, size in sizes.items() if size is not None})
    if shared is not None and len(known) == len(sizes):
        found.append(shared)
    fraction = sheet.number("trainable_fraction")
    if (fraction is None or fraction > 0.1) and (sizes["optimizer_state"] or sizes["gradient"]):
        left = "" if not sizes["parameter"] else f", {format_size_short(sizes['parameter'])} of weights stay"
        found.append(f"train adapters (LoRA): the rest has neither gradient nor optimizer state{left}")
    if floor is None or floor.is_of_activations or sheet.size("floor_bytes") is not None:
        found.append("a smaller batch or shorter sequences: one step needs less at once")
    return tuple(found)


def limit_near_the_device(sheet: FactSheet, floor: Floor | None) -> int | None:
    """Return the least whole MiB above a floor that only the margin of a plan keeps off the device; else None."""
    capacity = sheet.size("gpu_total_bytes")
    if floor is None or capacity is None or not limit_bytes(capacity) < floor.num_bytes < capacity:
        return None
    return -(-floor.num_bytes // MIB) * MIB


def _shared_further(sheet: FactSheet, sizes: Mapping[str, int]) -> str | None:
    """Say how many ranks can hold the state that is on the device of each, where sharing it is not exhausted.

    Of a rank's ``sizes`` those that ranks share already stand for that many times as much. Beyond the ranks that there
    are, their number is doubled until the state fits.
    """
    capacity, sharing = sheet.size("gpu_total_bytes"), sharding_of(sheet)
    if not capacity or not sum(sizes.values()):
        return None
    kind, num_now = sharing or ("none", 1)
    shared = {
        "none": (),
        "optimizer": ("optimizer_state",),
        "gradients": ("optimizer_state", "gradient"),
        "full": ("optimizer_state", "gradient", "parameter"),
    }[kind]
    whole = sum(size * (num_now if name in shared else 1) for name, size in sizes.items())
    limit = limit_bytes(capacity)
    if num_now == 1:
        num_ranks = max(2, -(-whole // limit))
    else:
        num_ranks = num_now * 2 if kind == "full" else num_now
        while whole > num_ranks * limit:
            num_ranks *= 2
    each = format_size_short(-(-whole // num_ranks))
    if kind == "full" and num_now > 1:
        return f"share the state among more ranks than {num_now}: {num_ranks} ranks hold {each} each, and activations"
    return f"share the state among ranks (ZeRO-3, FSDP2): {num_ranks} ranks hold {each} each, and activations"
