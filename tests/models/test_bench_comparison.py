"""Two results side by side: what changed, and whether by more than noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload_runtime.errors import RefusedError
from offload_runtime.models.bench_comparison import Comparison, compare_results
from offload_runtime.models.bench_result import BenchResult, Side
from tests.models.bench_results import bench_result, with_rounds

NAMES = ("a.json", "b.json")


def result(
    one_ms: float | None, one_peak: int | None = 100, *, control_ms: float = 10.1, control_peak: int = 200
) -> BenchResult:
    """Return a result with a baseline of 10 ms and 200 bytes, and noise of 1 % by default."""

    def times(step_ms: float | None) -> list[float] | None:
        return None if step_ms is None or one_ms is None else [step_ms]

    return with_rounds(
        bench_result("base", "one"),
        {
            "base": (times(10), 200),
            "one": (times(one_ms), one_peak),
            "base again": (times(control_ms), control_peak),
        },
        {"base": (times(10), 200), "one": (times(one_ms), one_peak), "base again": (times(10), 200)},
    )


def compared(a: BenchResult, b: BenchResult) -> Comparison:
    return compare_results(a, b, NAMES)


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "time"),
    [
        (11, 11, "same"),
        (11, 11.21, "same"),  # 1.9 % more, with 1 % of noise in each result
        (11, 11.24, "worse"),  # 2.2 % more
        (11, 10.79, "same"),
        (11, 10.76, "better"),
    ],
)
def test_a_time_changed_if_it_did_by_more_than_the_noise_of_both(
    before_ms: float, after_ms: float, time: str
) -> None:
    comparison = compared(result(before_ms), result(after_ms))
    assert comparison.step_noise == pytest.approx(0.02)
    one = comparison.sides[1]
    assert one.time == one.verdict == time
    assert one.ratios == pytest.approx((before_ms / 10, after_ms / 10))
    assert one.ratio_change == pytest.approx(after_ms / before_ms)
    assert bool(comparison.regressions) == (time == "worse")


def test_a_slower_machine_is_no_regression() -> None:
    a = result(11)
    slow = with_rounds(a, {"base": ([30], 200), "one": ([33], 100), "base again": ([30], 200)})
    assert compared(a, slow).sides[1].time == "same"


@pytest.mark.parametrize(
    ("after_peak", "control_peak", "memory"),
    [(100, 200, "same"), (101, 200, "worse"), (99, 200, "better"), (101, 196, "same")],
)
def test_a_peak_changed_if_it_did_by_more_than_peaks_of_one_side_differ(
    after_peak: int, control_peak: int, memory: str
) -> None:
    # A control at 196 beside its own 200 is 2 % of noise.
    comparison = compared(result(11), result(11, after_peak, control_peak=control_peak))
    assert comparison.sides[1].memory == comparison.sides[1].verdict == memory


def test_less_memory_for_more_time_is_mixed_and_still_a_regression() -> None:
    comparison = compared(result(11, 100), result(12, 50))
    one = comparison.sides[1]
    assert (one.time, one.memory, one.verdict) == ("worse", "better", "mixed")
    assert comparison.regressions == (one,)


def test_the_baseline_is_compared_by_its_peak_alone() -> None:
    base = compared(result(11), result(12)).sides[0]
    assert base.ratio_change is None
    assert (base.time, base.memory, base.verdict) == ("unknown", "same", "same")


def test_without_times_only_peaks_are_compared() -> None:
    comparison = compared(result(None, 100), result(None, 120))
    assert comparison.step_noise is None
    assert (comparison.sides[1].time, comparison.sides[1].memory) == ("unknown", "worse")


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (Side("one", "peer", fits=True), Side("one", "peer", fits=False), "worse", "no longer fits"),
        (Side("one", "peer", fits=False), Side("one", "peer", fits=True), "better", "now fits"),
        (Side("one", "peer", fits=True), Side("one", "peer", refused="x"), "worse", "no longer runs"),
        (Side("one", "peer", refused="x"), Side("one", "peer", fits=True), "better", "now runs"),
        (Side("one", "peer", refused="x"), Side("one", "peer", fits=False), "unknown", "runs in neither"),
    ],
)
def test_a_side_that_runs_in_one_result_only_is_judged_by_that(
    before: Side, after: Side, verdict: str, reason: str
) -> None:
    one = compared(result(11).with_side(before), result(11).with_side(after)).sides[1]
    assert (one.verdict, one.reason) == (verdict, reason)


def test_sides_of_one_result_alone_are_named_and_not_judged() -> None:
    a, b = bench_result("base", "one", "two"), bench_result("base", "three", "one")
    comparison = compared(a, b)
    assert [side.name for side in comparison.sides] == ["base", "one"]
    assert (comparison.only_in_a, comparison.only_in_b) == (("two",), ("three",))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            replace(result(11), model=replace(result(11).model, spec="builtin:other")),
            "model is builtin:some in a.json and builtin:other in b.json",
        ),
        (replace(result(11), mode="inductor"), "mode"),
        (replace(result(11), device="cpu"), "device is cuda in a.json and cpu in b.json"),
        (bench_result("one", "base"), "baseline"),
    ],
)
def test_different_things_are_not_compared(other: BenchResult, said: str) -> None:
    with pytest.raises(RefusedError, match=f"BEN913 .*{said}"):
        compared(result(11), other)


def test_different_conditions_are_said() -> None:
    b = replace(result(11), environment=replace(result(11).environment, torch="3.0"))
    (found,) = compared(result(11), b.with_side(Side("one", "peer", "hash", fits=True))).diagnostics
    assert (found.code, found.severity) == ("BEN942", "warning")
    assert "torch is 2.13.0 in a.json and 3.0 in b.json" in found.message
    assert compared(result(11), result(12)).diagnostics == ()


def test_the_data_names_the_regressions() -> None:
    data = compared(result(11), result(12)).to_data()
    assert data["regressions"] == ["one"]
    assert "diagnostics" not in data
