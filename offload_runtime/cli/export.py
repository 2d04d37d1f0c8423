"""`offload export`: a policy as the settings of another training system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from offload_runtime.cli.given_facts import fact_option, given_facts
from offload_runtime.cli.options import format_option, set_option, setting_option
from offload_runtime.cli.outcome import EXIT_OK, Outcome
from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, RefusedError, UsageError
from offload_runtime.export.exporter import Export, export_policy, version_note
from offload_runtime.export.rendering import render_export
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target

FORMS = ("flags", "overrides", "yaml", "json", "python")


@click.command(short_help="Write POLICY as the settings of another training system.")
@click.argument("policy")
@click.option(
    "--to", "target", required=True, type=click.Choice(EXPORT_TARGETS), help="System that is to read it."
)
@click.option(
    "--as", "form", type=click.Choice(FORMS), help="Form of the text; by default the usual one of the system."
)
@fact_option
@setting_option
@set_option
@format_option()
def command(
    policy: str,
    target: str,
    form: Any,
    facts: tuple[str, ...],
    settings: tuple[str, ...],
    overrides: tuple[str, ...],
) -> Outcome:
    """Write POLICY as flags, overrides, JSON or Python of another system; stdout is what that system reads.

    Each clause that it cannot honour, and each of its constraints that the facts given do not meet, is refused
    by name, all at once; then nothing is written (exit code 4). Conditions that hang on a fact that was not given
    are noted first, as not verified; then what is honoured approximately. Loads no torch.

    \b
    Example:
      offload export balanced --to torchtitan > offload_policy.py
      offload export policy.yaml --to megatron-bridge --fact pipeline_parallel=1 --fact num_layers=32
      offload export policy.yaml --to deepspeed --setting zero_optimization.offload_optimizer.pin_memory=false
    """
    formats = load_target(target).formats
    if form is not None and form not in formats:
        message = f"{target} is not written as {form}"
        raise UsageError(Diagnostic("CLI615", "error", message, hint=f"--as {' or '.join(formats)}"))
    compiled = load_policy(policy, overrides=overrides)
    export = export_policy(compiled, target, facts=given_facts(facts), settings=settings)
    text = render_export(export, form) if export.ok else ""
    return Outcome(
        data=_data(export, form or formats[0], text),
        text=text,
        diagnostics=(
            *export.refusals,
            *_unverified(export),
            *_known(compiled, export),
            version_note(export.target),
        ),
        exit_code=EXIT_OK if export.ok else RefusedError.exit_code,
        next=() if export.ok else (f"offload codes {export.refusals[0].code}",),
    )


def _unverified(export: Export) -> tuple[Diagnostic, ...]:
    """Return the conditions of the target that nobody knows to hold; they come before anything else that is noted."""
    return tuple(note for note in export.notes if note.code == "EXP911")


def _known(compiled: CompiledPolicy, export: Export) -> tuple[Diagnostic, ...]:
    return (*compiled.warnings, *(note for note in export.notes if note.code != "EXP911"))


def _data(export: Export, form: str, text: str) -> Mapping[str, Any]:
    target = export.target
    return {
        "policy": export.policy.name,
        "target": {"name": target.name, "version": target.version, "checked": target.checked},
        "settings": {setting.key: setting.value for setting in export.settings},
        "form": form,
        "text": text if export.ok else None,
        "num_refused": len(export.refusals),
    }
