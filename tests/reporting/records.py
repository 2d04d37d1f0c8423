"""Builders of small records, so that a test names only what it is about."""

from __future__ import annotations

from offload_runtime.compiler import Fate, SavedActivation
from offload_runtime.offload_plan import OffloadPlan, TensorVerdict
from offload_runtime.record import GraphReport, LayerRow, Report

KIB = 1024


def verdict(
    name: str = "mm",
    fate: Fate = "save",
    rule: str | None = None,
    layer: int | None = None,
    num_bytes: int = 4 * KIB,
    reason: str = "the default",
) -> TensorVerdict:
    """Build the verdict on one bfloat16 matmul output."""
    activation = SavedActivation(
        name=name,
        op="aten.mm.default",
        op_class="matmul",
        module="" if layer is None else f"layers.{layer}.mlp",
        layer=layer,
        num_layers=None,
        num_bytes=num_bytes,
        dtype="bfloat16",
        layout="contiguous",
    )
    return TensorVerdict(activation, fate, rule, reason, moved_bytes=num_bytes if fate == "offload" else 0)


def graph_report(*verdicts: TensorVerdict, graph: int = 0, layers: tuple[LayerRow, ...] = ()) -> GraphReport:
    """Build the report on one graph with these verdicts."""
    return GraphReport(
        graph=graph,
        mode="graph",
        variant="policy",
        plan=OffloadPlan("0" * 64, verdicts, ()),
        num_layers=len(layers) or None,
        layer_table=layers,
        num_operations=10,
    )


def report(*graphs: GraphReport) -> Report:
    """Build the report on one run over these graphs."""
    planned = sum(verdict.moved_bytes for graph in graphs for verdict in graph.tensors)
    return Report(
        policy="small",
        policy_hash="0" * 64,
        mode="graph",
        device="cpu",
        engine="simulated",
        graphs=graphs,
        planned_bytes=planned,
        moved_bytes=planned,
        reloaded_bytes=planned,
        host_bytes=planned,
        host_waste_bytes=0,
        simulated_peak=None,
    )
