"""Measure facts: of this machine or a hardware profile, and of a model that is traced and planned without being run.

    machine | profile -> known facts      model -> counted -> traced -> simulated -> floor -> more facts
                                                given facts go before all of them

A step that fails leaves its facts unknown and says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from offload_runtime.compiler import load_policy
from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.fact_sheet import FactSheet, FactsResult, MemoryPart, ModelEstimate
from offload_runtime.graph.operators import class_of_node
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.catalog import algorithm_of
from offload_runtime.models.fake_capture import fake_model
from offload_runtime.models.frontier import find_floor
from offload_runtime.models.optimizer_step import optimizer_state_bytes, step_temporary_bytes
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.planning import Progress, predict_baseline
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.step_places import STAYS
from offload_runtime.models.traced_model import StateBytes, trace_request
from offload_runtime.models.under_test import ModelUnderTest
from offload_runtime.predicates import Scalar
from offload_runtime.runtime.capture import CapturedGraph
from offload_runtime.runtime.machine_facts import hardware_facts, is_launched, machine_facts, parallel_facts
from offload_runtime.runtime.setting import profile_of_device
from offload_runtime.state_facts import derived, device_bytes_of, sharding_of, trained_state
from offload_runtime.training_state import DTYPE_BYTES, MASTER_BYTES

__all__ = ["gather_facts"]

FLOOR_POLICY = "fit"


@dataclass(frozen=True)
class _Asked:
    request: ModelRequest
    mode: str
    hardware: HardwareProfile | None
    progress: Progress


def gather_facts(
    request: ModelRequest | None = None,
    *,
    hardware: HardwareProfile | None = None,
    given: Mapping[str, Scalar] | None = None,
    mode: str = "graph",
    ask_machine: bool = True,
    progress: Progress | None = None,
) -> FactsResult:
    """Return what is known of the machine (or ``hardware``), of the model of ``request``, and of the run (``given``).

    Without ``ask_machine`` this machine is left out of it: the facts given are of another one.

    A model is traced with fake tensors and planned; nothing is run and no device is needed. Raises as
    ``ModelRequest.resolve`` does for a model that does not exist; what cannot be traced or planned leaves facts unknown
    and a note (ADV911).
    """
    sheet = _machine_sheet(hardware, given or {}, ask_machine=ask_machine, is_planned=request is not None)
    if request is None:
        return FactsResult(derived(sheet))
    profile = hardware or profile_of_device(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model = fake_model(request)
    sheet = sheet.beneath(dict(_counted(model, request)), request.spec)
    sheet = _with_state(sheet, model, 0 if profile is None else profile.workspace_bytes)
    asked = _Asked(request, mode, profile, progress or (lambda phase, done, total: None))
    estimate: ModelEstimate | None = None
    notes: tuple[Diagnostic, ...] = ()
    try:
        estimate, sheet = _simulated(asked, sheet)
    except OffloadError as error:
        notes = tuple(_note(diagnostic) for diagnostic in error.diagnostics)
        if {diagnostic.code for diagnostic in error.diagnostics} & {"MOD731", "MOD732"}:
            sheet = sheet.beneath({"traceable": False}, request.spec)
    return FactsResult(derived(sheet), estimate, notes)


def _machine_sheet(
    hardware: HardwareProfile | None, given: Mapping[str, Scalar], *, ask_machine: bool, is_planned: bool
) -> FactSheet:
    """Return the facts given, and beneath them those of the machine and of this process's place among others.

    A command that no launcher started is no training process: that it is alone says nothing of the run. A model is
    planned for one process, though, unless something given speaks of several.
    """
    sheet = FactSheet().with_facts(given, "given")
    several = any(name in given for name in ("framework", *parallel_facts({})))
    parallel: dict[str, Scalar] = {}
    if is_launched():
        parallel, origin = parallel_facts(), "the launcher"
    elif is_planned and not several:
        parallel, origin = parallel_facts({}), "one process is planned"
    if parallel:
        sheet = sheet.beneath(parallel, origin)
    if hardware is not None:
        return sheet.beneath(hardware_facts(hardware), f"hardware profile {hardware.name}")
    return sheet.beneath(machine_facts(), "this machine") if ask_machine else sheet


def _counted(model: ModelUnderTest, request: ModelRequest) -> Iterator[tuple[str, Scalar]]:
    """Yield what can be read off the module and what was asked for, without tracing anything."""
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    yield "num_parameters", model.num_parameters
    if model.num_parameters:
        yield "trainable_fraction", trained / model.num_parameters
    if model.num_layers is not None:
        yield "num_layers", model.num_layers
    yield "optimizer", algorithm_of(model.optimizer)
    if model.dtype in DTYPE_BYTES:
        yield "dtype", model.dtype
    batch = model.example_args[0] if model.example_args else None
    if request.spec.partition(":")[0] in ("builtin", "hf") and isinstance(batch, torch.Tensor):
        yield "micro_batch", batch.shape[0]
        if batch.ndim == 2:
            yield "sequence_length", batch.shape[1]


def _with_state(sheet: FactSheet, model: ModelUnderTest, workspace_bytes: int) -> FactSheet:
    """Fill in what is resident: as ``torch.optim`` allocates it, unless the run keeps or shares it in another way."""
    sharding = sharding_of(sheet)
    if sharding is None:
        return sheet
    held = trained_state(sheet)
    if held is not None and sharding[1] > 1:
        sheet = derived(sheet)
    elif held is not None and sheet.get("master_weights") is True:
        sheet = sheet.beneath({"optimizer_state_bytes": held.held.optimizer_state}, "arithmetic")
    state = StateBytes.of(model)
    counted: dict[str, Scalar] = {
        "parameter_bytes": state.parameters + state.buffers,
        "gradient_bytes": state.trainable,
        "optimizer_state_bytes": optimizer_state_bytes(state, model.optimizer),
    }
    if sharding[1] == 1:
        sheet = sheet.beneath(counted, model.name)
    sizes = {name.removesuffix("_bytes"): sheet.size(name) for name in counted}
    known = {kind: size for kind, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return sheet
    on_device = device_bytes_of(sheet, known)
    return sheet.beneath({"resident_bytes": on_device + state.batch + workspace_bytes}, model.name)


def _simulated(asked: _Asked, sheet: FactSheet) -> tuple[ModelEstimate | None, FactSheet]:
    """Trace the model and, where the hardware is known, simulate it. Raises as these do."""
    spec = asked.request.spec
    asked.progress("trace", 0, 1)
    traced = trace_request(asked.request, mode=asked.mode)
    asked.progress("trace", 1, 1)
    is_moe = any(map(_chooses, traced.graphs))
    counted: dict[str, Scalar] = {"traceable": True, "num_graphs": len(traced.graphs), "is_moe": is_moe}
    sheet = sheet.beneath({**counted, "mode": asked.mode}, spec)
    if asked.hardware is None:
        return None, sheet
    asked.progress("baseline", 0, 1)
    baseline = predict_baseline(traced, asked.hardware)
    asked.progress("baseline", 1, 1)
    pairs = baseline.planned.pairs
    if baseline.planned.num_layers is not None:
        sheet = sheet.beneath({"num_layers": baseline.planned.num_layers}, spec)
    saved = (pair.selected.traced.trace.items for pair in pairs if pair.selected.traced is not None)
    simulated: dict[str, Scalar] = {
        "activation_bytes": sum(item.num_bytes for items in saved for item in items),
        "window_bytes": baseline.window.num_bytes,
        "step_ms": baseline.forecast.step_ms,
    }
    sheet = sheet.beneath(simulated, _origin(asked))
    if sharding_of(sheet) != ("none", 1):
        return None, sheet  # one rank is planned, and what it shares with others is not known to the plan
    return _peaks(asked, sheet, baseline)


def _chooses(graph: CapturedGraph) -> bool:
    """Tell whether a graph chooses by value where data goes, as a mixture of experts does."""
    nodes = (node for node in graph.module.graph.nodes if node.op == "call_function")
    return any(class_of_node(node) == "routing" for node in nodes)


def _peaks(asked: _Asked, sheet: FactSheet, baseline: Baseline) -> tuple[ModelEstimate, FactSheet]:
    """Work out the peak and, where that does not fit, the floor: with the state that the run keeps on the device.

    Gradients that another system offloads are off the device by the optimizer's step; where activations make the peak
    they are counted, since they leave as they are born. The buffers of a layer whose parameters are away are not.
    """
    resident = baseline.resident
    kept = sheet.size("optimizer_state_bytes")
    parameters = device_bytes_of(sheet, {"parameter": resident.parameters})
    gradients = device_bytes_of(sheet, {"gradient": resident.gradients})
    more = parameters - resident.parameters
    if kept is not None:
        more += device_bytes_of(sheet, {"optimizer_state": kept}) - resident.optimizer_state
    # What is stepped on the host has its temporaries there.
    temporaries = device_bytes_of(
        sheet, {"optimizer_state": step_temporary_bytes(resident, baseline.optimizer)}
    )
    state = trained_state(sheet)
    if state is not None and state.per_parameter.master:
        temporaries *= MASTER_BYTES // state.per_parameter.parameters
    step_bytes = 0
    if baseline.optimizer != "none":
        step_bytes = resident.throughout + more + gradients + temporaries
    simulated_peak = baseline.planned.step.simulation.peak_bytes + more
    peak = max(simulated_peak, step_bytes)
    sheet = derived(sheet.beneath({"peak_bytes": peak}, _origin(asked)))
    floor_parts: tuple[MemoryPart, ...] = ()
    capacity = sheet.size("gpu_total_bytes") or baseline.hardware.device_memory_bytes
    least: int | None = None
    if step_bytes > capacity:
        sheet = sheet.beneath({"floor_fits": False}, _origin(asked))  # the floor is not below the step
    elif _overflows(sheet):
        least, floor_parts = _least_backward(asked, baseline, more)
        floor = peak if least is None else max(least, step_bytes)
        floor_parts = () if least is None or step_bytes > least else floor_parts
        sheet = sheet.beneath({"floor_bytes": floor}, _origin(asked))
    parts = {
        "parameters": parameters + resident.buffers,
        "gradients": gradients,
        "optimizer state": resident.optimizer_state + more + resident.parameters - parameters,
        "temporaries of the optimizer's step": temporaries,
        "batch and workspace": resident.batch + resident.workspace,
    }
    estimate = ModelEstimate(
        hardware=baseline.hardware.name,
        step_bytes=step_bytes,
        step_parts=tuple(MemoryPart(what, size) for what, size in parts.items() if size),
        peak_at="the optimizer's step" if step_bytes > simulated_peak else str(baseline.forecast.peak_at),
        floor_parts=floor_parts,
        window_ms=baseline.window.duration_ms,
        step_temporary_bytes=temporaries,
        backward_peak_bytes=simulated_peak,
        least_backward_bytes=least,
    )
    return estimate, sheet


def _overflows(sheet: FactSheet) -> bool:
    """Tell whether the step is known not to fit, by prediction or because it did not, and a policy may change that."""
    if sheet.get("fits") is True:
        return sheet.get("out_of_memory") is True
    return sheet.get("fits") is False and sheet.get("floor_fits") is not False


def _least_backward(
    asked: _Asked, baseline: Baseline, more_bytes: int
) -> tuple[int | None, tuple[MemoryPart, ...]]:
    """Return the least peak of forward and backward, ``more_bytes`` of state included, and what is alive there.

    None where planning lowers nothing.
    """
    asked.progress("floor", 0, 1)
    # The optimizer's step comes when activations are gone: it bounds the floor, and is no part of the search.
    found = find_floor(replace(baseline, optimizer="none"), load_policy(FLOOR_POLICY))
    asked.progress("floor", 1, 1)
    if found is None:
        return None, ()
    parts = (
        MemoryPart(held.what, held.num_bytes + (more_bytes if held.what == STAYS else 0))
        for held in found.holdings
    )
    return found.num_bytes + more_bytes, tuple(parts)


def _origin(asked: _Asked) -> str:
    assert asked.hardware is not None, "only a known device is simulated"
    return f"{asked.request.spec} simulated on {asked.hardware.name}"


def _note(diagnostic: Diagnostic) -> Diagnostic:
    message = f"facts about the model stay unknown: {diagnostic.message}"
    return Diagnostic("ADV911", "note", message, hint=diagnostic.hint)
