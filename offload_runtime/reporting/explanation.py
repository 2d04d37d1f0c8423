"""What a policy decides for each saved tensor of a model, and why: as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from offload_runtime.offload_plan import TensorVerdict
from offload_runtime.record import GraphReport, Report
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.reporting.verdicts import FateRow, by_fate, by_layer, by_rule
from offload_runtime.units import format_size_short

Grouping = Literal["rule", "layer", "tensor"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)


def explanation_data(report: Report) -> dict[str, Any]:
    """Return the explanation for programs: every tensor, whatever a person asked to see."""
    return {
        "policy": report.policy,
        "policy_hash": report.policy_hash,
        "mode": report.mode,
        "num_graphs": report.num_graphs,
        "planned_bytes": report.planned_bytes,
        "fates": {
            fate: {"num_tensors": tally.num_tensors, "num_bytes": tally.num_bytes}
            for fate, tally in by_fate(report.tensors)
        },
        "layers": [
            {"graph": graph.graph, "layer": row.layer, "module": row.module}
            for graph in report.graphs
            for row in graph.layer_table
        ],
        "tensors": [_tensor_data(graph, verdict) for graph in report.graphs for verdict in graph.tensors],
    }


def render_explanation(report: Report, model: str, *, by: Grouping = "rule", limit: int | None = None) -> str:
    """Write the summary, then one table of the asked-for grouping, then the layers.

    `limit` caps the rows of that table; the largest tensors come first under `by="tensor"`, and what is left
    out is counted.
    """
    parts = [render_summary(report, model), _fate_table(report.tensors)]
    if by == "tensor":
        parts.append(_tensor_table(report, limit))
    elif by == "layer":
        parts.append(_group_table("layer", by_layer(report.tensors), limit))
    else:
        parts.append(_group_table("rule", by_rule(report.tensors), limit))
    parts.append(_layer_table(report.graphs))
    return "\n\n".join(part for part in parts if part)


def render_summary(report: Report, model: str) -> str:
    """Say in one line how many activations leave, and how many bytes; parameters (`skip`) are none."""
    fates = [verdict.fate for verdict in report.tensors if verdict.fate != "skip"]
    graphs = "1 graph" if report.num_graphs == 1 else f"{report.num_graphs} graphs"
    leaving = f"{fates.count('offload')} of {len(fates)} activations offloaded"
    moved = format_size_short(report.planned_bytes)
    return f"{report.policy} on {model}, mode {report.mode}: {leaving}, {moved} each step, {graphs}"


def _tensor_data(graph: GraphReport, verdict: TensorVerdict) -> dict[str, Any]:
    activation = verdict.activation
    return {
        "name": activation.name,
        "op": activation.op,
        "op_class": activation.op_class,
        "module": activation.module,
        "layer": activation.layer,
        "num_bytes": activation.num_bytes,
        "fate": verdict.fate,
        "rule": verdict.rule,
        "reason": verdict.reason,
        "graph": graph.graph,
        "dtype": activation.dtype,
        "layout": activation.layout,
        "moved_bytes": verdict.moved_bytes,
        "num_views": verdict.num_views,
    }


def _fate_table(verdicts: Sequence[TensorVerdict]) -> str:
    rows = [
        [fate, str(tally.num_tensors), format_size_short(tally.num_bytes)]
        for fate, tally in by_fate(verdicts)
        if tally.num_tensors
    ]
    return render_table([Column("fate"), Column("tensors", "right"), Column("bytes", "right")], rows)


def _group_table(title: str, rows: Sequence[FateRow], limit: int | None) -> str:
    """Tabulate groups; grouped by layer, the deciding rule gets a column of its own."""
    columns = [Column(title), Column("fate"), Column("tensors", "right"), Column("bytes", "right")]
    cells = [
        [row.label, row.fate, str(row.tally.num_tensors), format_size_short(row.tally.num_bytes)]
        for row in rows
    ]
    if title != "rule":
        columns.append(Column("rule"))
        for row, line in zip(rows, cells, strict=True):
            line.append(row.rule or "")
    return _limited(columns, cells, limit)


def _tensor_table(report: Report, limit: int | None) -> str:
    several = report.num_graphs > 1
    columns = [Column(title) for title in ("tensor", "op", "class", "module", "layer")]
    columns += [Column("bytes", "right"), Column("fate"), Column("rule"), Column("reason")]
    if several:
        columns.insert(0, Column("graph"))
    listed = [(graph, verdict) for graph in report.graphs for verdict in graph.tensors]
    if limit is not None:
        # Ties keep forward order: sorted is stable.
        listed = sorted(listed, key=lambda item: -item[1].activation.num_bytes)
    rows = [_tensor_row(graph, verdict, several) for graph, verdict in listed]
    return _limited(columns, rows, limit)


def _tensor_row(graph: GraphReport, verdict: TensorVerdict, several: bool) -> list[str]:
    activation = verdict.activation
    row = [
        activation.name,
        activation.op,
        activation.op_class,
        activation.module,
        "" if activation.layer is None else str(activation.layer),
        format_size_short(activation.num_bytes),
        verdict.fate,
        verdict.rule or "",
        verdict.reason,
    ]
    return [str(graph.graph), *row] if several else row


def _limited(columns: Sequence[Column], rows: Sequence[Sequence[str]], limit: int | None) -> str:
    shown = rows if limit is None else rows[:limit]
    table = render_table(columns, shown)
    left_out = len(rows) - len(shown)
    return f"{table}\n  ... and {left_out} more" if left_out else table


def _layer_table(graphs: Sequence[GraphReport]) -> str:
    """List what `layers:` counts, once for equal graphs; nothing for a model without repeated blocks."""
    tables = list(dict.fromkeys(graph.layer_table for graph in graphs if graph.layer_table))
    return "\n\n".join(
        render_table(
            [Column("layer", "right"), Column("module")], [[str(row.layer), row.module] for row in table]
        )
        for table in tables
    )
