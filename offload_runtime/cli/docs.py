"""`offload docs build`: the reference pages, written from the program itself."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offload_runtime import __version__
from offload_runtime.cli.foreign import foreign_code
from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.cli.progress import shown_progress
from offload_runtime.errors import Diagnostic

if TYPE_CHECKING:
    from offload_runtime.cli.progress import Advance
    from offload_runtime.docgen.drift import Drift
    from offload_runtime.docgen.predictions import PredictedRun
    from offload_runtime.docgen.sources import Sources
    from offload_runtime.models.plan_result import PlanResult

_CODES = {"stale": "DOC101", "missing": "DOC102", "not generated": "DOC103"}
_HINTS = {
    "stale": "run `offload docs build`",
    "missing": "run `offload docs build`",
    "not generated": "run `offload docs build`, which removes it, or move it out of docs/reference",
}


@click.group(
    short_help="In a checkout of the repository: build its reference pages, or check them.",
    no_args_is_help=False,
)
def command() -> None:
    """Build the reference pages of this repository, or check that they are up to date.

    \b
    Example:
      offload docs build --check
    """


@command.command()
@click.option(
    "--check", is_flag=True, help="Change nothing; name each page that is stale, missing or not generated."
)
@click.option(
    "--refresh",
    is_flag=True,
    help="Simulate the shipped policies and the quoted plans again first, and draw the pictures; takes minutes.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Checkout whose docs are built; by default the one that this package lies in.",
)
@format_option()
@click.pass_context
def build(context: click.Context, check: bool, refresh: bool, root: Path | None) -> Outcome:
    """Write docs/reference and llms.txt from schemas, codes, commands, policies, cards, facts and results.

    Links inside the repository are checked as well, those of pages written by hand included. What the shipped
    policies do to a built-in model, and the plans that skills quote, come from result files, which --refresh
    makes. Loads no torch without it.

    \b
    Example:
      offload docs build
      offload docs build --check
    """
    from offload_runtime.docgen.drift import find_drift, write_pages
    from offload_runtime.docgen.effects import stale_effects
    from offload_runtime.docgen.link_check import broken_links, linked_pages
    from offload_runtime.docgen.pages import render_pages
    from offload_runtime.docgen.predictions import stale_predictions
    from offload_runtime.docgen.result_pictures import draw_pictures, picture_drifts, result_pictures
    from offload_runtime.docgen.sources import checkout, gather

    if check and refresh:
        raise click.UsageError("--check changes nothing, so that it cannot --refresh", context)
    program = context.find_root().command
    assert isinstance(program, click.Group), "the program is a group of commands"
    folder = checkout(root)
    sources = gather(folder, program)
    if refresh:
        _refresh(sources)
        sources = gather(folder, program)
    pages = render_pages(sources)
    drawn = result_pictures(sources.evidence)
    pictures = (*(sources.effects or {}).get("pictures", ()), *drawn)
    redrawn = picture_drifts(folder, drawn)
    if not check:
        draw_pictures(folder, {drift.page: drawn[drift.page] for drift in redrawn})
    drifts = (*(find_drift if check else write_pages)(folder, pages, pictures), *redrawn)
    everything = linked_pages(folder, pages)
    links = broken_links(folder, everything, sorted(everything))
    findings = [*(_drifted(drift) for drift in drifts if check)]
    outdated = (*stale_effects(sources), *stale_predictions(sources))
    findings += [_outdated(sentence) for sentence in outdated]
    findings += [
        Diagnostic("DOC104", "error", f"{link.target} leads nowhere: {link.reason}", link.page, link.line)
        for link in links
    ]
    return Outcome(
        data={
            "checked": check,
            "num_pages": len(pages),
            "pages": [{"page": drift.page, "state": drift.state, "diff": drift.diff} for drift in drifts],
        },
        text=_text(len(pages), drifts, check),
        diagnostics=tuple(findings),
        exit_code=EXIT_FINDINGS if findings else EXIT_OK,
        next=_next(bool(outdated), check and bool(drifts)),
    )


def _drifted(drift: Drift) -> Diagnostic:
    message = f"{drift.page} is {drift.state}"
    return Diagnostic(_CODES[drift.state], "error", message, hint=_HINTS[drift.state])


def _outdated(sentence: str) -> Diagnostic:
    return Diagnostic("DOC105", "error", sentence, hint="run `offload docs build --refresh`")


def _next(outdated: bool, drifted: bool) -> tuple[str, ...]:
    if outdated:
        return ("offload docs build --refresh",)
    return ("offload docs build",) if drifted else ()


def _text(num_pages: int, drifts: Sequence[Drift], check: bool) -> str:
    if not drifts:
        return f"{num_pages} pages, all up to date"
    verb = {"stale": "rewritten", "missing": "written", "not generated": "removed"}
    lines = []
    for drift in drifts:
        lines.append(f"{drift.page}: {drift.state if check else verb[drift.state]}")
        if check and drift.diff:
            lines += [f"  {line}" for line in drift.diff.splitlines()]
    return "\n".join(lines)


def _refresh(sources: Sources) -> None:
    """Simulate policies and quoted plans, and write the result files with their pictures. Imports torch."""
    environment = {"torch": version("torch"), "python": platform.python_version(), "package": __version__}
    with foreign_code(), shown_progress() as advance:
        _refresh_effects(sources, environment, advance)
        _refresh_predictions(sources, environment, advance)


def _refresh_effects(sources: Sources, environment: Mapping[str, str], advance: Advance) -> None:
    from offload_runtime.compiler import load_policy
    from offload_runtime.docgen.effects import HARDWARE, MODE, effect_runs, write_effects
    from offload_runtime.hardware import load_hardware
    from offload_runtime.models.planning import baseline_of, plan_policy
    from offload_runtime.models.resolve import ModelRequest

    profile = load_hardware(HARDWARE)
    results = []
    traced_model, baseline = "", None
    for run in effect_runs(sources.policies):
        policy = load_policy(run.policy, overrides=run.overrides)
        if baseline is None or run.arguments != traced_model:
            request = ModelRequest(spec=run.model, batch=run.batch)
            baseline = baseline_of(request, policy, mode=MODE, hardware=profile, progress=advance)
            traced_model = run.arguments
        results.append((run, sources.policies[run.policy], plan_policy(baseline, policy)))
    write_effects(sources.root, results, profile, environment)


def _refresh_predictions(sources: Sources, environment: Mapping[str, str], advance: Advance) -> None:
    from offload_runtime.docgen.predictions import PREDICTED, write_predictions
    from offload_runtime.errors import RefusedError
    from offload_runtime.hardware import load_hardware
    from offload_runtime.models.planning import baseline_of, plan_policy
    from offload_runtime.models.resolve import ModelRequest

    profiles = {run.hardware: load_hardware(run.hardware) for run in PREDICTED}
    results: list[tuple[PredictedRun, PlanResult | Diagnostic]] = []
    traced, baseline = None, None
    for run in PREDICTED:
        policy = run.policy()
        if baseline is None or run.baseline_key != traced:
            request = ModelRequest(run.model, batch=run.batch, layers=run.layers, optimizer=run.optimizer)
            hardware = profiles[run.hardware]
            baseline = baseline_of(request, policy, mode="inductor", hardware=hardware, progress=advance)
            traced = run.baseline_key
        try:
            results.append((run, plan_policy(baseline, policy)))
        except RefusedError as error:
            results.append((run, error.diagnostics[0]))
    write_predictions(sources.root, results, profiles, environment)
