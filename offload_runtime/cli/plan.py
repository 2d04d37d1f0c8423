"""`offload plan`: what a policy would do for a model on hardware that need not be here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.options import (
    PLANNED_FOR,
    ShapeOptions,
    accumulation_option,
    format_option,
    hardware_option,
    mode_option,
    repeated_arguments,
    set_option,
    shape_options,
)
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, RefusedError, UsageError
from offload_runtime.hardware import load_hardware
from offload_runtime.units import parse_size, size_hint

if TYPE_CHECKING:
    from offload_runtime.models.capture_check import CaptureCheck
    from offload_runtime.models.frontier_result import FrontierResult
    from offload_runtime.models.plan_baseline import Baseline
    from offload_runtime.models.plan_result import PlanResult
    from offload_runtime.models.planning import Progress

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Predict what POLICY does on a hardware profile.")
@click.argument("policy")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@shape_options
@accumulation_option
@mode_option
@hardware_option(PLANNED_FOR)
@click.option(
    "--master-weights",
    is_flag=True,
    help="Count float32 master weights of 16-bit parameters, and float32 moments, as mixed precision keeps them: the "
    "fact `master_weights`.",
)
@click.option(
    "--why", is_flag=True, help="Print the arithmetic: tiers, state, the window, what should leave first."
)
@click.option(
    "--frontier",
    is_flag=True,
    help="Sweep device memory: the TARGETs, or eight steps from the baseline's peak to the floor, and "
    "largest-first budgets beside them.",
)
@click.option(
    "--check-capture",
    is_flag=True,
    help="Capture the whole step as one graph, too, and print where its tensors differ from those planned for.",
)
@click.option(
    "--view-replay/--no-view-replay",
    default=True,
    help="Without it nothing leaves that backward reads through views: what an offloader can do that does not "
    "make them again. A run always does.",
)
@click.option(
    "--output", type=_FILE, metavar="FILE", help="Write the sweep of --frontier as JSON, after each plan."
)
@click.option(
    "--plot",
    type=_FILE,
    metavar="PREFIX.png|svg",
    help="Write four pictures: PREFIX-frontier, -memory, -timeline and -fates.",
)
@click.option(
    "--trace-out",
    type=_FILE,
    metavar="FILE",
    help="Write the predicted step as a trace for Perfetto or chrome://tracing.",
)
@set_option
@format_option()
def command(
    policy: str,
    targets: tuple[str, ...],
    gradient_accumulation_steps: int,
    mode: str,
    hardware: str | None,
    device_memory: int | None,
    master_weights: bool,
    why: bool,
    frontier: bool,
    check_capture: bool,
    view_replay: bool,
    output: Path | None,
    plot: Path | None,
    trace_out: Path | None,
    overrides: tuple[str, ...],
    **model: Unpack[ShapeOptions],
) -> Outcome:
    """Predict peak memory, step time and transfers of a model under POLICY.

    POLICY is a path or the name of a shipped policy (`offload list policies`). The model is traced with fake tensors:
    no GPU, no weights and no network are needed, whatever its size. Times are of forward and backward; memory counts
    parameters, gradients and the optimizer's state. A TARGET, as of limits.device_peak, is a size such as 40GiB.

    \b
    Example:
      offload plan balanced --model builtin:llama3-8b --hardware h200-pcie5
      offload plan fit --model builtin:llama3-8b --hardware h200-pcie5 --mode inductor \\
        --set limits.device_peak=43GiB --why
      offload plan fit 40GiB 36GiB --frontier --plot f.png --model builtin:llama3-8b --hardware h200-pcie5
    """
    compiled = load_policy(policy, overrides=overrides)
    sizes = _sizes(targets, frontier=frontier)
    _check_files(output, plot, trace_out, frontier=frontier)
    profile = load_hardware(hardware) if hardware is not None else None
    # From here on torch is needed; a policy with a mistake in it has been refused without.
    from offload_runtime.models.hardware_here import profile_here
    from offload_runtime.models.planning import baseline_of
    from offload_runtime.models.resolve import ModelRequest

    profile = profile or profile_here()
    if device_memory is not None:
        profile = profile.with_device_memory(device_memory)
    with foreign_code(), shown_progress() as advance:
        baseline = baseline_of(
            ModelRequest(**model, gradient_accumulation_steps=gradient_accumulation_steps),
            compiled,
            mode=mode,
            hardware=profile,
            view_replay=view_replay,
            master_weights=master_weights,
            with_eager=True,
            progress=advance,
        )
        swept = _sweep(baseline, compiled, sizes, advance, output) if frontier else None
        try:
            result = swept.current if swept is not None else _plan(baseline, compiled, advance)
        except RefusedError as refusal:
            if not why:
                raise
            return _refused(refusal, baseline, compiled)
        check = _check(baseline, advance) if check_capture else None
    written = _write(result, swept, output, plot, trace_out)
    diagnostics = (*(swept.diagnostics if swept else ()), *(result.diagnostics if result else ()))
    again = repeated_arguments(model, mode, hardware, overrides, gradient_accumulation_steps, device_memory)
    return Outcome(
        data={**_data(result, swept, check, why), "files": [str(path) for path in written]},
        text="\n\n".join(_texts(result, swept, check, why, written)),
        diagnostics=diagnostics,
        exit_code=EXIT_FINDINGS if any(found.is_error for found in diagnostics) else EXIT_OK,
        # A run of apply keeps no master weights: it would show another peak.
        next=() if master_weights else _following(result, policy, again),
    )


def _following(result: PlanResult | None, policy: str, again: list[str]) -> tuple[str, ...]:
    """Return the run that verifies the plan; where the plan does not help, what plans one that may."""
    helps = result is None or (
        result.policy.fits and all(found.code != "PLN402" for found in result.diagnostics)
    )
    if not helps and policy == "fit":
        return ()
    command = ["apply", policy] if helps else ["plan", "fit"]
    return (shlex.join(["offload", *command, *again]),)


def _refused(refusal: RefusedError, baseline: Baseline, policy: CompiledPolicy) -> Outcome:
    """Return a refusal with the arithmetic that was asked for: that is where it says what could leave instead."""
    from offload_runtime.models.plan_arithmetic import arithmetic_of
    from offload_runtime.reporting.why import arithmetic_data, render_arithmetic

    arithmetic = arithmetic_of(baseline, policy, refusal=refusal)
    if arithmetic is None:
        raise refusal
    return Outcome(
        data={"why": arithmetic_data(arithmetic)},
        text=render_arithmetic(arithmetic),
        diagnostics=refusal.diagnostics,
        exit_code=refusal.exit_code,
    )


def _plan(baseline: Baseline, policy: CompiledPolicy, advance: Progress) -> PlanResult:
    from offload_runtime.models.planning import plan_policy

    advance("plan", 0, 1)
    result = plan_policy(baseline, policy)
    advance("plan", 1, 1)
    return result


def _sweep(
    baseline: Baseline, policy: CompiledPolicy, targets: Sequence[int], advance: Progress, output: Path | None
) -> FrontierResult:
    """Sweep, and keep in ``output`` what there is after each plan."""
    from offload_runtime.models.frontier import sweep_frontier

    def keep(swept: FrontierResult) -> None:
        if output is not None:
            _write_json(output, swept.to_data())

    return sweep_frontier(baseline, policy, targets, progress=advance, keep=keep)


def _check(baseline: Baseline, advance: Progress) -> CaptureCheck:
    from offload_runtime.models.capture_comparison import check_captures

    advance("capture", 0, 1)
    found = check_captures(baseline.traced)
    advance("capture", 1, 1)
    return found


def _sizes(targets: Sequence[str], *, frontier: bool) -> tuple[int, ...]:
    if targets and not frontier:
        message = f"{' '.join(targets)} after POLICY: targets belong to --frontier"
        hint = f"add --frontier, or give one as --set limits.device_peak={targets[0]}"
        raise UsageError(Diagnostic("PLN422", "error", message, hint=hint))
    findings = []
    sizes = []
    for target in targets:
        try:
            sizes.append(parse_size(target))
        except ValueError:
            message = f"target {target!r} is no size"
            findings.append(Diagnostic("PLN423", "error", message, hint=size_hint(target)))
    if findings:
        raise UsageError(*findings)
    return tuple(sizes)


def _check_files(output: Path | None, plot: Path | None, trace_out: Path | None, *, frontier: bool) -> None:
    """Find now what would otherwise be found after a minute of planning."""
    if output is not None and not frontier:
        hint = "add --frontier; a single plan is written by --format json"
        raise UsageError(Diagnostic("PLN422", "error", "--output is the file of --frontier", hint=hint))
    if plot is not None:
        from offload_runtime.reporting.plots import picture_format

        picture_format(plot)
    for path in (output, plot, trace_out):
        if path is not None and not os.path.isdir(path.parent):
            raise _unwritable(path, f"there is no folder {path.parent}")


def _write(
    result: PlanResult | None,
    swept: FrontierResult | None,
    output: Path | None,
    plot: Path | None,
    trace_out: Path | None,
) -> list[Path]:
    written = []
    if output is not None and swept is not None:
        written.append(_write_json(output, swept.to_data()))
    if trace_out is not None and result is not None:
        from offload_runtime.reporting.step_events import step_events

        written.append(_write_json(trace_out, step_events(result)))
    if plot is not None:
        from offload_runtime.reporting.plan_pictures import write_pictures

        written += write_pictures(result, swept, plot)
    return written


def _write_json(path: Path, data: Mapping[str, Any]) -> Path:
    text = json.dumps(data, indent=1) + "\n"
    target = Path(os.path.realpath(path))  # a link stays a link
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe, or a device such as /dev/null
        else:
            # A reader sees the old file or the new one, and never half of it.
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, target)
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that is too long cannot be looked up either
            beside.unlink()
        raise _unwritable(path, error.strerror or str(error)) from error
    return path


def _unwritable(path: Path, reason: str) -> UsageError:
    hint = "name a file in a folder that exists and may be written to"
    return UsageError(Diagnostic("PLN424", "error", f"{path} cannot be written: {reason}", hint=hint))


def _data(
    result: PlanResult | None, swept: FrontierResult | None, check: CaptureCheck | None, why: bool
) -> dict[str, Any]:
    data = {} if result is None else result.to_data()
    if check is not None:
        data["capture_check"] = check.to_data()
    if swept is not None:
        data["frontier"] = swept.to_data()
    if why and result is not None and result.arithmetic is not None:
        from offload_runtime.reporting.why import arithmetic_data

        data["why"] = arithmetic_data(result.arithmetic)
    return data


def _texts(
    result: PlanResult | None,
    swept: FrontierResult | None,
    check: CaptureCheck | None,
    why: bool,
    written: Sequence[Path],
) -> list[str]:
    from offload_runtime.reporting.capture_check import render_capture_check
    from offload_runtime.reporting.plan import render_frontier, render_plan

    texts = [] if result is None else [render_plan(result)]
    if swept is not None:
        texts.append(render_frontier(swept))
    if why and result is not None and result.arithmetic is not None:
        from offload_runtime.reporting.why import render_arithmetic

        texts.append(render_arithmetic(result.arithmetic))
    if check is not None:
        texts.append(render_capture_check(check))
    if written:
        texts.append("\n".join(f"written: {path}" for path in written))
    return texts
