"""`offload bench`: policies and peers take turns on one model, and are compared in pairs."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

import click

from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.options import (
    ModelOptions,
    format_option,
    hardware_option,
    mode_option,
    model_arguments,
    model_options,
    model_request,
    set_option,
)
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.hardware import load_hardware
from offload_runtime.models.bench_file import result_data
from offload_runtime.models.bench_sides import plan_sides
from offload_runtime.models.peers import PEERS
from offload_runtime.reporting.bench import draw_bench, render_bench
from offload_runtime.units import format_size

_COUNT = click.IntRange(min=1)
_WIDTH = max(len(peer.syntax) for peer in PEERS.values())
_PEER_LIST = "\b\nPeers:\n" + "\n".join(
    f"  {peer.syntax:<{_WIDTH}}  {peer.summary}" for peer in PEERS.values()
)


class Length(TypedDict):
    """How much is measured."""

    rounds: int
    steps: int
    warmup: int
    time_limit_s: float


@click.command(short_help="Measure policies and peers side by side.", epilog=_PEER_LIST)
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@model_options
@mode_option
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME[:ARG]",
    help="Another way to run the step, listed below. Repeatable.",
)
@click.option(
    "--baseline",
    metavar="NAME",
    help="Side, peer or policy that the others are compared with; by default compile in mode inductor, "
    "sac-default in mode graph.",
)
@hardware_option(
    "Profile that policies plan for (see `offload list hardware`); by default that of the device.", caps=True
)
@click.option(
    "--rounds", type=_COUNT, default=5, show_default=True, metavar="N", help="Turns that each side takes."
)
@click.option(
    "--steps", type=_COUNT, default=3, show_default=True, metavar="N", help="Timed steps in a turn."
)
@click.option(
    "--warmup",
    type=_COUNT,
    default=2,
    show_default=True,
    metavar="N",
    help="Steps of each side after its first, before the first round.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Result file, written after each round; it replaces what is there.",
)
@click.option("--resume", is_flag=True, help="Add the rounds that the result file lacks.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="No compilation and no round begins that would end later than this after the command began. Where compiling "
    "leaves time for no round (BEN921), run it again: torch keeps compiled code.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Picture of memory against time, .png or .svg.",
)
@set_option
@format_option()
def command(
    policies: tuple[str, ...],
    mode: str,
    peers: tuple[str, ...],
    baseline: str | None,
    hardware: str | None,
    device_memory: int | None,
    output: Path | None,
    resume: bool,
    plot: Path | None,
    overrides: tuple[str, ...],
    rounds: int,
    steps: int,
    warmup: int,
    time_limit_s: float,
    **model: Unpack[ModelOptions],
) -> Outcome:
    """Measure policies and peers side by side on one model.

    All sides share one model in one process. Each is compiled and warmed, then they take turns in alternating
    order, the baseline twice in each round: what it differs from itself by is noise. A step is forward and
    backward, and the optimizer's where --optimizer is given. --set changes each POLICY, and no peer. Without
    an accelerator nothing is timed, and peaks are simulated.

    \b
    Example:
      offload bench balanced --model builtin:llama-tiny --peer eager-checkpoint --rounds 2
      offload bench --peer activation-budget:0.6 --mode inductor --model builtin:llama3-8b --output result.json
    """
    started_s = time.monotonic()
    _check_files(output, resume, plot)
    sides = plan_sides(policies, peers, mode=mode, baseline=baseline, overrides=overrides)
    profile = load_hardware(hardware) if hardware is not None else None
    # From here on torch is needed; sides with a mistake in them have been refused without.
    from offload_runtime.models.bench import BenchPlan, run_bench
    from offload_runtime.models.devices import capped_memory
    from offload_runtime.models.hardware_here import profile_of_memory

    request = model_request(model)
    profile = profile_of_memory(profile, request.device, device_memory)
    memory = None if device_memory is None else format_size(device_memory)
    length = Length(rounds=rounds, steps=steps, warmup=warmup, time_limit_s=time_limit_s)
    named = {"--baseline": baseline, "--hardware": hardware, "--device-memory": memory}
    typed = _command(policies, model, mode, peers, named, overrides, length)
    again = (shlex.join([*typed, "--output", str(output), "--resume"]),) if output is not None else ()
    plan = BenchPlan(
        sides=sides,
        mode=mode,
        started_s=started_s,
        command=shlex.join(map(_placeless, typed)),
        hardware=profile,
        output=output,
        resume=resume,
        device_memory_bytes=device_memory,
        **length,
    )
    say_untimed(model["device"])
    with capped_memory(request.device, device_memory), foreign_code(), shown_progress() as advance:
        run = run_bench(request, plan, progress=advance)
    diagnostics = (
        *run.diagnostics,
        *(_drawn(plot, draw_bench(run.result, plot)) if plot is not None else ()),
    )
    return Outcome(
        data=result_data(run.result),
        text=render_bench(run.result),
        diagnostics=diagnostics,
        exit_code=EXIT_FINDINGS if any(found.is_error for found in diagnostics) else EXIT_OK,
        next=() if run.result.complete else again,
    )


def say_untimed(device: str) -> None:
    """Tell a person who watches, before minutes of it, that nothing will be timed; the result says it to all."""
    from offload_runtime.models.devices import choose_device

    if sys.stderr.isatty() and choose_device(device) == "cpu":
        click.echo("no accelerator here: nothing will be timed, and peaks are simulated", err=True)


def _check_files(output: Path | None, resume: bool, plot: Path | None) -> None:
    """Find now what would otherwise be found after minutes of measuring."""
    if resume and output is None:
        hint = "name the result file with --output"
        raise UsageError(Diagnostic("BEN905", "error", "--resume has no file to go on from", hint=hint))
    if plot is not None:
        from offload_runtime.reporting.plots import picture_format

        picture_format(plot)


def _drawn(plot: Path, drawn: bool) -> tuple[Diagnostic, ...]:
    if drawn:
        return ()
    message = f"{plot} was not drawn: nothing was timed"
    hint = "run it on an accelerator, or leave out --plot"
    return (Diagnostic("BEN927", "warning", message, hint=hint),)


def _command(
    policies: tuple[str, ...],
    model: ModelOptions,
    mode: str,
    peers: tuple[str, ...],
    named: Mapping[str, str | None],
    overrides: tuple[str, ...],
    length: Length,
) -> list[str]:
    """Return the words of the command that measures the same again."""
    words = ["offload", "bench", *policies]
    words += [*model_arguments(model), "--mode", mode]
    words += [word for peer in peers for word in ("--peer", peer)]
    words += [word for key, value in named.items() if value is not None for word in (key, value)]
    words += [word for override in overrides for word in ("--set", override)]
    words += [f"--rounds={length['rounds']}", f"--steps={length['steps']}", f"--warmup={length['warmup']}"]
    return [*words, f"--time-limit={length['time_limit_s']:g}"]


def _placeless(word: str) -> str:
    """Leave out the folders of this machine: a result file is read elsewhere."""
    return os.path.basename(word) if os.path.isabs(word) else word
