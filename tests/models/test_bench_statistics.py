"""Medians, spreads, paired ratios and noise, on turns written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload_runtime.models.bench_statistics import noise, summarise
from tests.models.bench_results import bench_result, with_rounds

RESULT = with_rounds(
    bench_result("base", "one"),
    {"base": ([10, 12], 100), "one": ([11, 11], 50), "base again": ([11, 11.22], 99)},
    {"base again": ([20, 20], 100), "one": ([24, 26], 60), "base": ([20, 20], 100)},
    {"base": ([10, 10], 100), "one": ([10, 12], 60), "base again": ([9.9, 9.9], 100)},
)


def test_a_summary_is_over_all_steps_and_its_ratio_over_rounds() -> None:
    summary = summarise(RESULT, "one")
    assert summary.num_steps == 6
    assert summary.median_ms == 11.5  # of 10 11 11 12 24 26
    assert summary.iqr_ms == 10.0  # quartiles 11 and 21, interpolated between the steps
    assert summary.min_ms == 10
    assert summary.ratio_by_round == pytest.approx((1.0, 1.25, 1.1))
    assert summary.ratio == pytest.approx(1.1)
    assert summary.peak_device_bytes == 60


def test_the_baseline_is_one_by_definition() -> None:
    assert summarise(RESULT, "base").ratio_by_round == (1.0, 1.0, 1.0)


def test_noise_is_the_largest_distance_of_the_baseline_from_itself_in_one_round() -> None:
    measured = noise(RESULT)
    assert measured.ratio_by_round == pytest.approx((1.01, 1.0, 0.99))
    assert measured.step_fraction == pytest.approx(0.01)


def test_noise_of_peaks_is_the_largest_spread_of_one_side() -> None:
    assert noise(RESULT).peak_fraction == pytest.approx((60 - 50) / 60)


def test_a_single_step_has_no_spread() -> None:
    result = with_rounds(bench_result("base"), {"base": ([10], 1), "base again": ([10], 1)})
    assert summarise(result, "base").iqr_ms is None
    assert summarise(result, "base").median_ms == 10


def test_a_round_without_one_of_the_two_has_no_ratio() -> None:
    result = with_rounds(
        bench_result("base", "one"), {"one": ([11], 1), "base": ([10], 1)}, {"one": ([11], 1)}
    )
    assert summarise(result, "one").ratio_by_round == (pytest.approx(1.1), None)
    assert summarise(result, "one").ratio == pytest.approx(1.1)
    assert noise(result).step_fraction is None


def test_without_an_accelerator_there_are_peaks_and_no_times() -> None:
    result = with_rounds(bench_result("base"), {"base": (None, 5), "base again": (None, None)})
    summary = summarise(result, "base")
    assert (summary.num_steps, summary.median_ms, summary.iqr_ms, summary.min_ms) == (0, None, None, None)
    assert summary.peak_device_bytes == 5
    assert noise(result).step_fraction is None
    assert not result.timed


def test_a_side_that_no_longer_fits_has_no_figures() -> None:
    result = RESULT.with_side(replace(RESULT.side("one"), fits=False))
    summary = summarise(result, "one")
    assert (summary.median_ms, summary.ratio, summary.peak_device_bytes) == (None, None, None)
    assert summary.ratio_by_round == (None, None, None)


def test_a_result_without_rounds_says_nothing() -> None:
    result = bench_result("base", "one")
    assert summarise(result, "one").ratio is None
    assert noise(result).ratio_by_round == ()
