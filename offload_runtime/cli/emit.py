"""Write an outcome to stdout and stderr in the format that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO

import click

from offload_runtime.cli.outcome import Outcome, to_json
from offload_runtime.diagnostics import render_diagnostic
from offload_runtime.errors import Diagnostic

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def emit(command: str, outcome: Outcome, output_format: str, sources: Mapping[str, str]) -> None:
    """Print the outcome; a format that no command has falls back to text (click has refused it).

    `sources` holds the text behind diagnostics that point at no file, such as `--set`.
    """
    if output_format == "json":
        click.echo(to_json(command, outcome))
    elif output_format == "sarif":
        from offload_runtime.reporting import sarif

        click.echo(sarif.render(outcome.diagnostics))
    elif output_format == "github":
        from offload_runtime.reporting import github

        _echo(github.render(outcome.diagnostics), sys.stdout)
    else:
        _emit_text(outcome, sources)


def use_color(stream: IO[str]) -> bool:
    """Tell whether colour is wanted: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _emit_text(outcome: Outcome, sources: Mapping[str, str]) -> None:
    stream = sys.stdout if outcome.diagnostics_are_output else sys.stderr
    if not outcome.diagnostics_are_output:
        _echo(outcome.text, sys.stdout)
        sys.stdout.flush()
    for diagnostic in outcome.diagnostics:
        _echo(_colored(diagnostic, stream, sources), stream)
    if outcome.diagnostics_are_output:
        _echo(outcome.text, sys.stdout)
        sys.stdout.flush()
    for command in outcome.next:
        _echo(f"next: {command}", sys.stderr)


def _echo(text: str, stream: IO[str]) -> None:
    if text:
        click.echo(text, file=stream, color=use_color(stream))


def _colored(diagnostic: Diagnostic, stream: IO[str], sources: Mapping[str, str]) -> str:
    text = render_diagnostic(diagnostic, sources)
    if not use_color(stream):
        return text
    styled = click.style(diagnostic.code, fg=_COLORS[diagnostic.severity], bold=True)
    return text.replace(diagnostic.code, styled, 1)
