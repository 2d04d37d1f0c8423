"""The table of layer runs: what became of the saved tensors of layers that fare alike."""

from __future__ import annotations

from collections.abc import Iterable

from offload_runtime.models.layer_runs import LayerRun
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

__all__ = ["layer_run_table"]


def layer_run_table(runs: Iterable[LayerRun]) -> str:
    """Return one row for each run of layers, fate and rule, or a line that there is none."""
    columns = [Column("layers"), Column("fate"), Column("tensors", "right"), Column("bytes", "right")]
    columns += [Column("moved", "right"), Column("rule")]
    rows = [
        [
            run.layers,
            run.fate,
            str(run.num_tensors),
            format_size_short(run.num_bytes),
            format_size_short(run.moved_bytes) if run.moved_bytes else "",
            run.rule or "",
        ]
        for run in runs
    ]
    return render_table(columns, rows) if rows else "  no saved tensors"
