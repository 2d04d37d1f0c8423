from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.units import (
    format_percent,
    format_size,
    format_size_short,
    parse_percent,
    parse_size,
    size_hint,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0B", 0),
        ("1B", 1),
        ("4KiB", 4096),
        ("4KB", 4000),
        ("12GiB", 12 * 2**30),
        ("12 GiB", 12 * 2**30),
        ("10GB", 10**10),
        ("1.5MiB", 1_572_864),
        ("0.001KB", 1),
        ("1PiB", 2**50),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "0",
        "GiB",
        "-1GiB",
        "+1GiB",
        "05GiB",
        "1e9B",
        "5gib",
        "5Gib",
        "5G",
        "5 G iB",
        "5GiB ",
        "5GiB\n",
        ".5GiB",
        "5.GiB",
        "1_000B",
        "0.5B",
        "1.0001KiB",
        "٥GiB",
        "1,5GiB",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (size|whole number of bytes); "):
        parse_size(text)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (5, "a bare number has no unit: write 5GiB or 5GB"),
        (5.0, "a bare number has no unit: write 5GiB or 5GB"),
        (5368709120, "a bare number has no unit: write 5GiB if bytes were meant"),
        (0, "write 0B"),
        ("0", "write 0B"),
        ("5", "a bare number has no unit: write 5GiB or 5GB"),
        ("1.5", "a bare number has no unit: write 1.5GiB or 1.5GB"),
        ("5gib", "did you mean 5GiB?"),
        ("5G", "did you mean 5GiB (binary) or 5GB (decimal)?"),
        ("5 gb", "did you mean 5GB?"),
        ("1_000MB", "did you mean 1000MB?"),
        (".5GiB", "did you mean 0.5GiB?"),
        ("lots", "write a number and a unit, such as 12GiB (2**30 bytes each) or 12GB (10**9)"),
        (True, "write a number and a unit, such as 12GiB (2**30 bytes each) or 12GB (10**9)"),
        (-1, "write a number and a unit, such as 12GiB (2**30 bytes each) or 12GB (10**9)"),
        (float("inf"), "write a number and a unit, such as 12GiB (2**30 bytes each) or 12GB (10**9)"),
    ],
)
def test_the_hint_says_how_to_write_what_was_probably_meant(value: object, hint: str) -> None:
    assert size_hint(value) == hint


@given(st.integers(0, 2**60))
def test_a_formatted_size_reads_back_exactly(num_bytes: int) -> None:
    assert parse_size(format_size(num_bytes)) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0B"),
        (12 * 2**30, "12GiB"),
        (10**10, "10GB"),
        (4096, "4KiB"),
        (1000, "1KB"),
        (1023, "1023B"),
        (1, "1B"),
    ],
)
def test_a_size_is_written_in_the_unit_that_keeps_it_short(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (12_700_000_000, "11.8 GiB"),
        (2**40, "1 TiB"),
        (1002 * 2**20, "1002 MiB"),
        (2**63, "8192 PiB"),
    ],
)
def test_a_size_for_reading_has_three_figures(num_bytes: int, text: str) -> None:
    assert format_size_short(num_bytes) == text


@pytest.mark.parametrize(
    ("text", "share"), [("0%", 0), ("5%", Fraction(1, 20)), ("12.5%", Fraction(1, 8)), ("100%", 1)]
)
def test_a_percentage_is_an_exact_share(text: str, share: Fraction) -> None:
    assert parse_percent(text) == share
    assert format_percent(Fraction(share)) == text


@pytest.mark.parametrize("text", ["", "5", "%", "-5%", "05%", "5 %", "5%\n", "1000%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        parse_percent(text)
