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
    facts_of_settings,
    open_settings,
    settings_of_facts,
)
from offload_runtime.export.given_settings import read_settings
from offload_runtime.export.policy_values import layer_shortfall, policy_values
from offload_runtime.export.run_facts import check_run_facts, note_checked_facts
from offload_runtime.export.target import (
    Emission,
    ExportedSetting,
    SettingValue,
    Target,
    TargetSetting,
    Verdict,
    setting_text,
)
from offload_runtime.export.target_reading import load_target
from offload_runtime.facts import FACTS
from offload_runtime.policy import Policy
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate

if TYPE_CHECKING:
    from offload_runtime.compiler import CompiledPolicy

__all__ = ["Export", "check_export", "export_policy", "version_note"]

_GIB = 2**30


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
    values = _comparable(known, {setting.key: setting.default for setting in known.settings})
    values |= policy_values(typed, facts) | dict(facts)
    _judge_clauses(typed, known, values, findings)
    _check_requires(typed, facts, findings)
    check_run_facts(typed, facts, findings)
    of_policy = _emitted(known, values, findings)
    given = read_settings(settings, of_policy, facts, findings)
    emitted = {**settings_of_facts(known, facts), **of_policy, **given}
    emitted = {key: emitted[key] for key in (*of_policy, *given, *emitted)}
    values = _known_values(known, emitted, values, facts)
    _check_layers(typed, facts, findings)
    _check_ranges(known, emitted, values, findings)
    named = _check_constraints(known, emitted, values, findings)
    replaced = {key: setting for key, setting in of_policy.items() if key not in given}
    check_against_facts(replaced, facts, named, findings)
    for when, text in known.notes:
        if _holds(when, values):
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


def _known_values(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    facts: Mapping[str, Scalar],
) -> dict[str, Scalar]:
    """Return what conditions compare once the settings are known, their defaults and the facts that they state too."""
    known = facts_of_settings(target, emitted) | dict(values)
    for key in (*emitted, *(setting.key for setting in open_settings(target, facts, emitted))):
        # Null, and what a fact says is used without its value, is not the default.
        known.pop(key, None)
    known |= _comparable(target, {key: setting.value for key, setting in emitted.items()})
    return known | {f"written.{setting.key}": setting.key in emitted for setting in target.settings}


