"""The arithmetic behind a plan, `plan --why`: line by line as text, and as data."""

from __future__ import annotations

from typing import Any

from offload_runtime.offload_options import Measure, Option
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.tier_lines import ArithmeticLine, ArithmeticSection, arithmetic_sections
from offload_runtime.tier_verdict import arithmetic_verdict
from offload_runtime.tiers import OffloadArithmetic


def render_arithmetic(arithmetic: OffloadArithmetic) -> str:
    """Write the verdict, then a table of each section: what, how much, from what, where that comes from."""
    parts = [f"{arithmetic.hardware.name}: {arithmetic_verdict(arithmetic)}"]
    parts += [render_section(section) for section in arithmetic_sections(arithmetic) if section.lines]
    return "\n\n".join(parts)


def arithmetic_data(arithmetic: OffloadArithmetic) -> dict[str, Any]:
    """Return the arithmetic for programs; sizes of measures are bytes."""
    return {
        "hardware": arithmetic.hardware.name,
        "verdict": arithmetic_verdict(arithmetic),
        "limit_bytes": arithmetic.limit_bytes,
        "held_bytes": arithmetic.held_bytes,
        "needed_bytes": arithmetic.needed_bytes,
        "needed_state_bytes": arithmetic.state_bytes,
        "sections": [
            {"title": section.title, "lines": [_line_data(line) for line in section.lines]}
            for section in arithmetic_sections(arithmetic)
        ],
        "order": [_measure_data(measure) for measure in arithmetic.order],
        "options": [_option_data(option) for option in arithmetic.options],
        "choice": None if arithmetic.choice is None else _option_data(arithmetic.choice),
    }


def render_section(section: ArithmeticSection) -> str:
    """Write a section as a table under its title."""
    columns = [Column("what"), Column("value", "right"), Column("unit"), Column("from"), Column("source")]
    rows = [
        [line.label, format_value(line.value), line.unit, line.expression, line.source]
        for line in section.lines
    ]
    return f"{section.title}\n{render_table(columns, rows)}"


def format_value(value: float | None) -> str:
    """Write a value to four figures, `?` for one that is not known."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _line_data(line: ArithmeticLine) -> dict[str, Any]:
    return {
        "label": line.label,
        "expression": line.expression,
        "value": line.value,
        "unit": line.unit,
        "source": line.source,
    }


def _measure_data(measure: Measure) -> dict[str, Any]:
    return {
        "kind": measure.kind,
        "fraction": measure.fraction,
        "freed_bytes": measure.freed_bytes,
        "d2h_bytes": measure.d2h_bytes,
        "h2d_bytes": measure.h2d_bytes,
        "host_bytes": measure.host_bytes,
        "link_ms": measure.link_ms,
        "cpu_ms": measure.cpu_ms,
        "compute_ms": measure.compute_ms,
    }


def _option_data(option: Option) -> dict[str, Any]:
    return {
        "measures": [_measure_data(measure) for measure in option.measures],
        "freed_bytes": option.freed_bytes,
        "host_bytes": option.host_bytes,
        "stall_ms": option.stall_ms,
    }
