"""Facts that follow from other facts: what training holds on one rank, and whether that fits.

    num_parameters, trainable_fraction, dtype, optimizer, master_weights, sharding -> bytes of state -> fits or not

A fact that was given or measured is left as it is; one that misses a part of its arithmetic stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offload_runtime.fact_sheet import FactSheet
from offload_runtime.offload_facts import of_offloading, refuse_contradictions
from offload_runtime.predicates import Scalar
from offload_runtime.training_state import (
    DTYPE_BYTES,
    NUM_MOMENTS,
    BytesPerParameter,
    RankState,
    Sharding,
    TrainingShape,
    bytes_per_parameter,
    rank_state,
)

__all__ = [
    "DEVICE_SHARE",
    "MIB",
    "TrainedState",
    "derived",
    "device_bytes_of",
    "is_state_elsewhere",
    "limit_bytes",
    "offloaded_shares",
    "planned_limit",
    "raised_limit",
    "sharding_of",
    "trained_state",
]

DEVICE_SHARE = 0.94
"""Share of device memory that a plan may take: what `device_peak: auto` leaves for fragmentation and libraries."""

MIB = 1 << 20
_ARITHMETIC = "arithmetic"
_SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")


@dataclass(frozen=True)
class TrainedState:
    """What one rank holds: all parameters, and gradients and optimizer's state of those that are trained.

    ``device_bytes`` are those of ``held`` that are not offloaded already.
    """

    per_parameter: BytesPerParameter
    num_parameters: int
    num_trained: int
    num_ranks: int
    sharding: Sharding
    held: RankState
    device_bytes: int


def derived(sheet: FactSheet) -> FactSheet:
    """Return the sheet with what follows from its facts.

    Raises UsageError (CLI614) for facts that exclude each other.
    """
    refuse_contradictions(sheet)
    sheet = of_offloading(sheet)
    state = trained_state(sheet)
    if state is not None:
        held = state.held
        sheet = sheet.beneath(
            {
                "parameter_bytes": held.parameters,
                "gradient_bytes": held.gradients,
                "optimizer_state_bytes": held.optimizer_state,
            },
            _ARITHMETIC,
        )
    sizes = {kind: sheet.size(f"{kind}_bytes") for kind in ("parameter", "gradient", "optimizer_state")}
    known = {kind: size for kind, size in sizes.items() if size is not None}
    if len(known) == len(sizes):
        sheet = sheet.beneath({"resident_bytes": device_bytes_of(sheet, known)}, _ARITHMETIC)
    capacity = sheet.size("gpu_total_bytes")
    if capacity is not None:
        sheet = sheet.beneath(_fitting(sheet, capacity), _ARITHMETIC)
    return sheet


def limit_bytes(capacity_bytes: int) -> int:
    """Return what a plan may take of a device: what `device_peak: auto` leaves."""
    return int(capacity_bytes * DEVICE_SHARE)


def planned_limit(sheet: FactSheet) -> int | None:
    """Return the peak, in bytes, that a plan for this run should keep to; None where the device is not known.

    That is what ``auto`` leaves, or the floor in whole MiB where that is higher and still within the device. A run that
    was predicted to fit and overflowed takes more than was predicted: by what the prediction left free, at least, and
    as much less a plan may take, in whole MiB; not less than stays in any plan.
    """
    capacity, peak = sheet.size("gpu_total_bytes"), sheet.size("peak_bytes")
    if capacity is None:
        return None
    limit = limit_bytes(capacity)
    if peak is None or sheet.get("fits") is not True or sheet.get("out_of_memory") is not True:
        return raised_limit(sheet) or limit
    least = max(sheet.size("floor_bytes") or 0, sheet.size("resident_bytes") or 0)
    return max((limit - (capacity - peak)) // MIB, -(-least // MIB)) * MIB


def raised_limit(sheet: FactSheet) -> int | None:
    """Return the least whole MiB above a floor that only the margin of a plan keeps off the device; else None."""
    capacity, floor = sheet.size("gpu_total_bytes"), sheet.size("floor_bytes")
    if capacity is None or floor is None or not limit_bytes(capacity) < floor <= capacity:
        return None
    return -(-floor // MIB) * MIB


def offloaded_shares(sheet: FactSheet) -> dict[str, float]:
    """Return what share of each kind of state is off the device already; kinds of which nothing is are left out.

    DeepSpeed's offloaded optimizer keeps the gradients that it steps with on the host, too.
    """
    fraction = sheet.number("offload_fraction")
    optimizer = (1.0 if fraction is None else fraction) if sheet.get("optimizer_offload") is True else 0.0
    gradients = optimizer if sheet.get("framework") == "deepspeed" else 0.0
    shares = {
        "parameter": 1.0 if sheet.get("parameter_offload") is True else 0.0,
        "gradient": 1.0 if sheet.get("gradient_offload") is True else gradients,
        "optimizer_state": optimizer,
    }
    return {kind: share for kind, share in shares.items() if share}


def is_state_elsewhere(sheet: FactSheet) -> bool:
    """Tell whether all of the optimizer's state is off the device already, by another system than this package."""
    return offloaded_shares(sheet).get("optimizer_state", 0.0) >= 1


