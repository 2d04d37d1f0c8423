"""Decide for one joint graph what is saved, recomputed and offloaded, and when copies start and are waited for.

    largest_first   tag by policy -> partition -> candidates, largest first -> places by layers (or by time: auto)
    planned         tag what is fixed -> trial partition -> planner -> tag its fates -> partition -> places by time

Both end in one value, with the step that simulator and report read where the hardware is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from offload_runtime.compiler import CompiledPolicy, Fate
from offload_runtime.graph.joint import JointGraph
from offload_runtime.hardware import HardwareProfile
from offload_runtime.offload_plan import Candidate, Transfer
from offload_runtime.passes.candidates import (
    SavedStorage,
    collect_candidates,
    read_timeline,
    saved_storages,
)
from offload_runtime.passes.choices import (
    collect_choices,
    decision_of,
    find_leaders,
    fixed_as_planned,
    names_behind_unjudged,
    start_of,
)
from offload_runtime.passes.node_words import node_words
from offload_runtime.passes.partition import Partition
from offload_runtime.passes.refusal import refuse_infeasible
from offload_runtime.passes.tag import JudgedStorage, tag_activations_pass
from offload_runtime.passes.trace import Choice, TracedPair, trace_pair
from offload_runtime.planner import plan_largest_first, schedule_transfers
from offload_runtime.planning.floor import holders_at
from offload_runtime.planning.lanes import simulate
from offload_runtime.planning.lifetimes import Problem
from offload_runtime.planning.limits import Infeasible
from offload_runtime.planning.placement import place
from offload_runtime.planning.search import PlannedStep, plan_fates
from offload_runtime.policy import Limits
from offload_runtime.step import Move, Simulation, StepTrace

__all__ = [
    "Planned",
    "Selected",
    "Setting",
    "Split",
    "select_largest_first",
    "select_planned",
    "split_without_policy",
]

LINK_RESERVE = 0.03
"""The share of the link's rate that plans leave unused: real copies are a little slower than the profile's now and
then, and a plan that fills the link waits for each of them."""

_MAX_ATTEMPTS = 4
_LEFTOVER_BYTES = 2**28


@dataclass(frozen=True)
class Setting:
    """Where a plan will run, as far as it is known.

    ``limits`` are those of the policy, with ``device_peak`` in bytes. ``resident_bytes`` are on the device throughout
    and not inputs of the graph: optimizer state, libraries' workspaces. ``allocated_bytes`` are allocated already when
    the graph is compiled, its inputs among them, and most often those workspaces; if they are more, they count.
    Without ``view_replay`` a storage that backward reads through views stays: what an offloader can do that knows of
    no views.
    """

    limits: Limits
    profile: HardwareProfile | None = None
    resident_bytes: int = 0
    allocated_bytes: int = 0
    view_replay: bool = True


@dataclass(frozen=True)
class Selected:
    """A partition and what becomes of each of its saved storages.

    ``stored``, ``candidates``, ``fates`` and ``reasons`` (why a storage stays although the policy let it leave) stand
    in parallel. ``traced`` and ``simulation`` are None where the hardware is unknown; ``planned`` is the planner's
    result on the trial partition.
    """

    partition: Partition
    stored: tuple[SavedStorage, ...]
    candidates: tuple[Candidate, ...]
    fates: tuple[Fate, ...]
    reasons: tuple[str | None, ...]
    transfers: tuple[Transfer, ...]
    traced: TracedPair | None = None
    simulation: Simulation | None = None
    planned: PlannedStep | None = None


Split = Callable[[fx.GraphModule], Partition]
"""Splits a tagged joint graph."""


def split_without_policy(
    joint: JointGraph, judged: Sequence[JudgedStorage], split: Split, *, mode: str, setting: Setting
) -> Selected:
    """Split a graph that no policy touches: all that crosses is saved."""
    partition = split(joint.module)
    stored = saved_storages(partition, judged)
    candidates = collect_candidates(joint, partition, stored, view_replay=setting.view_replay)
    fates: tuple[Fate, ...] = tuple("save" for _ in stored)
    selected = Selected(
        partition, tuple(stored), tuple(candidates), fates, (None,) * len(stored), transfers=()
    )
    return _simulated(joint, selected, (), mode=mode, setting=setting)


def select_largest_first(
    joint: JointGraph,
    judged: Sequence[JudgedStorage],
    policy: CompiledPolicy,
    split: Split,
    *,
    mode: str,
    setting: Setting,
) -> Selected:
    """Do what the policy says, within its budget, largest first."""
    tag_activations_pass(joint.module, joint=joint, judged=judged)
    partition = split(joint.module)
    stored = saved_storages(partition, judged)
    candidates = collect_candidates(joint, partition, stored, view_replay=setting.view_replay)
    schedule = policy.policy.schedule
    timeline = read_timeline(joint, partition)
    selection = plan_largest_first(
        candidates,
        [decision_of(item) for item in stored],
        budget=setting.limits.budget,
        keep_last=schedule.keep_last,
        num_layers=joint.layers.num_layers,
        timeline=timeline,
    )
    chosen = set(selection.chosen)
    fates: tuple[Fate, ...] = tuple("offload" if i in chosen else "save" for i in range(len(stored)))
    transfers = schedule_transfers(
        [candidates[index] for index in selection.chosen],
        timeline,
        defer=schedule.defer if isinstance(schedule.defer, int) else 1,
        prefetch=schedule.prefetch if isinstance(schedule.prefetch, int) else 1,
    )
    selected = Selected(
        partition, tuple(stored), tuple(candidates), fates, selection.reasons, transfers=transfers
    )
    if setting.profile is None:
        return selected
    traced = _trace(joint, selected, _fixed(fates), mode, setting, setting.profile)
    if "auto" in (schedule.defer, schedule.prefetch):
        by_time = traced.transfers(
            place(traced.trace, fates, setting.profile.link(), None), selected.candidates
        )
        transfers = tuple(
            replace(
                timed,
                release_after=timed.release_after if schedule.defer == "auto" else layered.release_after,
                reload_before=timed.reload_before if schedule.prefetch == "auto" else layered.reload_before,
            )
            for timed, layered in zip(by_time, transfers, strict=True)
        )
    return _simulated(joint, replace(selected, transfers=transfers), transfers, mode=mode, setting=setting)


@dataclass(frozen=True)
class Planned:
    """What the planner chose, and the copy of the joint graph that it was carried out on."""

    joint: JointGraph
    judged: Sequence[JudgedStorage]
    selected: Selected


def select_planned(
    fresh: Callable[[], tuple[JointGraph, Sequence[JudgedStorage]]],
    policy: CompiledPolicy,
    split: Split,
    *,
    mode: str,
    setting: Setting,
) -> Planned:
    """Decide all fates together, within the limits. ``fresh`` gives a new copy of the graph each time it is called.

    Where the partition that carries out the fates takes more than the trial promised, the planner is asked for that
    much less, and at last for the least that it can promise. Raises RefusedError where no plan keeps to the limits,
    naming the floor (of a partition, where only device memory is short) and what holds it.
    """
    assert setting.profile is not None, "planned is refused where the hardware is unknown"
    joint, judged = fresh()
    tag_activations_pass(joint.module, joint=joint, judged=[start_of(item, mode) for item in judged])
    selected = _unplanned(joint, judged, split, setting)
    trial = Planned(joint, judged, selected)
    choices = collect_choices(
        joint,
        selected.partition,
        selected.stored,
        selected.candidates,
        policy,
        mode=mode,
        profile=setting.profile,
    )
    traced = _trace(joint, selected, choices, mode, setting, setting.profile)
    asked, lowest, at_floor = setting, None, False
    for attempt in itertools.count(1):
        try:
            step = _plan(traced, asked)
        except Infeasible as error:
            only_device = asked.limits.device_peak is not None and error.floor_ms is None
            if at_floor or not only_device:
                if lowest is None:
                    words = node_words(joint, selected.partition, selected.stored)
                    raise refuse_infeasible(policy, setting.limits, traced.trace, error, words) from error
                break
            at_floor = True
            asked = replace(asked, limits=replace(asked.limits, device_peak=error.floor_bytes))
            continue
        planned = _carry_out(fresh, trial, step, split, mode=mode, setting=setting)
        excess = _excess(planned.selected, setting)
        if excess <= 0:
            return planned
        lowest = planned if lowest is None or excess < _excess(lowest.selected, setting) else lowest
        if at_floor:
            break
        assert isinstance(asked.limits.device_peak, int), "only a limit can be exceeded"
        lower = min(asked.limits.device_peak, step.simulation.peak_bytes) - (excess << attempt - 1)
        asked = replace(
            asked, limits=replace(asked.limits, device_peak=lower if attempt < _MAX_ATTEMPTS else 0)
        )
    assert lowest is not None
    floor, trace = _floor_of(setting.profile, lowest.selected)
    words = node_words(lowest.joint, lowest.selected.partition, lowest.selected.stored)
    raise refuse_infeasible(policy, setting.limits, trace, floor, words) from floor


def _floor_of(profile: HardwareProfile, lowest: Selected) -> tuple[Infeasible, StepTrace]:
    """Return the lowest peak of plans that fit and that no partition carries out within the limit, and its step."""
    assert lowest.traced is not None
    assert lowest.simulation is not None
    trace, kernel = lowest.traced.trace, lowest.simulation.peak_at
    holders = holders_at(Problem.of(trace, profile.link()), lowest.fates, kernel)
    return Infeasible(lowest.simulation.peak_bytes, kernel, holders), trace


def _excess(selected: Selected, setting: Setting) -> int:
    """Return the bytes by which a partition exceeds the limit on device memory."""
    limit = setting.limits.device_peak
    assert not isinstance(limit, str), "auto is resolved before planning"
    assert selected.simulation is not None
    return 0 if limit is None else selected.simulation.peak_bytes - limit


def _carry_out(
    fresh: Callable[[], tuple[JointGraph, Sequence[JudgedStorage]]],
    trial: Planned,
    step: PlannedStep,
    split: Split,
    *,
    mode: str,
    setting: Setting,
) -> Planned:
    """Tag the fates of a plan and split, then place the copies; what recomputes nothing is the trial with copies.

    What the trial did not store is left to torch, which may save in place of what is to go; where that takes too much
    it is recomputed.
    """
    selected = trial.selected
    wanted = _wanted(selected.stored, step.fates)
    if "recompute" not in step.fates:
        return _place(trial, wanted, step, mode=mode, setting=setting)
    found = []
    for left_open in (None, names_behind_unjudged(selected.partition, selected.stored, trial.judged)):
        joint, judged = fresh()
        tagged_as = [fixed_as_planned(item, wanted, left_open) for item in judged]
        tag_activations_pass(joint.module, joint=joint, judged=tagged_as)
        tagged = Planned(joint, judged, _unplanned(joint, judged, split, setting))
        found.append(_place(tagged, wanted, step, mode=mode, setting=setting))
        if _excess(found[-1].selected, setting) <= 0:
            break
    return min(found, key=lambda planned: _excess(planned.selected, setting))


def _place(
    planned: Planned, wanted: dict[str, Fate], step: PlannedStep, *, mode: str, setting: Setting
) -> Planned:
    """Place the copies of what is to be offloaded on the time line of a partition."""
    assert setting.profile is not None
    final = planned.selected
    fates: tuple[Fate, ...] = tuple(
        "offload"
        if wanted.get(item.judged.activation.name) == "offload" and candidate.obstacle is None
        else "save"
        for item, candidate in zip(final.stored, final.candidates, strict=True)
    )
    limit = setting.limits.device_peak
    assert not isinstance(limit, str), "auto is resolved before planning"
    link = setting.profile.link()
    traced = _trace(planned.joint, final, _fixed(fates), mode, setting, setting.profile)
    moves = place(traced.trace, fates, link, limit)
    selected = replace(
        final,
        fates=fates,
        planned=step,
        transfers=traced.transfers(moves, final.candidates),
        traced=traced,
        simulation=simulate(traced.trace, fates, moves, link),
    )
    return replace(planned, selected=selected)


def _wanted(stored: Sequence[SavedStorage], fates: Sequence[Fate]) -> dict[str, Fate]:
    """Return the planned fates by name; the results of one operator call are computed again together."""
    leaders = find_leaders(stored)
    return {
        item.judged.activation.name: "recompute" if fates[leaders[index]] == "recompute" else fates[index]
        for index, item in enumerate(stored)
    }


def _plan(traced: TracedPair, setting: Setting) -> PlannedStep:
    """Decide on fates; raises Infeasible."""
    limits = setting.limits
    assert setting.profile is not None
    assert not isinstance(limits.device_peak, str), "auto is resolved before planning"
    link = setting.profile.link()
    max_step_ms = None
    if limits.step_overhead is not None:
        saved = plan_fates(traced.trace, link)
        max_step_ms = saved.simulation.step_ms * (1 + limits.step_overhead)
    return plan_fates(
        traced.trace,
        link,
        device_limit=limits.device_peak,
        max_step_ms=max_step_ms,
        host_limit=limits.host,
        budget=limits.budget,
        link_reserve=LINK_RESERVE,
    )


def _unplanned(
    joint: JointGraph, judged: Sequence[JudgedStorage], split: Split, setting: Setting
) -> Selected:
    partition = split(joint.module)
    stored = saved_storages(partition, judged)
    candidates = collect_candidates(joint, partition, stored, view_replay=setting.view_replay)
    fates: tuple[Fate, ...] = tuple("save" for _ in stored)
    return Selected(partition, tuple(stored), tuple(candidates), fates, (None,) * len(stored), transfers=())


def _fixed(fates: Sequence[Fate]) -> list[Choice]:
    return [Choice(frozenset({fate})) for fate in fates]


def _trace(
    joint: JointGraph,
    selected: Selected,
    choices: Sequence[Choice],
    mode: str,
    setting: Setting,
    profile: HardwareProfile,
) -> TracedPair:
    traced = trace_pair(
        joint,
        selected.partition,
        selected.stored,
        selected.candidates,
        choices,
        mode=mode,
        profile=profile,
    )
    known = traced.trace.resident_bytes + setting.resident_bytes
    # Two runs of one policy leave a little more or less behind, and have to plan alike.
    unknown = max(0, setting.allocated_bytes - known) // _LEFTOVER_BYTES * _LEFTOVER_BYTES
    resident = known + unknown
    return replace(traced, trace=replace(traced.trace, resident_bytes=resident))


def _simulated(
    joint: JointGraph, selected: Selected, transfers: Sequence[Transfer], *, mode: str, setting: Setting
) -> Selected:
    """Add the simulated step where the hardware is known."""
    if setting.profile is None:
        return selected
    traced = _trace(joint, selected, _fixed(selected.fates), mode, setting, setting.profile)
    moves: tuple[Move, ...] = traced.moves(transfers, selected.candidates)
    simulation = simulate(traced.trace, selected.fates, moves, setting.profile.link())
    return replace(selected, traced=traced, simulation=simulation)
