"""One ``torch.compile`` call at run time: the graphs it compiled, the steps they ran, the report of both."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch

from offload_runtime.compiler import SavedActivation
from offload_runtime.errors import Diagnostic, OffloadError, PolicyError, RefusedError
from offload_runtime.judgement import judge_layers, judge_matches, judge_moved
from offload_runtime.offload_plan import TransferSource, Variant
from offload_runtime.passes.pipeline import RewrittenPair
from offload_runtime.record import GraphReport, LayerRow, Report
from offload_runtime.runtime.arena import Reservation
from offload_runtime.runtime.eager_parts import num_recompile_limits
from offload_runtime.runtime.engines import get_arena
from offload_runtime.runtime.given_options import GivenOptions
from offload_runtime.runtime.options import BackendOptions
from offload_runtime.runtime.read_parameters import ReadParameters
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import (
    EngineSnapshot,
    TransferStats,
    forget_transfers,
    get_engine,
    register_transfer,
    use_engine,
)
from offload_runtime.simulator import Tape, peak_memory

__all__ = [
    "CompiledGraph",
    "Session",
    "graph_report",
    "living_sessions",
    "remember_session",
    "unwrap_error",
]

_session_ids = itertools.count()


@dataclass(eq=False)
class CompiledGraph:
    """A graph of a session, after compilation; the FX graphs themselves are not kept."""

    report: GraphReport
    tape: Tape
    activations: tuple[SavedActivation, ...]
    keys: tuple[int, ...]
    device: torch.device
    reservation: Reservation | None
    frame: object = None
    last_step: int = -1
    forwards_in_step: int = 0
    planned_in_step: int = 0


@dataclass(eq=False)
class Session:
    """Everything that one ``torch.compile`` call with this backend compiles and runs.

    A step begins with the first forward after a backward. Owns the transfer keys of its graphs until it dies.
    """

    options: BackendOptions
    given: GivenOptions
    id: int = field(default_factory=lambda: next(_session_ids))
    graphs: list[CompiledGraph] = field(default_factory=list)
    parameters: ReadParameters = field(default_factory=ReadParameters)
    graph_breaks: dict[str, None] = field(default_factory=dict)
    partial: bool = False
    step: int = 0
    saw_backward: bool = False
    judged: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()
    _before: dict[str, TransferStats] | None = None
    _recompile_limits: int = field(default_factory=num_recompile_limits)
    _checker: SimulatedEngine | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, source: TransferSource) -> int:
        """Give the runtime's key for a transfer of the graph that is being compiled."""
        name = f"{self.id}.{len(self.graphs)}/{source.node}"
        return register_transfer(name, source.num_bytes, poison_source=self.options.mode == "graph")

    def planned_by_others(self, frame: object) -> dict[object, int]:
        """Return the bytes that the graphs of other frames offload; recompilations of one never run together."""
        spent: dict[object, int] = {}
        for graph in self.graphs:
            if graph.frame != frame:
                spent[graph.frame] = max(spent.get(graph.frame, 0), graph.report.plan.planned_bytes)
        return spent

    def add_graph(
        self, pair: RewrittenPair, keys: Sequence[int], device: torch.device, frame: object = None
    ) -> CompiledGraph:
        """Record a compiled graph and pin the host memory that one forward and backward of it needs.

        Recompilations of one ``frame`` (other shapes) share pinned memory. Raises RefusedError when the host has
        too little.
        """
        index = len(self.graphs)
        sizes = [transfer.source.num_bytes for transfer in pair.plan.transfers] if keys else []
        reservation = None
        if sizes:
            limits = self.options.policy.policy.limits
            reservation = get_arena(device).reserve(
                sizes,
                why=f"graph {index} of policy {self.options.policy.name!r}",
                host_limit_bytes=limits.host,
                group=(self.id, frame) if frame is not None else None,
                owner=self.id,
            )
        graph = CompiledGraph(
            report=graph_report(pair, index, mode=self.options.mode, variant=self.options.variant),
            tape=pair.tape,
            activations=pair.planned.judged_activations,
            keys=tuple(keys),
            device=device,
            reservation=reservation,
            frame=frame,
        )
        weakref.finalize(graph, _forget_graph, device, graph.keys, reservation)
        if keys and self.options.profile:
            get_engine(device).set_profiling(True)
        self.graphs.append(graph)
        self.judged = False
        return graph

    def note_findings(self, *findings: Diagnostic) -> None:
        """Add findings to the report, each once."""
        self.diagnostics = tuple(dict.fromkeys([*self.diagnostics, *findings]))

    def on_forward(self, graph: CompiledGraph, planned_bytes: int, *, in_backward: bool = False) -> None:
        """Count a forward that offloads ``planned_bytes``; it begins a new step if a backward came before it.

        Raises RefusedError where the forward runs inside a backward and never ran before it: a reentrant
        checkpoint stands around the region.
        """
        if in_backward and self.options.variant == "policy":
            self._refuse_outer_checkpoint(graph)
        with self._lock:
            if self.saw_backward or self._before is None:
                self.step += 1
                self.saw_backward = False
                self._before = self._counters()
            if graph.last_step != self.step:
                graph.last_step, graph.forwards_in_step, graph.planned_in_step = self.step, 0, 0
            graph.forwards_in_step += 1
            graph.planned_in_step += planned_bytes

    def _refuse_outer_checkpoint(self, graph: CompiledGraph) -> None:
        """Raise for a reentrant checkpoint around the region; note one that is not reentrant, once."""
        hint = "put the checkpoint inside the region, or drop it: the policy can recompute, too"
        name = self.options.policy.name
        what = f"a checkpoint around the compiled region runs graph {graph.report.graph} inside backward"
        if not graph.forwards_in_step:
            message = f"{what}; with use_reentrant=True nothing was saved before for policy {name!r} to move"
            raise RefusedError(Diagnostic("RUN522", "error", message, hint=hint))
        message = f"{what} again; what policy {name!r} moved in forward is thrown away"
        self.note_findings(Diagnostic("RUN523", "warning", message, hint=hint))

    def engine_for_step(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context to run a forward in: with ``verify``, the first step runs on the checking engine.

        A backward finds the engine of its own forward by itself.
        """
        if not self.options.verify or self.step > 1 or self.options.variant != "policy":
            return nullcontext()
        if self._checker is None:
            self._checker = SimulatedEngine(get_arena(device), device=device)
        return use_engine(self._checker)

    def on_backward(self) -> None:
        """Note that backward began; judge once what a policy promises over all graphs.

        Raises PolicyError when a rule matched nothing, or fewer bytes move than ``expect`` asks for.
        """
        self.saw_backward = True
        if self.judged or self.options.variant == "baseline":
            return
        self.judged = True
        activations = [activation for graph in self.graphs for activation in graph.activations]
        findings = (
            *judge_matches(self.options.policy, activations),
            *judge_layers(
                self.options.policy.policy,
                activations,
                has_layers=any(graph.report.layer_table for graph in self.graphs),
            ),
        )
        if self.options.variant == "policy":
            findings += judge_moved(self.options.policy.policy, self._planned_bytes())
        self.note_findings(*findings)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise PolicyError(*errors)

    def _running(self) -> list[CompiledGraph]:
        """Return the graphs that the last step ran."""
        return [graph for graph in self.graphs if graph.last_step == self.step] or self.graphs

    def _planned_bytes(self) -> int:
        """Return the bytes that the forwards of the last step offload."""
        return sum(
            graph.planned_in_step if graph.forwards_in_step else graph.report.plan.planned_bytes
            for graph in self._running()
            if graph.keys
        )

    def _counters(self) -> dict[str, TransferStats]:
        """Return what each transfer of this session did so far, over all engines that ran it."""
        counters: dict[str, TransferStats] = {}
        for snapshot in self._snapshots():
            for stats in snapshot.transfers:
                if stats.name.startswith(f"{self.id}."):
                    known = counters.get(stats.name)
                    counters[stats.name] = stats if known is None else _combine(known, stats, operator.add)
        return counters

    def _last_step(self) -> list[TransferStats]:
        """Return what each transfer did since the step began."""
        before = self._before or {}
        return [
            _combine(stats, before[name], operator.sub) if name in before else stats
            for name, stats in self._counters().items()
        ]

    def _snapshots(self) -> list[EngineSnapshot]:
        devices = {graph.device for graph in self.graphs if graph.keys}
        snapshots = [get_engine(device).snapshot() for device in sorted(devices, key=str)]
        return snapshots if self._checker is None else [*snapshots, self._checker.snapshot()]

    def report(self) -> Report:
        """Return what was decided, planned, moved and waited for."""
        policy = self.options.policy
        running = self._running()
        snapshots = self._snapshots()
        transfers = self._last_step()
        stalls = [
            (item.name.partition("/")[2], item.stall_ms) for item in transfers if item.stall_ms is not None
        ]
        copied = [ms for item in transfers for ms in (item.d2h_ms, item.h2d_ms) if ms is not None]
        stalled = sum(ms for _, ms in stalls) if stalls else None
        devices = sorted({graph.device for graph in self.graphs}, key=str)
        arenas = [get_arena(graph_device).snapshot() for graph_device in devices]
        return Report(
            policy=policy.name,
            policy_hash=policy.hash,
            mode=self.options.mode,
            device=str(devices[0]) if devices else "cpu",
            engine=snapshots[0].engine
            if snapshots
            else ("cuda" if devices and devices[0].type == "cuda" else "simulated"),
            graphs=tuple(graph.report for graph in running),
            planned_bytes=self._planned_bytes(),
            moved_bytes=sum(item.d2h_bytes for item in transfers),
            reloaded_bytes=sum(item.h2d_bytes for item in transfers),
            host_bytes=sum(arena.reserved_bytes for arena in arenas),
            host_waste_bytes=sum(arena.waste_bytes for arena in arenas),
            simulated_peak=peak_memory([graph.tape for graph in running]) if running else None,
            hidden_fraction=max(0.0, 1 - stalled / sum(copied)) if copied and stalled is not None else None,
            stall_ms=stalled,
            stalls=tuple(sorted(stalls, key=lambda item: -item[1])),
            num_pins=sum(arena.num_pins for arena in arenas),
            numa="; ".join(sorted({str(arena.numa) for arena in arenas})),
            diagnostics=(
                *self.diagnostics,
                *self._outside_graphs(len(running)),
                *self._moved_otherwise(transfers),
            ),
        )

    def _moved_otherwise(self, transfers: Iterable[TransferStats]) -> Iterable[Diagnostic]:
        """Say that a step moved other bytes than were planned."""
        planned, moved = self._planned_bytes(), sum(item.d2h_bytes for item in transfers)
        if self.step and planned != moved:
            message = f"the last step moved {moved} bytes to the host, and {planned} were planned"
            hint = (
                "a forward was broken off, or is not over; else a tensor has another size than torch traced: "
                "please report it with the model"
            )
            yield Diagnostic("RUN546", "warning", message, hint=hint)

    def _outside_graphs(self, num_running: int) -> Iterable[Diagnostic]:
        """Say what torch did not capture: what stands between graphs, and calls that it no longer compiles."""
        if self.graph_breaks:
            reasons = list(self.graph_breaks)
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            message = f"graph breaks split the model: {'; '.join(reasons[:3])}{more}"
            hint = "what runs between graphs is not offloaded; TORCH_LOGS=graph_breaks shows each"
            yield Diagnostic("RUN544", "note", message, hint=hint)
        elif num_running > 1:
            message = (
                f"the last step ran as {num_running} graphs, and torch named no break between them: it gave a frame up "
                "before the first operator, or the model ran for several shapes"
            )
            hint = "what runs between graphs is not offloaded; TORCH_LOGS=graph_breaks,recompiles shows why"
            yield Diagnostic("RUN544", "note", message, hint=hint)
        if num_recompile_limits() > self._recompile_limits:
            message = (
                "since the first graph of this report, torch hit its recompile limit in this process: calls that need "
                "another graph run without one, nothing of them is offloaded, and no step of theirs is counted here"
            )
            hint = (
                "keep shapes steady, or mark what changes with torch._dynamo.mark_dynamic; "
                "TORCH_LOGS=recompiles says what changed"
            )
            yield Diagnostic("RUN545", "warning", message, hint=hint)


def graph_report(pair: RewrittenPair, index: int, *, mode: str, variant: Variant) -> GraphReport:
    """Return what a report says of one rewritten graph; ``index`` counts the graphs of its model."""
    layers = pair.joint.layers
    forward, backward = pair.partition.forward.graph, pair.partition.backward.graph
    return GraphReport(
        graph=index,
        mode=mode,
        variant=variant,
        plan=pair.plan,
        num_layers=layers.num_layers,
        layer_table=tuple(LayerRow(layer, path) for layer, path in enumerate(layers.paths)),
        num_operations=len(forward.nodes) + len(backward.nodes),
        diagnostics=pair.diagnostics,
        forecast=pair.planned.forecast,
    )


def _forget_graph(device: torch.device, keys: Sequence[int], reservation: Reservation | None) -> None:
    forget_transfers(keys)
    if reservation is not None:
        get_arena(device).cancel(reservation)


def _combine(one: TransferStats, other: TransferStats, by: Callable[[float, float], float]) -> TransferStats:
    """Add or subtract the counts and times of two snapshots of one transfer."""

    def times(name: str) -> float | None:
        mine, theirs = getattr(one, name), getattr(other, name)
        return None if mine is None else mine if theirs is None else by(mine, theirs)

    def counts(name: str) -> int:
        return int(by(getattr(one, name), getattr(other, name)))

    return replace(
        one,
        num_d2h_copies=counts("num_d2h_copies"),
        num_h2d_copies=counts("num_h2d_copies"),
        d2h_bytes=counts("d2h_bytes"),
        h2d_bytes=counts("h2d_bytes"),
        d2h_ms=times("d2h_ms"),
        h2d_ms=times("h2d_ms"),
        stall_ms=times("stall_ms"),
    )


_sessions: list[weakref.ref[Session]] = []


def remember_session(session: Session) -> None:
    """Make a session known to reports; the compiled code keeps it alive, not this list."""
    _sessions.append(weakref.ref(session, _sessions.remove))


def living_sessions() -> list[Session]:
    """Return the sessions whose compiled code is alive, oldest first."""
    # A copy: where a session dies meanwhile, its entry leaves the list.
    return [session for reference in tuple(_sessions) if (session := reference()) is not None]


def unwrap_error(error: BaseException) -> OffloadError | None:
    """Return the error of this package that torch.compile wrapped into its own, if there is one."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, OffloadError):
            return current
        seen.add(id(current))
        current = getattr(current, "inner_exception", None) or current.__cause__ or current.__context__
    return None
