"""`offload validate`: check policies, policy tests and skill cards."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

import click

from offload_runtime.card import CARD_FILE
from offload_runtime.cli.given_facts import fact_option, given_facts
from offload_runtime.cli.options import format_option, set_option, setting_option
from offload_runtime.cli.outcome import EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, Outcome
from offload_runtime.cli.paths import files_named
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.policy import Policy
from offload_runtime.policy_loading import read_policy
from offload_runtime.shipped import POLICY_FILE, TEST_FILE
from offload_runtime.targets import EXPORT_TARGETS, TARGETS
from offload_runtime.validate import FileVerdict, validate_file


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--for",
    "target",
    type=click.Choice(sorted([*TARGETS, *EXPORT_TARGETS])),
    help="Also name each clause that this front end, or other training system, cannot honour.",
)
@fact_option
@setting_option
@set_option
@format_option("sarif", "github")
def command(
    paths: tuple[str, ...],
    target: str | None,
    facts: tuple[str, ...],
    settings: tuple[str, ...],
    overrides: tuple[str, ...],
) -> Outcome:
    """Check policies, policy tests and skill cards: shape, meaning, limits. Loads no torch.

    PATH is a file, the name of a shipped policy, or a folder, which stands for each policy.yaml,
    cases.yaml and card.yaml in and below it.

    \b
    Example:
      offload validate balanced
      offload validate my-policies --for inductor --format github
      offload validate policy.yaml --for megatron-bridge --fact pipeline_parallel=2
      offload validate policy.yaml --for megatron-bridge --setting model.cpu_offloading_double_buffering=true
    """
    if settings and target not in EXPORT_TARGETS:
        hint = f"--for {' or '.join(EXPORT_TARGETS)}; a value of the policy is changed by --set"
        raise UsageError(
            Diagnostic("CLI616", "error", "--setting says something to another training system", hint=hint)
        )
    files = files_named(paths, (POLICY_FILE, TEST_FILE, CARD_FILE))
    known = given_facts(facts)
    verdicts = [
        validate_file(file, target=target, overrides=overrides, facts=known, settings=settings)
        for file in files
    ]
    return Outcome(
        data={"files": [{"file": v.file, "kind": v.kind, "ok": v.ok} for v in verdicts]},
        text="\n".join(_line(verdict) for verdict in verdicts),
        diagnostics=tuple(finding for verdict in verdicts for finding in verdict.diagnostics),
        exit_code=max(_exit_code(verdict) for verdict in verdicts),
        next=_next(verdicts, target, _Given(facts, settings, overrides)),
        diagnostics_are_output=True,
    )


def _exit_code(verdict: FileVerdict) -> int:
    if verdict.ok:
        return EXIT_OK
    # Where not even a kind was seen and only reading was complained of, there was no document to judge.
    unread = verdict.kind is None and all(finding.code.startswith("YAML") for finding in verdict.diagnostics)
    return EXIT_UNREADABLE if unread else EXIT_FINDINGS


def _line(verdict: FileVerdict) -> str:
    counts = Counter(finding.severity for finding in verdict.diagnostics)
    found = [
        f"{counts[s]} {s}{'s' if counts[s] > 1 else ''}" for s in ("error", "warning", "note") if counts[s]
    ]
    state = ["ok"] if verdict.ok else []
    kind = [verdict.kind] if verdict.kind else []
    return f"{verdict.file}: {', '.join([*kind, *state, *found])}"


@dataclass(frozen=True)
class _Given:
    """What was given beside the files, to be said again in the next command."""

    facts: tuple[str, ...]
    settings: tuple[str, ...]
    overrides: tuple[str, ...]

    def words(self, *options: str) -> list[str]:
        """Return the words of these ``options``."""
        values = {"--fact": self.facts, "--setting": self.settings, "--set": self.overrides}
        return [word for option in options for text in values[option] for word in (option, text)]


def _next(verdicts: list[FileVerdict], target: str | None, given: _Given) -> tuple[str, ...]:
    """Suggest to read up on the first error, or to go on with the first policy, by a command that takes it."""
    errors = [finding for verdict in verdicts for finding in verdict.diagnostics if finding.is_error]
    if errors:
        return (f"offload codes {errors[0].code}",)
    for verdict in verdicts:
        if verdict.kind == "Policy":
            return _after_policy(verdict.file, target, given)
    return ()


def _after_policy(file: str, target: str | None, given: _Given) -> tuple[str, ...]:
    policy = read_policy(file, given.overrides).policy
    has_activations = policy is not None and policy.activations is not None
    if target not in EXPORT_TARGETS and has_activations:
        assert policy is not None
        words = ["offload", "explain", file, "--model", "builtin:llama-tiny"]
        if policy.clause_by_time is not None:
            # A small model lies below the limits of a policy that plans by time.
            words = [
                "offload",
                "plan",
                file,
                "--model",
                "MODEL",
                "--hardware",
                "HARDWARE",
                "--mode",
                "inductor",
            ]
        return (shlex.join([*words, *given.words("--set")]),)
    systems: tuple[str, ...] = ()
    if target is not None and target in EXPORT_TARGETS:
        systems = (target,)
    elif policy is not None:
        systems = _systems_for(policy, given)
    again = given.words("--fact", "--setting", "--set")
    return tuple(shlex.join(["offload", "export", file, "--to", system, *again]) for system in systems)


def _systems_for(policy: Policy, given: _Given) -> tuple[str, ...]:
    """Return the systems that can honour a policy which this package's own front ends cannot."""
    # Only here: what is known of other systems is read from their files.
    from offload_runtime.export.exporter import export_policy

    known = given_facts(given.facts)
    return tuple(name for name in EXPORT_TARGETS if export_policy(policy, name, facts=known).ok)
