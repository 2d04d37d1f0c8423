"""One way to run a traced model: its graphs planned under one policy, and the step that they make up together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from offload_runtime.compiler import CompiledPolicy, Fate
from offload_runtime.graph.joint import JointGraph
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.fake_capture import as_traced
from offload_runtime.models.plan_result import Holding, PeakSite, ResidentBytes, SimulatedStep, StepForecast
from offload_runtime.models.step_chain import ChainLink, chain_steps, place_of_kernel
from offload_runtime.models.step_places import holdings_at, site_of, traced_of, with_other_graphs
from offload_runtime.models.traced_model import TracedModel
from offload_runtime.offload_plan import Candidate, Variant
from offload_runtime.passes.pipeline import PlannedPair, plan_joint
from offload_runtime.passes.selection import Setting
from offload_runtime.planning import simulate
from offload_runtime.policy import Limits
from offload_runtime.runtime.setting import limits_left
from offload_runtime.step import StepTrace

__all__ = ["PlannedModel", "count_candidates", "plan_graphs", "plan_loss"]


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """The planned graphs of a model: ``pairs`` of the module, ``loss_pairs`` of a loss outside of it."""

    pairs: tuple[PlannedPair, ...]
    loss_pairs: tuple[PlannedPair, ...]
    hardware: HardwareProfile
    resident: ResidentBytes

    @property
    def all_pairs(self) -> tuple[PlannedPair, ...]:
        """Pairs in the order in which they run forward."""
        return (*self.pairs, *self.loss_pairs)

    @cached_property
    def links(self) -> tuple[ChainLink, ...]:
        """The step of each graph by itself."""
        found = []
        for pair in self.all_pairs:
            traced, simulation = traced_of(pair.selected)
            found.append(ChainLink(traced.trace, pair.selected.fates, simulation))
        return tuple(found)

    @cached_property
    def step(self) -> SimulatedStep:
        """The step of all graphs together."""
        return SimulatedStep(*chain_steps(self.links, resident_bytes=self.resident.throughout))

    @property
    def num_layers(self) -> int | None:
        """Layers of the model, as policies count them."""
        return next((pair.joint.layers.num_layers for pair in self.pairs), None)

    def forecast(self, at_optimizer_step: tuple[Holding, ...]) -> StepForecast:
        """Say what the step takes; ``at_optimizer_step`` is what the optimizer's step holds afterwards."""
        simulation = self.step.simulation
        capacity = self.hardware.device_memory_bytes
        step_bytes = self.resident.throughout + sum(held.num_bytes for held in at_optimizer_step)
        if at_optimizer_step and step_bytes > simulation.peak_bytes:
            return StepForecast(
                step_bytes <= capacity,
                step_bytes,
                simulation.step_ms,
                PeakSite("optimizer"),
                at_optimizer_step,
            )
        place = place_of_kernel(self.links, simulation.peak_at)
        pair = self.all_pairs[place.graph]
        runs_forward = place.kernel < self.links[place.graph].trace.num_forward
        later = () if runs_forward else self.links[place.graph + 1 :]
        return StepForecast(
            fits=simulation.peak_bytes <= capacity,
            peak_device_bytes=simulation.peak_bytes,
            step_ms=simulation.step_ms,
            peak_at=site_of(pair, place.kernel),
            holdings=with_other_graphs(holdings_at(pair, place.kernel), self.links[: place.graph], later),
        )

    def peak_with_offloads_saved(self) -> int:
        """Return the peak of the same partition with each offload replaced by save."""
        links = []
        for link in self.links:
            saved: tuple[Fate, ...] = tuple("save" for _ in link.fates)
            simulation = simulate(link.trace, saved, (), self.hardware.link())
            links.append(ChainLink(link.trace, saved, simulation))
        return chain_steps(links, resident_bytes=self.resident.throughout)[1].peak_bytes

    def offloadable_trace(self) -> StepTrace:
        """Return the step with every saved tensor that can leave free to leave."""
        links = []
        for pair, link in zip(self.all_pairs, self.links, strict=True):
            items = [
                replace(item, fates=frozenset({"save", "offload"})) if _can_leave(candidate) else item
                for item, candidate in zip(link.trace.items, pair.selected.candidates, strict=True)
            ]
            links.append(replace(link, trace=replace(link.trace, items=tuple(items))))
        return chain_steps(links, resident_bytes=self.resident.throughout)[0]


