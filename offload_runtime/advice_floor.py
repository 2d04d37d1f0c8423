"""What holds the floor of a training that no policy on activations makes fit, and what would lower it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offload_runtime.advice_systems import carried_out_by
from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.state_facts import limit_bytes, offloaded_shares, sharding_of
from offload_runtime.units import format_size_short

__all__ = ["NO_CURES", "Cures", "Floor", "find_cures", "find_floor"]

_KINDS = {"parameter": "parameters", "gradient": "gradients", "optimizer_state": "optimizer state"}
_BY_THE_LOOP = "torch.utils.checkpoint, or what that system has"


@dataclass(frozen=True)
class Floor:
    """What stays whatever becomes of activations; ``is_of_activations``: one step needs most of it."""

    num_bytes: int
    sentence: str
    is_of_activations: bool


@dataclass(frozen=True)
class Cures:
    """What makes a training fit, each by itself, and what lowers the floor and is not enough alone."""

    enough: tuple[str, ...] = ()
    too_little: tuple[str, ...] = ()


NO_CURES = Cures()


@dataclass(frozen=True)
class _Cure:
    """``left_bytes`` stay on the device at least; None where that is not known."""

    text: str
    left_bytes: int | None


def find_floor(result: FactsResult) -> Floor | None:
    """Return the floor of a step, or of what stays where no step was simulated; None where neither is known."""
    sheet, estimate = result.sheet, result.estimate
    floor, resident = sheet.size("floor_bytes"), sheet.size("resident_bytes")
    state = [(words, size) for words, size in _on_device(sheet).items() if size]
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
        rest = (floor or 0) - sum(size for _, size in state)
        held += [("what a step needs beside them", rest)] if state and rest > 0 else []
    if floor is None:
        return None
    parts = ", ".join(f"{words} {format_size_short(size)}" for words, size in held)
    sentence = f"the floor is {format_size_short(floor)}, {where}{f' ({parts})' if parts else ''}"
    return Floor(floor, sentence, is_of_activations=resident is not None and 2 * resident < floor)


def find_cures(result: FactsResult, floor: Floor | None, target_bytes: int | None) -> Cures:
    """Say what would bring the floor to ``target_bytes``, with what each leaves where the arithmetic knows."""
    found = list(_cures(result, floor))
    if target_bytes is None:
        return Cures(enough=tuple(cure.text for cure in found))
    is_enough = [cure.left_bytes is None or cure.left_bytes <= target_bytes for cure in found]
    return Cures(
        enough=tuple(cure.text for cure, enough in zip(found, is_enough, strict=True) if enough),
        too_little=tuple(cure.text for cure, enough in zip(found, is_enough, strict=True) if not enough),
    )


def _cures(result: FactsResult, floor: Floor | None) -> Iterator[_Cure]:
    sheet, estimate = result.sheet, result.estimate
    sizes = _on_device(sheet)
    is_known = len(sizes) == len(_KINDS)
    optimizer_state, whole = sizes.get("optimizer state", 0), sum(sizes.values())
    if floor is not None and estimate is not None and floor.num_bytes == estimate.step_bytes:
        yield from _fused_step(result)
    if optimizer_state and is_known:
        left = whole - optimizer_state
        text = (
            f"offload the optimizer's state, {format_size_short(optimizer_state)}, with a system that can: "
        )
        text += f"{format_size_short(left)} of state stay; {_beside(result, optimizer_state)}"
        yield _Cure(text, left)
    shared = _shared_further(result, {kind: sizes[words] for kind, words in _KINDS.items() if words in sizes})
    if shared is not None and is_known:
        yield shared
    fraction = sheet.number("trainable_fraction")
    if (fraction is None or fraction > 0.1) and (optimizer_state or sizes.get("gradients")):
        weights = sizes.get("parameters")
        left_words = "" if not weights else f", {format_size_short(weights)} of weights stay"
        yield _Cure(
            f"train adapters (LoRA): the rest has neither gradient nor optimizer state{left_words}; "
            "activations come on top",
            weights,
        )
    stays = max(sheet.size("resident_bytes") or 0, 0 if estimate is None else estimate.step_bytes)
    if floor is None or floor.num_bytes > stays:
        text = "a smaller batch or shorter sequences: one step needs less at once"
        yield _Cure(text, stays or None)


def _fused_step(result: FactsResult) -> Iterator[_Cure]:
    estimate = result.estimate
    if estimate is None or not estimate.step_temporary_bytes or result.sheet.get("optimizer") != "adamw":
        return
    left = estimate.step_bytes - estimate.step_temporary_bytes
    text = (
        "AdamW(fused=True), planned as --optimizer adamw-fused: its step holds no temporaries, "
        f"{format_size_short(estimate.step_temporary_bytes)} less, and takes {format_size_short(left)}"
    )
    least = estimate.least_backward_bytes
    if least is not None and least > left:
        text += f"; forward and backward take {format_size_short(least)} at the least"
    yield _Cure(text, max(left, least or 0))


def _beside(result: FactsResult, freed_bytes: int, step_bytes: int = 0) -> str:
    """Say what becomes of the peak when ``freed_bytes`` of state are gone, and whether activations have to go, too.

    The optimizer's step then takes ``step_bytes`` of the device: 0 where it goes with the state.
    """
    sheet, estimate, capacity = result.sheet, result.estimate, result.sheet.size("gpu_total_bytes")
    peak = None if estimate is None else estimate.backward_peak_bytes
    peak = sheet.size("peak_bytes") if peak is None else peak
    if peak is None:
        return "activations come on top"
    left = max(0, peak - freed_bytes, step_bytes)
    after = format_size_short(left)
    if capacity is None:
        return f"the peak is then {after}"
    if left <= capacity:
        return f"the peak is then {after}, which fits: activations can stay"
    by = carried_out_by("activations", sheet, _BY_THE_LOOP)
    return (
        f"the peak is then {after}, still more than {format_size_short(capacity)}: activations have to be offloaded or "
        f"recomputed, too ({by})"
    )


def _on_device(sheet: FactSheet) -> dict[str, int]:
    """Return the bytes of each kind of state that is known, in words; what is offloaded already does not count."""
    off = offloaded_shares(sheet)
    sizes = {kind: sheet.size(f"{kind}_bytes") for kind in _KINDS}
    return {
        _KINDS[kind]: size - int(size * off.get(kind, 0.0))
        for kind, size in sizes.items()
        if size is not None
    }


def _shared_further(result: FactsResult, sizes: Mapping[str, int]) -> _Cure | None:
    """Say how many ranks can hold the state that is on the device of each, where sharing it is not exhausted.

    Of a rank's ``sizes`` those that ranks share already stand for that many times as much. Beyond the ranks that there
    are, their number is doubled until the state fits.
    """
    sheet = result.sheet
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
    each = -(-whole // num_ranks)
    temporaries = 0 if result.estimate is None else result.estimate.step_temporary_bytes
    beside = _beside(result, sum(sizes.values()) - each, each + temporaries // num_ranks)
    hold = f"{num_ranks} ranks hold {format_size_short(each)} each; {beside}"
    if kind == "full" and num_now > 1:
        return _Cure(f"share the state among more ranks than {num_now}: {hold}", each)
    return _Cure(f"share the state among ranks (ZeRO-3, FSDP2): {hold}", each)
