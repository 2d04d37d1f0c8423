"""What a policy would do for a model, predicted: as text. The data that programs read is `PlanResult.to_data`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from offload_runtime.models.frontier_result import FrontierPlan, FrontierResult
from offload_runtime.models.plan_result import (
    OTHERS,
    Holding,
    HostForecast,
    PlanResult,
    ResidentBytes,
    WindowForecast,
    largest_holdings,
)
from offload_runtime.reporting.layer_runs import layer_run_table
from offload_runtime.reporting.tables import Column, render_table
from offload_runtime.units import format_size_short

__all__ = ["render_frontier", "render_plan"]

NUM_STALL_ROWS = 5
_BASELINES = {
    "graph": "the baseline saves all that its graph can, and fuses nothing; torch.compile alone: --mode inductor",
    "inductor": "the baseline is torch.compile alone",
}


def render_plan(result: PlanResult) -> str:
    """Write the prediction: what can leave for free, memory and time beside the baseline, fates, copies, verdict."""
    parts = [
        render_window(result),
        _heading(result),
        _step_table(result) + _eager_line(result),
        _peak_table(result),
        _resident_line(result.resident_bytes),
        layer_run_table(run for run in result.layer_runs if run.fate != "skip"),
        _copy_lines(result),
        _stall_table(result),
        _verify_line(result),
        f"verdict: {result.verdict}",
    ]
    return "\n\n".join(part for part in parts if part)


def _verify_line(result: PlanResult) -> str:
    """Say where a plan is verified, and what of it cannot be compared there."""
    if not result.policy.fits:
        return ""
    line = f"to verify: offload apply on the device of {result.hardware}; on another leave --hardware out"
    if not result.baseline.fits:
        line += (
            "; the step does not fit there without the policy, so that no times are compared, and numbers at as many "
            "layers as fit"
        )
    return line


def render_window(result: PlanResult) -> str:
    """Say what can leave for free: the first number to look at."""
    window = result.window
    if not window.num_bytes:
        return f"can leave for free: 0 B: nothing is saved before the peak of {result.model} without a policy"
    return (
        f"can leave for free: {format_size_short(window.num_bytes)} = {window.d2h_bytes_per_ms / 1e6:g} GB/s x "
        f"{window.duration_ms:.1f} ms from the first saved byte to the peak{_contention(window)}"
    )


def _contention(window: WindowForecast) -> str:
    """Say what leaving costs where nothing waits for it."""
    if not window.contention_share:
        return "; what kernels beside a copy lose was not measured there, and counts as nothing"
    return (
        f"; nothing waits for it, and kernels beside a copy take {100 * window.contention_share:.3g} % longer"
    )


def render_frontier(result: FrontierResult) -> str:
    """Write the sweep: one row for each target of the planner, and for each budget of largest-first."""
    base = result.baseline
    heading = (
        f"frontier of {result.model}, mode {result.mode}, on {result.hardware}: "
        f"baseline {format_size_short(base.peak_device_bytes)}, {base.step_ms:.1f} ms"
    )
    floor = result.floor
    if floor is not None:
        held = ", ".join(f"{held.what} {format_size_short(held.num_bytes)}" for held in floor.holdings[:4])
        heading += f"\nfloor {format_size_short(floor.num_bytes)}: " + (held or "the optimizer's step")
    parts = [
        heading,
        _frontier_table(result, f"target of {result.planned_policy}", result.planned),
        _frontier_table(result, f"budget of {result.largest_first_policy}", result.largest_first),
    ]
    return "\n\n".join(part for part in parts if part)


def _frontier_table(result: FrontierResult, title: str, plans: Sequence[FrontierPlan]) -> str:
    titles = (title, "peak", "step time", "x baseline", "offloaded", "stalled", "gap")
    columns = [Column(name, "right") for name in titles]
    rows = [_frontier_row(result, plan) for plan in plans]
    if any(plan.reason for plan in plans):
        columns.append(Column("why not"))
        rows = [[*row, plan.reason] for row, plan in zip(rows, plans, strict=True)]
    return render_table(columns, rows) if plans else ""


def _frontier_row(result: FrontierResult, plan: FrontierPlan) -> list[str]:
    asked = format_size_short(plan.asked_bytes)
    if plan.forecast is None:
        return [asked, "", "", "", "", "", ""]
    relative = result.relative(plan.forecast)
    return [
        asked,
        format_size_short(plan.forecast.peak_device_bytes),
        f"{plan.forecast.step_ms:.1f} ms",
        "" if relative is None else f"{relative:.4f}",
        format_size_short(plan.offloaded_bytes),
        f"{plan.stall_ms:.1f} ms",
        _percent(plan.optimality_gap),
    ]


def _heading(result: PlanResult) -> str:
    graphs = "1 graph" if result.num_graphs == 1 else f"{result.num_graphs} graphs"
    return (
        f"{result.policy_name} on {result.model} ({result.num_parameters:,} parameters, {result.dtype}), "
        f"mode {result.mode}, {_optimizer(result)}, {graphs}, on {result.hardware}{_given_memory(result)}"
        f"{'' if result.view_replay else ', without view replay'}\n"
        f"{_BASELINES[result.mode]}\n"
        "nothing was run: peaks and times are predicted, limits and the device's memory are given\n"
        f"times are of forward and backward{_optimizer_time(result)}\n"
        f"{_prediction_error(result)}"
    )


def _prediction_error(result: PlanResult) -> str:
    """Say how far times that this profile predicted were off: in the mode in which runs were compared."""
    error = result.prediction_error
    if error is None:
        return f"predicted times were not compared with runs on {result.hardware}"
    ratio, percent = math.ceil(error.ratio * 1000) / 1000, math.ceil(error.step * 1000) / 10
    compared = (
        f"predicted ratios were within {ratio:g} of measured ones, and steps within {percent:g} %, "
        f"on {error.num_runs} runs"
    )
    return compared if result.mode == "inductor" else f"in mode inductor {compared}"


def _optimizer(result: PlanResult) -> str:
    if result.assumes_no_state and result.target_bytes is None:  # under a limit the verdict says it
        return f"{result.optimizer} (none was named: --optimizer adamw counts its state)"
    return result.optimizer + (" with float32 master weights" if result.resident_bytes.master_weights else "")


def _given_memory(result: PlanResult) -> str:
    return f" with {format_size_short(result.capacity_bytes)}, as given" if result.capacity_is_given else ""


def _optimizer_time(result: PlanResult) -> str:
    number = result.gradient_accumulation_steps
    batches = f" of one batch, {number} of which make a step" if number > 1 else ""
    if not result.optimizer_ms:
        return batches
    adding = " and adding gradients up add" if number > 1 else " adds"
    return f"{batches}, to which the step of {result.optimizer}{adding} {result.optimizer_ms:.1f} ms"


def _step_table(result: PlanResult) -> str:
    columns = [Column("per step"), *(Column(name, "right") for name in ("baseline", "policy", "change"))]
    before, after = result.baseline, result.policy
    rows = [
        [
            "peak device memory",
            format_size_short(before.peak_device_bytes),
            format_size_short(after.peak_device_bytes),
            _change(before.peak_device_bytes, after.peak_device_bytes),
        ],
        [
            "forward and backward",
            f"{before.step_ms:.1f} ms",
            f"{after.step_ms:.1f} ms",
            _change(before.step_ms, after.step_ms),
        ],
        [f"fits {format_size_short(result.capacity_bytes)}", _yes(before.fits), _yes(after.fits), ""],
    ]
    if result.target_bytes is not None:
        within = [_yes(side.peak_device_bytes <= result.target_bytes) for side in (before, after)]
        rows.append([f"within device_peak {format_size_short(result.target_bytes)}", *within, ""])
    return render_table(columns, rows)


def _eager_line(result: PlanResult) -> str:
    """Say what the same step takes that is not compiled, and how well that is known."""
    peak = result.eager_peak_bytes
    if peak is None:
        return ""
    fits = "fits" if peak <= result.capacity_bytes else "does not fit"
    return (
        f"\n  eager PyTorch, not compiled: a peak of {format_size_short(peak)}, which {fits}\n"
        "  (counted by operator, without fragments of the allocator; two eager runs of Llama-3-8B with LoRA were "
        "compared, on an H200: off by less than 0.1 %)"
    )


def _peak_table(result: PlanResult) -> str:
    """Say where each peak sits, and what is alive there."""
    before, after = result.baseline, result.policy
    if str(before.peak_at) == str(after.peak_at):
        said = f"both peaks sit in {after.peak_at}"
    else:
        said = f"the baseline's peak sits in {before.peak_at}\nthe policy's peak sits in {after.peak_at}"
    # Both columns have the rows of both: what is named in one is not among the others of the other.
    largest = [held.what for side in (before, after) for held in largest_holdings(side.holdings)]
    names = dict.fromkeys(name for name in largest if name != OTHERS)
    columns = [Column("alive there"), Column("baseline", "right"), Column("policy", "right")]
    always = format_size_short(result.resident_bytes.throughout)
    rows = [["what stays throughout", always, always]]
    sides = [largest_holdings(side.holdings, names) for side in (before, after)]
    rows += [[name, *(_held(side, name) for side in sides)] for name in names]
    others = [_held(side, OTHERS) for side in sides]
    rows += [[OTHERS, *others]] if any(others) else []
    return f"{said}\n{render_table(columns, rows)}"


def _held(holdings: Sequence[Holding], what: str) -> str:
    held = next((holding for holding in holdings if holding.what == what), None)
    if held is None:
        return ""
    number = f"{held.num_tensors} x, " if held.num_tensors > 1 else ""
    return f"{number}{format_size_short(held.num_bytes)}"


def _resident_line(resident: ResidentBytes) -> str:
    kinds = {
        "parameters": resident.parameters,
        "buffers": resident.buffers,
        **resident.optimizer_parts,
        "batch": resident.batch,
        "workspace": resident.workspace,
        "accumulated gradients": resident.accumulated_gradients,
    }
    held = ", ".join(f"{name} {format_size_short(size)}" for name, size in kinds.items() if size)
    gradients = format_size_short(resident.gradients)
    of_batch = "those of one batch" if resident.accumulated_gradients else "gradients"
    return f"stays throughout: {held}; {of_batch} take {gradients} by the end of backward"


def _copy_lines(result: PlanResult) -> str:
    hidden = "" if result.hidden_fraction is None else f"{100 * result.hidden_fraction:.1f} %"
    gap = "" if result.optimality_gap is None else f"{_percent(result.optimality_gap)} above its bound"
    if gap and result.bound_ms is not None and result.bound_ms <= result.policy.step_ms:
        gap += f" of {result.bound_ms:.1f} ms"
    leaving = f"{result.num_offloaded} of {result.num_candidates} candidates"
    rows = [
        ["offloaded", f"{leaving}, {format_size_short(result.offloaded_bytes)} each way"],
        ["host memory", _host(result.host)],
        ["transfer hidden", hidden],
        ["stalled", f"{result.stall_ms:.2f} ms"],
        ["optimality", gap],
    ]
    return "\n".join(f"  {name:<16} {value or '-'}" for name, value in rows)


def _host(host: HostForecast) -> str:
    if not host.pinned_bytes:
        return ""
    rounding = f", {format_size_short(host.rounding_bytes)} of it rounding" if host.rounding_bytes else ""
    limit = "" if host.limit_bytes is None else f"; {format_size_short(host.limit_bytes)} may be"
    limit += (
        f", if all {host.num_ranks} ranks of such a host pin as much" if limit and host.num_ranks > 1 else ""
    )
    return f"{format_size_short(host.pinned_bytes)} pinned by one rank{rounding}{limit}"


def _stall_table(result: PlanResult) -> str:
    """List the tensors whose copies are waited for longest, each with what made it."""
    made_by = {verdict.activation.name: verdict.activation for verdict in result.verdicts}
    rows = []
    for name, stall_ms in result.stalls[:NUM_STALL_ROWS]:
        activation = made_by.get(name)
        origin = ["", ""] if activation is None else [activation.op, activation.module]
        rows.append([name, *origin, f"{stall_ms:.2f}"])
    if not rows:
        return ""
    columns = [Column("waits for"), Column("op"), Column("module"), Column("ms", "right")]
    table = render_table(columns, rows)
    left_out = len(result.stalls) - len(rows)
    return f"{table}\n  ... and {left_out} more" if left_out else table


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.1f} %" if before else ""
