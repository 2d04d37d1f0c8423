"""From a policy, a target and what is known of the run to an export: settings, refusals, notes.

One way: clauses are judged by the target's rows, settings follow from what the policy says, and constraints are
checked between settings and facts. Every finding is gathered; an export with a refusal is not written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offload_runtime.errors import Diagnostic, sorted_diagnostics
from offload_runtime.export.clauses import Clause, given_clauses
from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.fact_settings import (
    check_against_facts,
    settings_of_facts,
)
from offload_runtime.export.given_settings import read_settings
from offload_runtime.export.policy_values import layer_shortfall, policy_values
from offload_runtime.export.run_facts import check_offloaded_state, check_run_facts, note_checked_facts
from offload_runtime.export.target import ExportedSetting, Target, Verdict
from offload_runtime.export.target_reading import load_target
from offload_runtime.export.target_rules import (
    check_constraints,
    check_ranges,
    comparable,
    emitted_settings,
    give_hint,
    holds,
    known_values,
    unknown_facts,
)
from offload_runtime.policy import Policy
from offload_runtime.predicates import Scalar, evaluate

if TYPE_CHECKING:
    from offload_runtime.compiler import CompiledPolicy

__all__ = ["Export", "check_export", "export_policy", "version_note"]


@dataclass(frozen=True)
class Export:
    """What a target is told, and what was found. ``policy`` is whole, bases merged in."""

    target: Target
    policy: Policy
    settings: tuple[ExportedSetting, ...]
    refusals: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Tell whether the target can honour every clause, here, as far as that is known."""
        return not self.refusals


def export_policy(
    policy: Policy | CompiledPolicy,
    target: str,
    *,
    facts: Mapping[str, Scalar] | None = None,
    settings: Sequence[str] = (),
) -> Export:
    """Return what ``target`` is told about ``policy``.

    ``facts`` are those of :data:`offload_runtime.facts.FACTS`, ``settings`` are ``KEY=VALUE`` of the target, which
    replace what the policy gives. Findings are returned, never raised; ValueError for an unknown target.
    """
    known = load_target(target)
    typed = policy if isinstance(policy, Policy) else policy.policy
    findings = ExportFindings(known, typed)
    if not isinstance(policy, Policy) and policy.function is not None:
        findings.refuse(
            None, "EXP906", "a Python callable cannot be written down", "write the policy as YAML"
        )
    facts = facts or {}
    values = comparable(known, {setting.key: setting.default for setting in known.settings})
    values |= policy_values(typed, facts) | dict(facts)
    _judge_clauses(typed, known, values, findings)
    _check_requires(typed, facts, findings)
    check_run_facts(facts, findings)
    of_policy = emitted_settings(known, values, findings)
    given = read_settings(settings, of_policy, facts, findings)
    emitted = {**settings_of_facts(known, facts), **of_policy, **given}
    emitted = {key: emitted[key] for key in (*of_policy, *given, *emitted)}
    values = known_values(known, emitted, values, facts)
    check_offloaded_state(typed, values, findings)
    _check_layers(typed, facts, findings)
    check_ranges(known, emitted, values, findings)
    named = check_constraints(known, emitted, values, findings)
    replaced = {key: setting for key, setting in of_policy.items() if key not in given}
    check_against_facts(replaced, facts, named, findings)
    # They are about what is written, which is nothing where something is refused.
    for when, text in known.notes if not findings.refusals else ():
        if holds(when, values):
            findings.note(None, "EXP910", text)
    _note_newer(known, emitted, findings)
    note_checked_facts(facts, emitted, findings)
    return Export(
        known,
        typed,
        tuple(emitted.values()),
        sorted_diagnostics(findings.refusals),
        _unverified_first(findings.notes),
    )


def _unverified_first(notes: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the notes by place, those first that leave open whether the target takes the export."""
    by_place = sorted_diagnostics(notes)
    return tuple(sorted(by_place, key=lambda note: note.code != "EXP911"))


def check_export(
    policy: Policy | CompiledPolicy,
    target: str,
    facts: Mapping[str, Scalar] | None = None,
    settings: Sequence[str] = (),
) -> tuple[Diagnostic, ...]:
    """Return every finding about handing ``policy`` to ``target``, refusals first."""
    export = export_policy(policy, target, facts=facts, settings=settings)
    return (*export.refusals, *export.notes, version_note(export.target))


def version_note(target: Target) -> Diagnostic:
    """Return the note that says which version of ``target`` its findings are about."""
    message = f"{target.name}: what is known is about {target.version}, compared with it on {target.checked}"
    return Diagnostic("EXP913", "note", message, hint=f"with another version, {target.trial}")


def _judge_clauses(
    policy: Policy, target: Target, values: Mapping[str, Scalar], findings: ExportFindings
) -> None:
    for clause in given_clauses(policy):
        verdict = _verdict(clause, target, values)
        if verdict.fate == "refused":
            message = f"{target.name} cannot honour {clause.name}: {verdict.reason}"
            findings.refuse(
                clause.span, "EXP901", message, verdict.cure or f"drop {clause.name}", clause.path
            )
        elif verdict.note is not None:
            findings.note(clause.span, "EXP910", f"{clause.name}: {verdict.note}", clause.path)


def _verdict(clause: Clause, target: Target, values: Mapping[str, Scalar]) -> Verdict:
    row = target.row(clause.path)
    of_clause = {**values, "value": clause.value}
    return next((verdict for when, verdict in row.cases if holds(when, of_clause)), row.otherwise)


def _check_requires(policy: Policy, facts: Mapping[str, Scalar], findings: ExportFindings) -> None:
    if policy.requires is None:
        return
    span, is_met = policy.span_of("requires"), evaluate(policy.requires, facts)
    if is_met is False:
        findings.refuse(
            span, "EXP904", "what the policy requires does not hold here", "correct --fact", "requires"
        )
    elif is_met is None:
        unknown = unknown_facts(policy.requires, facts)
        message = f"not verified: what the policy requires hangs on {', '.join(unknown)}"
        findings.note(span, "EXP911", message, "requires", give_hint(unknown))


def _check_layers(policy: Policy, facts: Mapping[str, Scalar], findings: ExportFindings) -> None:
    """Note where fewer layers are offloaded than the rule names."""
    num_layers = facts.get("num_layers")
    if findings.target.setting("model.cpu_offloading_num_layers") is None or not isinstance(num_layers, int):
        return
    short = layer_shortfall(policy, num_layers)
    if short is None:
        return
    named, offloaded = short
    why = f"there are {num_layers}" if named > num_layers else ""
    kept = policy.schedule.keep_last
    if offloaded < min(named, num_layers):
        why += f"{' and ' if why else ''}schedule.keep_last keeps the last {kept if kept > 1 else 'one'}"
    rule = policy.activations.rules[0] if policy.activations is not None else None
    message = f"the rule names {named} layers, and {offloaded} are offloaded: {why}"
    span = rule.match.key_span("layers") if rule is not None else None
    hint = f"name {offloaded} layers, or write keep_last: 0 where the target takes as many"
    findings.note(span, "EXP915", message, "activations.rules[].match.layers", hint)


def _note_newer(target: Target, emitted: Mapping[str, ExportedSetting], findings: ExportFindings) -> None:
    for key in emitted:
        setting = target.setting(key)
        if setting is not None and setting.since is not None:
            findings.note(None, "EXP910", f"{key} exists only in {setting.since}")
