"""`offload compare`: two results of `offload bench`, and whether they differ by more than noise."""

from __future__ import annotations

from pathlib import Path

import click

from offload_runtime.cli.options import format_option
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, Outcome
from offload_runtime.errors import Diagnostic
from offload_runtime.models.bench_comparison import Comparison, SideChange, compare_results
from offload_runtime.models.bench_file import read_result
from offload_runtime.reporting.bench_comparison import render_comparison


@click.command(short_help="Compare two results of `offload bench`.")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--fail-on-regression", is_flag=True, help="Exit with 1 where B is worse than A by more than noise."
)
@format_option()
def command(a: Path, b: Path, fail_on_regression: bool) -> Outcome:
    """Compare the result files A and B, side by side.

    Times are compared as multiples of each result's own baseline, and a change counts where it exceeds the
    noise: what the two baselines differed from themselves by.

    \b
    Example:
      offload compare before.json after.json --fail-on-regression
    """
    comparison = compare_results(read_result(a), read_result(b), (str(a), str(b)))
    regressions = _regressions(comparison) if fail_on_regression else ()
    return Outcome(
        data=comparison.to_data(),
        text=render_comparison(comparison),
        diagnostics=(*comparison.diagnostics, *regressions),
        exit_code=EXIT_FINDINGS if regressions else EXIT_OK,
    )


def _regressions(comparison: Comparison) -> tuple[Diagnostic, ...]:
    hint = "see what changed between the two; more --rounds make the noise better known"
    return tuple(
        Diagnostic("BEN941", "error", f"side {side.name} is worse: {_said(side)}", hint=hint)
        for side in comparison.regressions
    )


def _said(side: SideChange) -> str:
    if side.reason is not None:
        return side.reason
    changes = (("step time", side.time, side.ratio_change), ("peak", side.memory, side.peak_change))
    return ", ".join(f"{what} {change:.4f}x" for what, word, change in changes if word == "worse" and change)
