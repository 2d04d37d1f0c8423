"""Two measurements side by side, as text."""

from __future__ import annotations

from dataclasses import replace

from offload_runtime.models.bench_comparison import compare_results
from offload_runtime.models.bench_result import BenchResult, Side
from offload_runtime.reporting.bench_comparison import render_comparison
from tests.models.bench_results import GIB, bench_result, with_rounds

NAMES = ("a.json", "b.json")


def result(one_ms: float | None, peak_bytes: int = GIB) -> BenchResult:
    """Return a result with a baseline of 10 ms; None for a result without times."""
    base = None if one_ms is None else [10.0]
    return with_rounds(
        bench_result("base", "one"),
        {
            "base": (base, 2 * GIB),
            "one": (None if one_ms is None else [one_ms], peak_bytes),
            "base again": (None if one_ms is None else [10.1], 2 * GIB),
        },
    )


def shown(a: BenchResult, b: BenchResult) -> str:
    return render_comparison(compare_results(a, b, NAMES))


def test_a_row_has_both_ratios_both_peaks_and_what_became_of_them() -> None:
    text = shown(result(11), result(12, GIB // 2))
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  one")]
    expected = "one 1.1000 1.2000 1.0909 worse 1 GiB 512 MiB 0.5000 better mixed"
    assert row == expected.split()
    assert "A is a.json, B is b.json; times are those of base in the same result" in text
    assert "noise: 2.00 % of a step time, 0.00 % of a peak" in text
    assert text.endswith("verdict: B is worse in one")


def test_the_verdict_says_better_same_or_nothing_to_compare() -> None:
    assert shown(result(11), result(11)).endswith("verdict: B is the same as A, within the noise")
    assert shown(result(11), result(10)).endswith("verdict: B is better in one, and worse in none")
    empty = bench_result("base", "one")
    assert shown(empty, empty).endswith("verdict: nothing can be compared")


def test_without_times_it_says_that_only_peaks_are_compared() -> None:
    text = shown(result(None), result(None))
    assert "noise: times were not measured in both" in text
    assert "within the noise" not in text
    assert text.endswith("verdict: peaks in B are those in A; times were not measured")
    (row,) = [line for line in text.splitlines() if line.startswith("  one")]
    assert "not measured" in row


def test_a_side_that_no_longer_fits_and_sides_of_one_result_are_named() -> None:
    gone = result(11).with_side(Side("one", "peer", fits=False))
    assert "worse: no longer fits" in shown(result(11), gone)
    more = replace(result(11), sides=(*result(11).sides, Side("two", "peer")))
    assert "  only in B: two" in shown(result(11), more)
