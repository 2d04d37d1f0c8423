"""Bytes, durations and names as pictures write them."""

from __future__ import annotations

import pytest

from offload_runtime.reporting.plots.quantities import format_ms, memory_unit, shorten
from tests.reporting.plots.drawn import (
    GIB,
    MIB,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.00 GiB"),
        (300, "0.29 KiB"),
        (1023 * 1024, "1,023.0 KiB"),
        (5 * MIB, "5.00 MiB"),
        (int(40.94 * GIB), "40.9 GiB"),
        (2000 * GIB, "2,000.0 GiB"),
    ],
)
def test_bytes_are_written_in_a_unit_that_can_be_read(num_bytes: int, text: str) -> None:
    assert memory_unit(num_bytes).text(num_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(0.412, "0.41 ms"), (12.34, "12.3 ms"), (702.4, "702 ms"), (3723, "3,723 ms")]
)
def test_durations_are_written_to_three_figures_or_so(duration_ms: float, text: str) -> None:
    assert format_ms(duration_ms) == text


def test_a_long_name_loses_its_middle() -> None:
    assert shorten("triton_red_fused_backward", 25) == "triton_red_fused_backward"
    assert shorten("triton_red_fused_backward", 11) == "trito…kward"
