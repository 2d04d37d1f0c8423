from __future__ import annotations

from dataclasses import replace

import pytest

from offload_runtime.hardware_profile import PredictionError
from offload_runtime.models.frontier_result import FrontierFloor
from offload_runtime.models.plan_result import Holding, HostForecast, PeakSite, StepForecast, WindowForecast
from offload_runtime.reporting.plan import render_frontier, render_plan, render_window
from tests.reporting.plan_results import BASELINE_SITE, forecast, frontier_result, plan_result
from tests.reporting.plots.drawn import GIB


def rows(text: str) -> list[list[str]]:
    """Return the cells of every line; cells stand two spaces or more apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_the_first_line_is_what_can_leave_for_free_with_its_arithmetic() -> None:
    assert render_plan(plan_result()).splitlines()[0] == (
        "can leave for free: 1.5 GiB = 55.3 GB/s x 29.1 ms from the first saved byte to the peak; what kernels beside "
        "a copy lose was not measured there, and counts as nothing"
    )
    measured = replace(plan_result().window, contention_share=0.06)
    said = render_plan(plan_result(window=measured)).splitlines()[0]
    assert said.endswith("; nothing waits for it, and kernels beside a copy take 6 % longer")


@pytest.mark.parametrize(
    ("optimizer_ms", "said"),
    [(1.25, "backward, to which the step of adamw adds 1.2 ms\n"), (0.0, "backward\n")],
)
def test_what_times_are_of_is_said(optimizer_ms: float, said: str) -> None:
    assert f"times are of forward and {said}" in render_plan(plan_result(optimizer_ms=optimizer_ms))


def test_a_window_of_nothing_is_explained() -> None:
    text = render_window(plan_result(window=WindowForecast(0, 0.0, 55.3e6)))
    assert text.startswith("can leave for free: 0 B: nothing is saved before the peak")


def test_the_policy_stands_beside_the_baseline() -> None:
    table = rows(render_plan(plan_result()))
    assert ["peak device memory", "12 GiB", "9 GiB", "-25.0 %"] in table
    assert ["forward and backward", "20.0 ms", "20.5 ms", "+2.5 %"] in table
    assert ["fits 80 GiB", "yes", "yes", "-"] in table
    assert ["within device_peak 10 GiB", "no", "yes", "-"] in table


def test_where_the_peaks_sit_and_what_is_alive_there_is_said_in_words() -> None:
    text = render_plan(plan_result())
    assert (
        "the baseline's peak sits in backward, outside the layers, aten._log_softmax_backward_data.default in loss\n"
        "the policy's peak sits in forward, layer 2, aten.mm.default in layers.2.mlp\n"
    ) in text
    assert ["saved aten.mm.default", "2 x, 2 GiB", "2 x, 2 GiB"] in rows(text)
    same = render_plan(plan_result(policy=forecast(9, 20.5, BASELINE_SITE)))
    assert "both peaks sit in backward, outside the layers" in same


def test_what_stays_is_listed_by_kind() -> None:
    text = render_plan(plan_result())
    assert (
        "stays throughout: parameters 2 GiB, optimizer state 4 GiB, batch 1 MiB, workspace 64 MiB; "
        "gradients take 2 GiB by the end of backward"
    ) in text


def test_fates_come_by_run_of_layers_without_what_is_no_activation() -> None:
    table = rows(render_plan(plan_result()))
    assert ["0", "offload", "1", "1 GiB", "1 GiB", "heavy"] in table
    assert ["1", "save", "1", "1 GiB", "-", "heavy"] in table
    assert not [row for row in table if "skip" in row]


def test_copies_host_memory_and_optimality_are_said() -> None:
    table = rows(render_plan(plan_result()))
    assert ["offloaded", "1 of 2 candidates, 1 GiB each way"] in table
    assert [
        "host memory",
        "1 GiB pinned by one rank, 4 KiB of it rounding; 200 GiB may be, if all 8 ranks of such a host pin as much",
    ] in table
    assert ["transfer hidden", "95.0 %"] in table
    assert ["optimality", "0.49 % above its bound of 20.4 ms"] in table
    assert ["a", "aten.mm.default", "layers.0.mlp", "0.50"] in table


def test_without_copies_their_lines_are_empty() -> None:
    nothing = plan_result(
        host=HostForecast(0, 0, None, 1, None),
        hidden_fraction=None,
        stalls=(),
        bound_ms=None,
        optimality_gap=None,
    )
    table = rows(render_plan(nothing))
    for name in ("host memory", "transfer hidden", "optimality"):
        assert [name, "-"] in table
    assert "waits for" not in render_plan(nothing)


def test_a_step_without_an_optimizer_is_forward_and_backward_alone() -> None:
    text = render_plan(plan_result(optimizer="none", optimizer_ms=0.0))
    assert text.splitlines()[-1].endswith("forward and backward take 1.025x the baseline's time.")


def test_a_step_of_several_batches_is_told_from_one() -> None:
    text = render_plan(plan_result(gradient_accumulation_steps=4))
    said = "times are of forward and backward of one batch, 4 of which make a step, to which the step of adamw and "
    assert f"{said}adding gradients up add 1.2 ms" in text
    # (4 x 20.5 + 1.25) / (4 x 20 + 1.25)
    assert text.splitlines()[-1].endswith("a step with adamw 1.025x.")


def test_a_limit_planned_without_an_optimizer_s_state_says_so() -> None:
    said = "; no state of an optimizer is counted, since sgd keeps none: name yours with --optimizer."
    sgd = {"optimizer": "sgd", "assumes_no_state": True}
    assert render_plan(plan_result(**sgd)).endswith(said)
    unlimited = render_plan(plan_result(**sgd, target_bytes=None))
    assert said not in unlimited
    assert ", sgd (none was named: --optimizer adamw counts its state), " in unlimited
    assert said not in render_plan(plan_result())


def test_what_is_predicted_and_what_is_given_are_told_apart() -> None:
    text = render_plan(plan_result())
    assert (
        "nothing was run: peaks and times are predicted, limits and the device's memory are given\n" in text
    )


def test_stalls_beyond_the_longest_are_counted() -> None:
    text = render_plan(plan_result(stalls=tuple((f"t{i}", 9.0 - i) for i in range(8))))
    assert ["t4", "-", "-", "5.00"] in rows(text)
    assert "t5" not in text
    assert "  ... and 3 more" in text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (
            {},
            "1 tensor, 1 GiB, leave in each step; the peak falls from 12 GiB to 9 GiB (25.0 %); "
            "forward and backward take 1.025x the baseline's time, a step with adamw 1.024x.",
        ),
        (
            {"num_offloaded": 0, "policy": forecast(12, 20.0), "target_bytes": 20 * GIB},
            "Nothing to do: the peak of 12 GiB is under the target of 20 GiB already.",
        ),
        (
            {"num_offloaded": 0, "policy": forecast(11, 20.5), "target_bytes": 20 * GIB},
            "Nothing to do: the peak of 12 GiB is under the target of 20 GiB already; the peak falls from 12 GiB to "
            "11 GiB (8.3 %); forward and backward take 1.025x the baseline's time, a step with adamw 1.024x.",
        ),
        (
            {"num_offloaded": 0, "policy": forecast(12, 20.0), "target_bytes": None},
            "Nothing leaves the device; the peak stays at 12 GiB.",
        ),
        (
            {"num_offloaded": 0, "target_bytes": None},
            "Nothing is offloaded, what changes is what is recomputed; the peak falls from 12 GiB to 9 GiB (25.0 %); "
            "forward and backward take 1.025x the baseline's time, a step with adamw 1.024x.",
        ),
        (
            {"policy": forecast(12, 20.0, BASELINE_SITE)},
            "1 tensor, 1 GiB, leave in each step; the peak stays at 12 GiB: it sits in backward, outside the layers, "
            "aten._log_softmax_backward_data.default in loss; forward and backward take 1.000x the baseline's "
            "time, a step with adamw 1.000x.",
        ),
        (
            {"baseline": forecast(90, 20.0, fits=False)},
            "1 tensor, 1 GiB, leave in each step; the peak falls from 90 GiB to 9 GiB (90.0 %); forward and "
            "backward take 1.025x the baseline's time, a step with adamw 1.024x; it fits the 80 GiB of h200-pcie5, "
            "and the baseline does not.",
        ),
        (
            {"policy": forecast(90, 20.5, PeakSite("optimizer"), fits=False)},
            "1 tensor, 1 GiB, leave in each step; the peak rises from 12 GiB to 90 GiB (650.0 %); forward and "
            "backward take 1.025x the baseline's time, a step with adamw 1.024x; it does not fit the 80 GiB "
            "of h200-pcie5.",
        ),
    ],
)
def test_the_verdict_is_one_sentence(changes: dict[str, object], verdict: str) -> None:
    assert render_plan(plan_result(**changes)).splitlines()[-1] == f"verdict: {verdict}"


def test_a_frontier_has_a_table_for_each_way_to_choose() -> None:
    text = render_frontier(frontier_result())
    lines = text.splitlines()
    assert lines[0] == "frontier of builtin:llama3-8b, mode inductor, on h200-pcie5: baseline 12 GiB, 20.0 ms"
    assert lines[1] == "floor 8 GiB: what stays throughout 6 GiB"
    table = rows(text)
    assert ["10 GiB", "9.5 GiB", "20.4 ms", "1.0200", "1 GiB", "0.5 ms", "1.23 %", "-"] in table
    assert ["5 GiB", "-", "-", "-", "-", "-", "-", "no plan keeps to it"] in table
    assert ["2 GiB", "10.5 GiB", "22.0 ms", "1.1000", "2 GiB", "0.0 ms", "-"] in table


def test_a_floor_of_the_optimizers_step_says_so() -> None:
    text = render_frontier(frontier_result(floor=FrontierFloor(8 * GIB, ())))
    assert text.splitlines()[1] == "floor 8 GiB: the optimizer's step"


def test_both_peaks_are_told_by_the_same_rows() -> None:
    def alive(*names: str) -> StepForecast:
        held = tuple(Holding(name, 1, (9 - number) * GIB) for number, name in enumerate(names))
        return replace(forecast(9, 20.5), holdings=held)

    before, after = alive("a", "b", "c", "d", "e", "f", "g"), alive("g", "f", "e", "d", "c", "b", "z")
    text = render_plan(plan_result(baseline=before, policy=after))
    lines = text.partition("alive there")[2].partition("\n\n")[0]
    table = {row[0]: row[1:] for row in rows(lines)[1:]}
    assert table.pop("what stays throughout")
    assert table == {
        "a": ["9 GiB", "-"],
        **{name: [f"{9 - i} GiB", f"{3 + i} GiB"] for i, name in enumerate("bcdefg", start=1)},
        "others": ["-", "3 GiB"],
    }


def test_what_leaving_costs_where_nothing_waits_is_said() -> None:
    window = WindowForecast(GIB, 20.0, 55.3e6, 0.06)
    assert "kernels beside a copy take 6 % longer" in render_window(plan_result(window=window))
    assert "longer" not in render_window(plan_result())


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("graph", "torch.compile alone: --mode inductor"),
        ("inductor", "the baseline is torch.compile alone"),
    ],
)
def test_what_the_baseline_is_is_said(mode: str, said: str) -> None:
    assert said in render_plan(plan_result(mode=mode))


def test_how_far_predictions_were_off_is_said_for_the_mode_that_was_compared() -> None:
    error = PredictionError(ratio=0.0494, step=0.1047, num_runs=22)
    compared = "predicted ratios were within 0.05 of measured ones, and steps within 10.5 %, on 22 runs"
    assert f"\n{compared}\n" in render_plan(plan_result(mode="inductor", prediction_error=error))
    assert f"\nin mode inductor {compared}\n" in render_plan(
        plan_result(mode="graph", prediction_error=error)
    )
    text = render_plan(plan_result(hardware="h100-sxm"))
    assert "\npredicted times were not compared with runs on h100-sxm\n" in text


@pytest.mark.parametrize(("peak", "said"), [(103 * GIB, "does not fit"), (40 * GIB, "fits"), (None, None)])
def test_the_peak_of_a_loop_that_is_not_compiled_stands_beside(peak: int | None, said: str | None) -> None:
    text = render_plan(plan_result(capacity_bytes=80 * GIB, eager_peak_bytes=peak))
    if peak is None:
        assert "eager" not in text
    else:
        assert f"\n  eager PyTorch, not compiled: a peak of {peak // GIB} GiB, which {said}\n" in text


def test_a_plan_that_fits_says_where_it_is_verified_and_what_cannot_be_compared_there() -> None:
    fitting = plan_result()
    assert fitting.policy.fits
    assert f"to verify: offload apply on the device of {fitting.hardware};" in render_plan(fitting)
    without = replace(fitting, baseline=replace(fitting.baseline, fits=False))
    assert "so that no times are compared" in render_plan(without)
    assert "to verify" not in render_plan(replace(fitting, policy=replace(fitting.policy, fits=False)))
