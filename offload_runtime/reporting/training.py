"""What training with a policy did to numbers, memory and time, as text.

The data that programs read is `ApplyResult.to_data`.
"""

from __future__ import annotations

from collections.abc import Sequence

from offload_runtime.models.result import ApplyResult, PredictedRuns, RunResult
from offload_runtime.reporting.layer_runs import layer_run_table
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

NUM_LOSS_ROWS = 6
NUM_STALL_ROWS = 5
SIMULATED = (
    "without an accelerator the simulated engine ran: times are not measured, and its peaks are of the tensors of the "
    "graph that a CPU runs, before anything is fused"
)
_JUDGED = "; limits are judged by what is predicted"


def render_training(result: ApplyResult) -> str:
    """Write the comparison: what was run, fates by run of layers, memory and time, losses, the verdict."""
    parts = [
        _heading(result),
        layer_run_table(result.layer_runs),
        _run_table(result),
        _transfer_lines(result),
        _stall_table(result.stalls),
        _loss_table(result),
        f"verdict: {result.verdict}",
    ]
    return "\n\n".join(part for part in parts if part)


def _heading(result: ApplyResult) -> str:
    line = (
        f"{result.policy_name} on {result.model} ({result.num_parameters:,} parameters, {result.dtype}), "
        f"mode {result.mode}, {result.optimizer}, {_count(result.steps, 'step')}, seed {result.seed}, "
        f"{_count(result.num_graphs, 'graph')}, on {result.device}"
    )
    number = result.gradient_accumulation_steps
    line += f", {number} batches a step" if number > 1 else ""
    given = result.environment.device_memory_bytes
    line += f", with {format_size_short(given)} of device memory, as given" if given is not None else ""
    if result.engine != "simulated":
        return line
    judged = _JUDGED if result.predicted.hardware is not None else ""
    return f"{line}\n{SIMULATED}{judged}"


def _run_table(result: ApplyResult) -> str:
    columns = [
        Column("per step"),
        Column("baseline", "right"),
        Column("policy", "right"),
        Column("change", "right"),
    ]
    baseline, policy, predicted = result.baseline, result.policy, result.predicted
    peaks = [
        _peak(baseline),
        _peak(policy),
        _change(baseline.peak_device_bytes if baseline.fits else None, policy.peak_device_bytes),
    ]
    times = [_time(baseline), _time(policy), _change(baseline.step_ms, policy.step_ms)]
    # What the simulated engine holds is no device's memory: beside a prediction for one it is called what it is.
    is_of_cpu = result.engine == "simulated" and predicted.hardware is not None
    held = "peak of the CPU's graph" if is_of_cpu else "peak device memory"
    rows = [[held, *peaks], *_predicted_peaks(predicted)]
    rows += [["step time", *times], *_predicted_times(predicted)]
    table = render_table(columns, rows)
    if predicted.hardware is None:
        return table
    what = "with the optimizer's state and step, and the workspace of libraries"
    return f"{table}\n  predicted for {predicted.hardware}, {what}"


def _predicted_peaks(predicted: PredictedRuns) -> list[list[str]]:
    without, with_policy = predicted.baseline, predicted.policy
    peaks = (without.peak_device_bytes, with_policy.peak_device_bytes)
    shown = ["" if peak is None else format_size_short(peak) for peak in peaks]
    errors = (without.peak_relative_error, with_policy.peak_relative_error)
    return _predicted_rows(predicted, [*shown, _change(*peaks)], errors)


def _predicted_times(predicted: PredictedRuns) -> list[list[str]]:
    without, with_policy = predicted.baseline, predicted.policy
    times = (without.step_ms, with_policy.step_ms)
    shown = ["" if step_ms is None else f"{step_ms:.1f} ms" for step_ms in times]
    errors = (without.step_relative_error, with_policy.step_relative_error)
    return _predicted_rows(predicted, [*shown, _change(*times)], errors)


def _predicted_rows(
    predicted: PredictedRuns, shown: Sequence[str], errors: Sequence[float | None]
) -> list[list[str]]:
    """Return the row of predictions, and below it that of their errors, where anything was measured."""
    if predicted.hardware is None:
        return []
    rows = [["  predicted", *shown]]
    if any(error is not None for error in errors):
        rows.append(["  error", *("" if error is None else f"{100 * error:+.1f} %" for error in errors), ""])
    return rows


def _transfer_lines(result: ApplyResult) -> str:
    waste = (
        f", {format_size_short(result.host_waste_bytes)} of it rounding" if result.host_waste_bytes else ""
    )
    hidden = "not measured" if result.hidden_fraction is None else f"{100 * result.hidden_fraction:.1f} %"
    stall = "not measured" if result.stall_ms is None else f"{result.stall_ms:.2f} ms"
    rows = [
        ["planned to move", format_size_short(result.planned_bytes)],
        ["moved to the host", format_size_short(result.moved_bytes)],
        ["host memory", f"{format_size_short(result.host_bytes)}{waste}"],
        ["transfer hidden", hidden],
        ["stalled", stall],
        ["pinned after step 1", _count(result.num_pins, "time")],
        ["NUMA", result.numa],
    ]
    return "\n".join(f"  {name:<20} {value or '-'}" for name, value in rows)


def _stall_table(stalls: Sequence[tuple[str, float]]) -> str:
    worst = sorted(stalls, key=lambda stall: -stall[1])[:NUM_STALL_ROWS]
    if not worst:
        return ""
    rows = [[name, f"{stall_ms:.2f}"] for name, stall_ms in worst]
    return render_table([Column("waited for"), Column("ms", "right")], rows)


def _loss_table(result: ApplyResult) -> str:
    losses = result.losses
    runs = {"baseline": losses.baseline, "policy": losses.policy}
    apart = losses.compared not in ((), losses.policy)
    if apart:
        runs["policy, as compared"] = losses.compared
    runs["policy, offloads saved"] = losses.reference
    columns = [Column("loss at step", "right"), *(Column(name, "right") for name in runs)]
    rows = [
        [str(step + 1), *(_loss(run, step) for run in runs.values())]
        for step in _spread(max(len(losses.policy), len(losses.baseline)), NUM_LOSS_ROWS)
    ]
    if not rows:
        return ""
    table = render_table(columns, rows)
    return f"{table}\n  {_compared_runs(result)}" if apart else table


def _compared_runs(result: ApplyResult) -> str:
    kernels = ", on deterministic kernels" if result.deterministic else ""
    layers = "" if result.bitwise_scope == "full" else f", of {_count(result.bitwise_layers or 0, 'layer')}"
    return f"the last two columns are the runs that were compared bitwise{kernels}{layers}"


def _spread(length: int, num_rows: int) -> list[int]:
    """Return up to `num_rows` indices below `length`, evenly spread, the first and the last among them."""
    if length <= num_rows:
        return list(range(length))
    return sorted({round(row * (length - 1) / (num_rows - 1)) for row in range(num_rows)})


def _loss(run: Sequence[float], step: int) -> str:
    return f"{run[step]:.6f}" if step < len(run) else ""


def _peak(run: RunResult) -> str:
    if not run.fits:
        return "out of memory"
    return "not known" if run.peak_device_bytes is None else format_size_short(run.peak_device_bytes)


def _time(run: RunResult) -> str:
    return "not measured" if run.step_ms is None else f"{run.step_ms:.1f} ms"


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return ""
    return f"{100 * (after - before) / before:+.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