def _unverified_first(notes: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the notes by place, those first that leave open whether the target takes the export."""
    by_place = sorted_diagnostics(notes)
    return tuple(sorted(by_place, key=lambda note: note.code != "EXP911"))


def _comparable(target: Target, settings: Mapping[str, SettingValue]) -> dict[str, Scalar]:
    """Return settings as values that conditions compare; of a list, its ``count`` and whether it has each choice."""
    values: dict[str, Scalar] = {}
    for key, value in settings.items():
        setting = target.setting(key)
        if setting is not None and setting.type == "list":
            words = value if isinstance(value, tuple) else ()
            values[f"{key}.count"] = len(words)
            values |= {f"{key}.{choice}": choice in words for choice in setting.choices}
        elif value is not None and not isinstance(value, tuple):
            values[key] = value
    return values


def check_export(
    policy: Policy | CompiledPolicy, target: str, facts: Mapping[str, Scalar] | None = None
) -> tuple[Diagnostic, ...]:
    """Return every finding about handing ``policy`` to ``target``, refusals first."""
    export = export_policy(policy, target, facts=facts)
    return (*export.refusals, *export.notes, version_note(export.target))


def version_note(target: Target) -> Diagnostic:
    """Return the note that says which version of ``target`` its findings are about."""
    message = f"{target.name}: what is known is about {target.version}, compared with it on {target.checked}"
    return Diagnostic("EXP913", "note", message, hint="with another version, run its own configuration check")


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
    return next((verdict for when, verdict in row.cases if _holds(when, of_clause)), row.otherwise)


def _holds(predicate: Predicate, values: Mapping[str, Scalar]) -> bool:
    """Tell whether ``predicate`` holds for certain; a word (auto) has no order, and no order holds of it."""
    try:
        return evaluate(predicate, values) is True
    except ValueError:
        return False


def _check_requires(policy: Policy, facts: Mapping[str, Scalar], findings: ExportFindings) -> None:
    if policy.requires is None:
        return
    span, holds = policy.span_of("requires"), evaluate(policy.requires, facts)
    if holds is False:
        findings.refuse(
            span, "EXP904", "what the policy requires does not hold here", "correct --fact", "requires"
        )
    elif holds is None:
        unknown = _unknown(policy.requires, facts)
        message = f"not verified: what the policy requires hangs on {', '.join(unknown)}"
        findings.note(span, "EXP911", message, "requires", _give(unknown))


def _unknown(predicate: Predicate, values: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the facts that ``predicate`` hangs on and that nobody gave."""
    missing = [comparison.fact for comparison in comparisons(predicate) if comparison.fact not in values]
    # What a policy says is open only where it counts layers relative to their number.
    named = ["num_layers" if name.startswith("policy.") else name for name in missing]
    return tuple(dict.fromkeys(name for name in named if name in FACTS))


def _give(facts: Sequence[str]) -> str:
    return f"give {' and '.join(f'--fact {fact}=VALUE' for fact in facts)}"


# Settings


def _emitted(
    target: Target, values: Mapping[str, Scalar], findings: ExportFindings
) -> dict[str, ExportedSetting]:
    emitted: dict[str, ExportedSetting] = {}
    for emission in target.emits:
        if emission.key in emitted or (emission.when is not None and not _holds(emission.when, values)):
            continue
        if emission.unset:
            emitted[emission.key] = ExportedSetting(emission.key, None, emission.clause)
            continue
        value = _value(emission, values)
        if value is not None:
            emitted[emission.key] = ExportedSetting(emission.key, value, emission.clause)
        elif emission.needs is not None:
            span, path = findings.span_of(_with_sections(emission.clause))
            message = f"{emission.key} needs {emission.needs}"
            findings.refuse(span, "EXP905", message, f"give {emission.needs}", path)
    return emitted


def _value(emission: Emission, values: Mapping[str, Scalar]) -> Scalar | None:
    value = emission.value if emission.taken_from is None else values.get(emission.taken_from)
    if value is None or isinstance(value, str | bool):
        return value
    if emission.conversion == "gibibytes":
        return value / _GIB
    return int(value) if emission.conversion == "integer" else value


def _with_sections(path: str | None) -> tuple[str, ...]:
    return () if path is None else (path, path.partition(".")[0])


# Constraints


def _check_ranges(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    findings: ExportFindings,
) -> None:
    for exported in emitted.values():
        setting = target.setting(exported.key)
        if setting is None or exported.value is None:
            continue
        span, path = findings.span_of(_with_sections(exported.clause))
        wrong = _out_of_range(setting, exported.value, values)
        if wrong is not None:
            message = f"{exported.key} is {wrong}, not {setting_text(exported.value)}"
            message += _quoted(setting, exported.value, values)
            findings.refuse(span, "EXP903", message, _range_hint(setting, wrong), path)
        elif setting.below is not None and setting.below not in values:
            message = (
                f"not verified: {exported.key}={setting_text(exported.value)} has to be below {setting.below}"
            )
            findings.note(span, "EXP911", message, path, _give([setting.below]))


def _range_hint(setting: TargetSetting, wrong: str) -> str:
    if setting.type == "list":
        return f"--setting '{setting.key}=[...]', of {', '.join(setting.choices)}"
    return f"choose a value that is {wrong}"


def _quoted(setting: TargetSetting, value: SettingValue, values: Mapping[str, Scalar]) -> str:
    """Return the target's own text in quotes, with the number or value that it ends in."""
    if setting.error is None:
        return ""
    end = values.get(setting.below) if setting.below is not None else None
    if end is None and setting.error.endswith(": "):
        end = setting_text(value)
    return f": {setting.error.rstrip()!r}" if end is None else f": {f'{setting.error.rstrip()} {end}'!r}"


def _out_of_range(setting: TargetSetting, value: SettingValue, values: Mapping[str, Scalar]) -> str | None:
    if isinstance(value, tuple):
        unknown = [word for word in value if word not in setting.choices]
        return f"a list of {', '.join(setting.choices)}" if unknown else None
    if setting.choices and value not in setting.choices:
        return f"one of {', '.join(setting.choices)}"
    if value is None or isinstance(value, bool | str):
        return None
    limit = values.get(setting.below) if setting.below is not None else None
    high = limit - 1 if isinstance(limit, int) and not isinstance(limit, bool) else setting.maximum
    if (setting.minimum is not None and value < setting.minimum) or (high is not None and value > high):
        return f"from {setting.minimum} on" if high is None else f"between {setting.minimum} and {high}"
    return None


def _check_constraints(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    findings: ExportFindings,
) -> set[str]:
    """Refuse what breaks a constraint; return the facts that the broken ones hang on."""
    broken: set[str] = set()
    for constraint in target.constraints:
        if not _holds(constraint.when, values):
            continue
        holds = evaluate(constraint.holds, values)
        span, path = findings.span_of(constraint.clauses)
        if holds is False:
            broken |= {comparison.fact for comparison in comparisons(constraint.holds)}
            text = f": {constraint.error!r}" if constraint.error else ""
            message = f"{constraint.message} [{constraint.name}]{text}"
            findings.refuse(span, "EXP902", message, constraint.cure, path)
        elif holds is None and constraint.settled_by not in emitted:
            unknown = _unknown(constraint.holds, values)
            message = (
                f"not verified: {constraint.message} [{constraint.name}]; it hangs on {', '.join(unknown)}"
            )
            findings.note(span, "EXP911", message, path, _give(unknown))
    return broken


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
