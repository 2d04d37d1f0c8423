import json

import pytest

from offload_runtime.hardware import Figure, HardwareProfile
from offload_runtime.reporting.why import arithmetic_data, format_value, render_arithmetic
from offload_runtime.tier_lines import arithmetic_sections
from offload_runtime.tiers import TrainingShape, offload_arithmetic

HARDWARE = HardwareProfile(
    "pcie4",
    "A GPU of 80 GB behind PCIe 4.0 x16 in theory.",
    (
        Figure("device.memory", 80, "GB", "datasheet"),
        Figure("link.d2h", 32, "GB/s", "in theory"),
        Figure("link.h2d", 32, "GB/s", "in theory"),
    ),
)
ARITHMETIC = offload_arithmetic(HARDWARE, TrainingShape(10 * 10**9, step_ms=250))


def test_the_text_begins_with_the_verdict_and_has_a_table_for_each_question() -> None:
    text = render_arithmetic(ARITHMETIC)
    assert text.splitlines()[0] == (
        "pcie4: 74.5 GiB have to leave: 67% of optimizer state; this adds a time that is not known to a step"
    )
    assert [line for line in text.splitlines()[1:] if line and not line.startswith(" ")] == [
        "memory tiers",
        "what training holds on one rank",
        "what hides copies",
        "what can leave, by what it frees for what it moves",
        "what should leave, by rates alone",
    ]


def test_a_row_is_one_line_with_its_value_and_what_it_was_computed_from() -> None:
    rows = [line.split() for line in render_arithmetic(ARITHMETIC).splitlines()]
    assert [
        "model",
        "state",
        "149",
        "GiB",
        *["16", "B", "x", "10,000,000,000", "parameters", "the", "line", "above"],
    ] in rows
    (copies,) = [row for row in rows if row[:5] == ["optimizer", "state:", "copies", "in", "a"]]
    assert copies[6:8] == ["1,250", "ms"]


def test_a_section_without_lines_is_left_out() -> None:
    assert "what should leave" not in render_arithmetic(offload_arithmetic(HARDWARE, TrainingShape(10**9)))


def test_the_data_holds_every_line_and_is_json() -> None:
    data = json.loads(json.dumps(arithmetic_data(ARITHMETIC)))
    lines = [line for section in data["sections"] for line in section["lines"]]
    assert len(lines) == sum(len(section.lines) for section in arithmetic_sections(ARITHMETIC))
    assert {"label": "model state", "value": 160e9 / 2**30, "unit": "GiB"}.items() <= lines[8].items()
    assert data["needed_bytes"] == 80 * 10**9
    assert [measure["kind"] for measure in data["order"]] == ["optimizer_state", "gradients", "parameters"]
    assert data["choice"]["measures"][0]["freed_bytes"] == 80 * 10**9
    assert data["choice"]["stall_ms"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"),
        (0, "0"),
        (8, "8"),
        (2.6666, "2.667"),
        (0.5513, "0.5513"),
        (1250.0, "1,250"),
        (1e6, "1,000,000"),
    ],
)
def test_values_are_written_to_four_figures(value: float | None, text: str) -> None:
    assert format_value(value) == text
