"""What a run of a policy found, decided, moved and waited for: the values that reports print."""

from __future__ import annotations

from dataclasses import dataclass, field

from offload_runtime.errors import Diagnostic
from offload_runtime.offload_plan import Forecast, OffloadPlan, TensorVerdict
from offload_runtime.simulator import MemoryPeak
from offload_runtime.units import format_size_short

__all__ = ["GraphReport", "LayerRow", "Report"]


@dataclass(frozen=True)
class LayerRow:
    """One element of a repeated stack: the id that ``layers:`` counts, and its module."""

    layer: int
    module: str


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph: its plan, its layers, and the device memory that the simulator gives it.

    ``num_layers`` is None where the graph cannot know the total (after a graph break, without ``options["model"]``),
    ``forecast`` where the hardware is unknown.
    """

    graph: int
    mode: str
    variant: str
    plan: OffloadPlan
    num_layers: int | None
    layer_table: tuple[LayerRow, ...]
    num_operations: int
    diagnostics: tuple[Diagnostic, ...] = ()
    forecast: Forecast | None = None

    @property
    def tensors(self) -> tuple[TensorVerdict, ...]:
        """Verdicts of this graph's storages, in forward order."""
        return self.plan.verdicts


@dataclass(frozen=True)
class Report:
    """Everything that ran for one model under one policy.

    Bytes are per rank. ``planned_bytes`` and ``moved_bytes`` count device-to-host copies of one step (the last whole
    one); ``host_bytes`` is what the host arena reserved, rounding included, of which ``host_waste_bytes`` are
    rounding and gaps. ``simulated_peak`` is the simulator's; times are None where nothing was measured (no
    accelerator, or profiling off).
    """

    policy: str
    policy_hash: str
    mode: str
    device: str
    engine: str
    graphs: tuple[GraphReport, ...]
    planned_bytes: int
    moved_bytes: int
    reloaded_bytes: int
    host_bytes: int
    host_waste_bytes: int
    simulated_peak: MemoryPeak | None
    hidden_fraction: float | None = None
    stall_ms: float | None = None
    stalls: tuple[tuple[str, float], ...] = ()
    num_pins: int = 0
    numa: str = ""
    diagnostics: tuple[Diagnostic, ...] = field(default=())

    @property
    def num_graphs(self) -> int:
        """Number of compiled graphs that carry this policy."""
        return len(self.graphs)

    @property
    def tensors(self) -> tuple[TensorVerdict, ...]:
        """Verdicts of all graphs, in forward order."""
        return tuple(verdict for graph in self.graphs for verdict in graph.plan.verdicts)

    def __str__(self) -> str:
        """Summarise in a few lines; the fields, and the file that ``OFFLOAD_REPORT`` names, hold the whole."""
        lines = [self._decided(), self._transferred()]
        if self.hidden_fraction is not None and self.stall_ms is not None:
            lines.append(
                f"{100 * self.hidden_fraction:.1f} % of transfer time hidden, {self.stall_ms:.2f} ms stalled"
            )
        lines += [_predicted(graph, self.num_graphs) for graph in self.graphs if graph.forecast is not None]
        found = (*self.diagnostics, *(finding for graph in self.graphs for finding in graph.diagnostics))
        return "\n".join([*lines, *map(str, dict.fromkeys(found))])

    def _decided(self) -> str:
        fates = [verdict.fate for verdict in self.tensors if verdict.fate != "skip"]
        graphs = f"{self.num_graphs} graph{'' if self.num_graphs == 1 else 's'}"
        return (
            f"policy {self.policy} ({self.mode}, {self.device}, {self.engine} engine): "
            f"{fates.count('offload')} of {len(fates)} activations offloaded in {graphs}"
        )

    def _transferred(self) -> str:
        planned, moved, reloaded, host, waste = map(
            format_size_short,
            (
                self.planned_bytes,
                self.moved_bytes,
                self.reloaded_bytes,
                self.host_bytes,
                self.host_waste_bytes,
            ),
        )
        return (
            f"planned {planned}, moved {moved}, reloaded {reloaded} a step; "
            f"host memory {host}, of which {waste} unused"
        )


def _predicted(graph: GraphReport, num_graphs: int) -> str:
    """Say what the simulator predicts of one graph; what the optimizer takes is no part of it."""
    forecast = graph.forecast
    assert forecast is not None, "asked of graphs with a forecast only"
    of = f" of graph {graph.graph}" if num_graphs > 1 else ""
    peak = format_size_short(forecast.peak_bytes)
    return (
        f"predicted{of} on {forecast.hardware}: forward and backward {forecast.step_ms:.2f} ms, "
        f"of which {forecast.stall_ms:.2f} ms stalled; peak {peak} in {forecast.peak_at}"
    )
