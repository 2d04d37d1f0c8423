"""A paired measurement as text and as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offload_runtime.models.bench_result import BenchResult, Prediction, Side
from offload_runtime.models.bench_statistics import summarise
from offload_runtime.reporting.bench import NOT_TIMED, draw_bench, render_bench
from tests.models.bench_results import GIB, bench_result, with_rounds

MEASURED = with_rounds(
    bench_result(
        "compile", "frugal", "activation-budget:0.3", "save-on-cpu", "gone", "torch-offload", num_rounds=2
    )
    .with_side(Side("compile", "peer", fits=True, compile_s=(51.94,)))
    .with_side(Side("frugal", "policy", "hash", fits=True, compile_s=(55.0, 4.0), moved_bytes=12 * GIB))
    .with_side(Side("gone", "peer", fits=False))
    .with_side(Side("torch-offload", "peer", refused="BEN931 torch 1.0 has no setting x")),
    {
        "compile": ([700, 702], 55 * GIB),
        "frugal": ([707.5, 708.5], 43 * GIB),
        "activation-budget:0.3": ([818, 818], 34 * GIB),
        "save-on-cpu": ([3000, 3000], 50 * GIB),
        "compile again": ([700.5, 700.5], 55 * GIB),
    },
    {
        "compile again": ([702, 702], 55 * GIB),
        "save-on-cpu": ([3000, 3000], 50 * GIB),
        "activation-budget:0.3": ([818, 818], 34 * GIB),
        "frugal": ([715, 715], 43 * GIB),
        "compile": ([700, 700], 55 * GIB),
    },
)
SIMULATED = replace(
    with_rounds(
        bench_result("sac-default", "frugal", "eager", num_rounds=1),
        {"sac-default": (None, 2 * GIB), "frugal": (None, GIB), "eager": (None, None)},
    ),
    environment=replace(MEASURED.environment, gpu=None),
)


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each row of the table, by its first."""
    split = (line.split("  ") for line in text.splitlines() if line.startswith("  "))
    cells = [[cell.strip() for cell in line if cell.strip()] for line in split]
    return {line[0]: line[1:] for line in cells}


def test_a_measurement_shows_each_side_with_times_ratio_rounds_and_memory() -> None:
    table = rows(render_bench(MEASURED))
    assert table["side"] == [
        *("step ms", "x baseline", "rounds", "IQR ms", "min ms", "compile s"),
        *("peak", "change", "moved"),
    ]
    assert table["compile"] == ["700.00", "-", "-", "0.50", "700.00", "51.9", "55 GiB", "-", "-"]
    assert table["frugal"] == [
        *("711.75", "1.0157", "1.0100..1.0214", "6.75", "707.50", "55.0 4.0"),
        *("43 GiB", "-21.8 %", "12 GiB"),
    ]


def test_a_side_that_does_not_fit_or_is_refused_says_so() -> None:
    text = render_bench(MEASURED)
    table = rows(text)
    assert table["gone"][-3] == "out of memory"
    assert table["torch-offload"][-3] == "refused"
    assert "torch-offload was refused: BEN931 torch 1.0 has no setting x" in text


def test_the_machine_the_software_and_the_rounds_are_named() -> None:
    heading = render_bench(MEASURED).split("\n\n")[0]
    assert "builtin:some: a model, 1,000 parameters, forward and backward" in heading
    assert "2 of 2 rounds of 2 steps in 1 run" in heading
    assert "torch 2.13.0, offload-runtime 0.1.0, Some GPU of 80 GiB, PCIe 5 x16" in heading


def test_the_noise_is_what_the_baseline_differs_from_itself_by() -> None:
    assert "noise: compile differs from itself by up to 0.29 % in a round" in render_bench(MEASURED)


def test_the_frontier_names_the_sides_that_nothing_beats_in_both() -> None:
    last = render_bench(MEASURED).splitlines()[-1]
    assert last == (
        "no side needs both less memory and less time than: compile (55 GiB at 1.0000x), frugal (43 GiB at 1.0157x), "
        "activation-budget:0.3 (34 GiB at 1.1677x)"
    )


def test_without_an_accelerator_there_are_no_times_and_the_text_says_so() -> None:
    text = render_bench(SIMULATED)
    table = rows(text)
    assert table["side"] == ["peak", "change", "moved"]
    assert table["frugal"] == ["1 GiB", "-50.0 %", "-"]
    assert table["eager"] == ["-", "-", "-"]
    assert text.endswith(NOT_TIMED)
    assert "no accelerator" in text
    assert "noise" not in text


def test_a_baseline_that_does_not_fit_leaves_no_ratio_and_no_noise() -> None:
    result = with_rounds(
        bench_result("base", "one").with_side(Side("base", "peer", fits=False)), {"one": ([11, 11], GIB)}
    )
    text = render_bench(result)
    assert rows(text)["one"][:2] == ["11.00", "-"]
    assert "noise: not known" in text
    assert "than:" not in text


def test_a_result_without_rounds_can_be_shown() -> None:
    assert "0 of 3 rounds" in render_bench(bench_result("base"))


@pytest.mark.parametrize(("result", "drawn"), [(MEASURED, True), (SIMULATED, False)])
def test_a_picture_is_drawn_where_something_was_timed(
    result: BenchResult, drawn: bool, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "frontier.svg"
    assert draw_bench(result, path) is drawn
    assert path.exists() is drawn
    if drawn:
        text = path.read_text()
        assert all(word in text for word in ("policies", "activation-budget", "save-on-cpu"))
        # The picture's headline says what the table does: pairs, not medians over all rounds.
        assert "the step takes 1.016 of the time" in text


def test_a_prediction_stands_beside_what_was_measured_with_its_error() -> None:
    predicted = Prediction("h200-pcie5", 701.7, 42 * GIB, 0.0, 11 * GIB, 0.001)
    known = MEASURED.with_side(replace(MEASURED.side("frugal"), predicted=predicted))
    table = rows(render_bench(known))
    assert table["side"][-2:] == ["predicted peak", "predicted ms"]
    median_ms = summarise(known, "frugal").median_ms
    assert median_ms is not None
    assert table["frugal"][-2:] == [
        f"42 GiB ({100 * (42 / 43 - 1):+.1f} %)",
        f"701.7 ({100 * (701.7 / median_ms - 1):+.1f} %)",
    ]


def test_a_prediction_without_a_measurement_shows_no_error() -> None:
    predicted = Prediction("h200-pcie5", 701.7, 42 * GIB, 0.0, 11 * GIB, None)
    known = SIMULATED.with_side(replace(SIMULATED.side("frugal"), predicted=predicted))
    assert rows(render_bench(known))["frugal"][-2:] == ["42 GiB", "701.7"]