def device_bytes_of(sheet: FactSheet, sizes: Mapping[str, int]) -> int:
    """Return how much of ``sizes``, bytes by kind of state, is on the device."""
    shares = offloaded_shares(sheet)
    return sum(size - int(size * shares.get(kind, 0.0)) for kind, size in sizes.items())


def trained_state(sheet: FactSheet, *, master_weights: bool | None = None) -> TrainedState | None:
    """Return what training holds on one rank, by arithmetic; None where a part of it is not known.

    ``master_weights`` stands in for the fact of that name.
    """
    num_parameters, fraction = sheet.size("num_parameters"), sheet.number("trainable_fraction")
    dtype, optimizer = sheet.get("dtype"), sheet.get("optimizer")
    masters = sheet.get("master_weights") if master_weights is None else master_weights
    sharding = sharding_of(sheet)
    if num_parameters is None or fraction is None or sharding is None:
        return None
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES or optimizer not in NUM_MOMENTS:
        return None
    if masters is None and DTYPE_BYTES[dtype] == 4:
        masters = False  # what is in float32 has no copy in float32
    if masters is None or num_parameters < 1:
        return None
    kind, num_ranks = sharding
    shape = TrainingShape(
        num_parameters=num_parameters,
        num_trained=round(num_parameters * fraction),
        parameter_dtype=dtype,
        optimizer=str(optimizer),
        master_weights=bool(masters),
        num_ranks=num_ranks,
        sharding=kind,
    )
    held = rank_state(shape)
    sizes = {
        "parameter": held.parameters,
        "gradient": held.gradients,
        "optimizer_state": held.optimizer_state,
    }
    each, left = bytes_per_parameter(shape), device_bytes_of(sheet, sizes)
    return TrainedState(each, num_parameters, shape.trained_parameters, num_ranks, kind, held, left)


def sharding_of(sheet: FactSheet) -> tuple[Sharding, int] | None:
    """Return what ranks divide among them, and how many do; None where that is not known.

    Where nothing speaks of several ranks, it is one that shares with nobody. Tensor, pipeline
    and expert parallelism divide a model in ways that arithmetic does not know.
    """
    degrees = [sheet.size(f"{kind}_parallel") for kind in ("tensor", "pipeline", "expert")]
    if any(degree is not None and degree > 1 for degree in degrees):
        return None
    num_ranks = sheet.size("data_parallel")
    if num_ranks == 1 or (
        num_ranks is None and (sheet.size("world_size") or sheet.size("ranks_per_node") or 1) == 1
    ):
        return "none", 1
    stage = sheet.size("zero_stage")
    if stage is not None and 0 <= stage < len(_SHARDINGS):
        kind = _SHARDINGS[stage]
    elif sheet.get("framework") == "fsdp2":
        kind = "full"
    elif sheet.get("distributed_optimizer") is True:
        kind = "optimizer"
    else:
        return None
    return None if num_ranks is None else (kind, num_ranks)


def _fitting(sheet: FactSheet, capacity: int) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    peak, resident, floor = (sheet.size(f"{name}_bytes") for name in ("peak", "resident", "floor"))
    if peak is not None:
        found["fits"] = peak <= capacity
    if resident is not None:
        found["resident_fits"] = resident <= capacity
    else:
        # Where nobody said whether there are float32 master weights, both forms may agree.
        forms = [trained_state(sheet, master_weights=masters) for masters in (False, True)]
        fitting = {form.device_bytes <= capacity for form in forms if form is not None}
        if sheet.get("master_weights") is None and len(fitting) == 1:
            found["resident_fits"] = fitting.pop()
    if floor is not None:
        found["floor_fits"] = floor <= capacity
    elif found.get("fits") is True:
        found["floor_fits"] = True
    elif found.get("resident_fits") is False:
        # Whatever becomes of activations, the state stays.
        found |= {"fits": False, "floor_fits": False}
    return found