def plan_graphs(
    traced: TracedModel,
    policy: CompiledPolicy,
    *,
    variant: Variant,
    limits: Limits,
    hardware: HardwareProfile,
    resident: ResidentBytes,
    loss_pairs: tuple[PlannedPair, ...] = (),
    view_replay: bool = True,
) -> PlannedModel:
    """Plan each graph of the module under ``policy``, in the order in which a run compiles them.

    A budget counts over all graphs, as it does when they run. Without ``view_replay`` what backward reads through
    views cannot leave. Raises RefusedError as `plan_joint` does.
    """
    setting = Setting(
        limits,
        hardware,
        resident_bytes=resident.optimizer_state + resident.accumulated_gradients + resident.workspace,
        allocated_bytes=resident.parameters + resident.buffers + resident.batch,
        view_replay=view_replay,
    )
    pairs: list[PlannedPair] = []
    for graph in traced.graphs:
        if variant != "baseline":
            spent: dict[object, int] = {n: pair.plan.planned_bytes for n, pair in enumerate(pairs)}
            left = limits_left(policy.policy, limits, spent, is_partial=len(traced.graphs) > 1)
            setting = replace(setting, limits=left)
        with as_traced(traced.graphs):
            pairs.append(
                plan_joint(
                    graph.copy(),
                    graph.inputs,
                    policy=policy,
                    mode=traced.mode,
                    variant=variant,
                    setting=setting,
                )
            )
    return PlannedModel(tuple(pairs), loss_pairs, hardware, resident)


def plan_loss(
    traced: TracedModel, policy: CompiledPolicy, hardware: HardwareProfile
) -> tuple[PlannedPair, ...]:
    """Split the graphs of a loss outside of the module as eager mode runs them: everything is saved."""
    with as_traced(traced.loss_graphs):
        return tuple(
            plan_joint(
                graph.copy(),
                graph.inputs,
                policy=policy,
                mode="graph",
                variant="baseline",
                setting=Setting(Limits(), hardware),
            )
            for graph in traced.loss_graphs
        )


def count_candidates(pairs: tuple[PlannedPair, ...], policy: CompiledPolicy, *, among_saved: bool) -> int:
    """Count the saved tensors that ``policy`` lets leave, and that can, whatever the limits say.

    ``among_saved``: ``pairs`` are those of the baseline, of which the planner chooses; without, they are the policy's.
    """
    return sum(
        _is_candidate(pair.joint, policy, candidate, reason, among_saved)
        for pair in pairs
        for candidate, reason in zip(pair.selected.candidates, pair.selected.reasons, strict=True)
    )


def _is_candidate(
    joint: JointGraph, policy: CompiledPolicy, candidate: Candidate, reason: str | None, among_saved: bool
) -> bool:
    decision = policy.decide(candidate.activation)
    wanted = ("offload", "auto") if among_saved else ("offload",)
    if decision.action not in wanted or not _can_leave(candidate):
        return False
    if not among_saved:
        return reason is None or reason.startswith("budget")
    layer, num_layers = candidate.activation.layer, joint.layers.num_layers
    keep_last = policy.policy.schedule.keep_last
    is_kept = num_layers is not None and layer is not None and layer >= num_layers - keep_last
    return decision.must or not is_kept


def _can_leave(candidate: Candidate) -> bool:
    return candidate.obstacle is None and candidate.moved_bytes > 0
