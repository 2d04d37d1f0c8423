"""Predict the peak of a selection of storages: on one GPU, or on one of eight that hold the model between them.

The article's percentages are of a peak on eight GPUs. There the parameters and what the optimizer keeps of them are
divided by eight, and a full gradient lives only until it has been summed up over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offload_runtime.compiler import Fate
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.traced_model import TracedModel
from offload_runtime.offload_plan import Forecast
from offload_runtime.passes.candidates import read_timeline
from offload_runtime.passes.forecast import forecast_of
from offload_runtime.passes.pipeline import PlannedPair
from offload_runtime.planner import schedule_transfers
from offload_runtime.planning import simulate
from offload_runtime.step import Region, StepTrace

__all__ = ["Shards", "forecast_with"]

DEFER = PREFETCH = 1  # those of max-savings, and of the article's largest savings
NUM_GPUS = 8
_STATE_BYTES = 12  # of a parameter: itself and two Adam moments, in float32
_GRADIENT_BYTES = 4  # of a parameter, in float32, once it is summed up
_GATHERED_LAYERS = 2  # the layer that runs and the one that is fetched ahead


@dataclass(frozen=True)
class Shards:
    """What changes in a step where eight GPUs share a model. Bytes are those of the traced type."""

    parameter_bytes: int
    layer_bytes: int
    element_bytes: int

    @classmethod
    def of(cls, traced: TracedModel) -> Shards:
        """Count a traced model with a ``layers`` list; the first layer stands for all."""
        layer = traced.model.module.get_submodule("layers.0")
        sizes = {parameter.element_size() for parameter in layer.parameters()}
        (element_bytes,) = sizes
        layer_bytes = sum(parameter.nbytes for parameter in layer.parameters())
        return cls(traced.state.parameters, layer_bytes, element_bytes)

    def apply(self, trace: StepTrace) -> StepTrace:
        """Return the step of one GPU: its share of the state, gathered layers, gradients that pass through."""
        shared = _STATE_BYTES * self.parameter_bytes // self.element_bytes // NUM_GPUS
        resident = trace.resident_bytes - self.parameter_bytes + shared + _GATHERED_LAYERS * self.layer_bytes
        end = len(trace.kernels) - 1
        regions: list[Region] = []
        for region in trace.regions:
            if region.last < end or region.first < trace.num_forward:
                regions.append(region)
                continue
            summed = region.num_bytes // self.element_bytes * _GRADIENT_BYTES // NUM_GPUS
            regions += [replace(region, last=region.first), replace(region, num_bytes=summed)]
        return replace(trace, resident_bytes=resident, regions=tuple(regions))


def forecast_with(
    planned: PlannedPair, chosen: Sequence[int], hardware: HardwareProfile, shards: Shards | None = None
) -> Forecast:
    """Predict the same graphs where the storages ``chosen`` leave, and no others."""
    selected, traced = planned.selected, planned.selected.traced
    assert traced is not None
    if shards is not None:
        traced = replace(traced, trace=shards.apply(traced.trace))
    kept = set(chosen)
    fates: tuple[Fate, ...] = tuple(
        "offload" if index in kept else "save" for index in range(len(selected.stored))
    )
    transfers = schedule_transfers(
        [selected.candidates[index] for index in chosen],
        read_timeline(planned.joint, selected.partition),
        defer=DEFER,
        prefetch=PREFETCH,
    )
    moves = traced.moves(transfers, selected.candidates)
    simulation = simulate(traced.trace, fates, moves, hardware.link())
    forecast = forecast_of(replace(selected, fates=fates, traced=traced, simulation=simulation), hardware)
    assert forecast is not None
    return forecast
