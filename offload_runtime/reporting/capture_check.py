"""What comparing two captures of one model found, as text."""

from __future__ import annotations

from offload_runtime.models.capture_check import CaptureCheck
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

__all__ = ["render_capture_check"]


def render_capture_check(check: CaptureCheck) -> str:
    """Say in one line that both captures agree, or lay out where they do not."""
    if check.reason:
        return f"capture check: not made: {check.reason}"
    if check.agrees:
        return (
            f"capture check: the whole step, captured as one graph, holds the same {check.num_in_step} tensors, "
            "by module, operator and bytes"
        )
    columns = [
        Column("module"),
        Column("operator"),
        *(Column(name, "right") for name in ("bytes", "compiled", "step")),
    ]
    rows = [
        [
            difference.module or "(root)",
            difference.op,
            format_size_short(difference.num_bytes),
            str(difference.num_in_compile),
            str(difference.num_in_step),
        ]
        for difference in check.differences
    ]
    heading = (
        f"capture check: {check.num_in_compile} tensors in the compiled graphs, {check.num_in_step} in the whole step "
        "captured as one graph; those in different numbers"
    )
    return f"{heading}\n{render_table(columns, rows)}"
