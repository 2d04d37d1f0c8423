"""From a policy, a target and what is known of the run to an export: settings, refusals, notes.

One way: clauses are judged by the target's rows, settings follow from what the policy says, and constraints are
checked between settings and facts. Every finding is gathered; an export with a refusal is not written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offload_runtime.errors import Diagnostic, Span, sorted_diagnostics
from offload_runtime.export.clauses import Clause, given_clauses
from offload_runtime.export.policy_values import policy_values
from offload_runtime.export.target import Emission, Target, TargetSetting, Verdict
from offload_runtime.export.target_reading import load_target
from offload_runtime.facts import FACTS
from offload_runtime.policy import Policy
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate

if TYPE_CHECKING:
    from offload_runtime.compiler import CompiledPolicy

__all__ = ["Export", "ExportedSetting", "check_export", "export_policy"]

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ExportedSetting:
    """One setting and its value (None is null); ``clause`` is the field of the policy that it comes from."""

    key: str
    value: Scalar | None
    clause: str | None = None


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
    findings = _Findings(known, typed)
    if not isinstance(policy, Policy) and policy.function is not None:
        findings.refuse(
            None, "EXP906", "a Python callable cannot be written down", "write the policy as YAML"
        )
    values: dict[str, Scalar] = {s.key: s.default for s in known.settings if s.default is not None}
    values |= policy_values(typed, facts or {}) | dict(facts or {})
    _judge_clauses(typed, known, values, findings)
    _check_requires(typed, facts or {}, findings)
    emitted = _emitted(known, values, findings)
    emitted |= _given_settings(known, settings, emitted, findings)
    values |= {key: setting.value for key, setting in emitted.items() if setting.value is not None}
    _check_ranges(known, emitted, values, findings)
    _check_constraints(known, emitted, values, findings)
    for when, text in known.notes:
        if evaluate(when, values) or (evaluate(when, values) is None and _written(when, emitted)):
            findings.note(None, "EXP910", text)
    return Export(
        known,
        typed,
        tuple(emitted.values()),
        sorted_diagnostics(findings.refusals),
        sorted_diagnostics(findings.notes),
    )


def check_export(
    policy: Policy | CompiledPolicy, target: str, facts: Mapping[str, Scalar] | None = None
) -> tuple[Diagnostic, ...]:
    """Return every finding about handing ``policy`` to ``target``, refusals first."""
    export = export_policy(policy, target, facts=facts)
    return export.refusals + export.notes


class _Findings:
    def __init__(self, target: Target, policy: Policy) -> None:
        self.target = target
        self.policy = policy
        self.refusals: list[Diagnostic] = []
        self.notes: list[Diagnostic] = []

    def refuse(self, where: Span | None, code: str, message: str, hint: str, path: str | None = None) -> None:
        message = f"{self.target.name}: {message}" if code != "EXP901" else message
        self.refusals.append(Diagnostic.at(where, code, message, path=path, hint=hint))

    def note(
        self, where: Span | None, code: str, message: str, path: str | None = None, hint: str | None = None
    ) -> None:
        message = f"{self.target.name}: {message}"
        self.notes.append(Diagnostic.at(where, code, message, severity="note", path=path, hint=hint))

    def span_of(self, paths: Sequence[str]) -> tuple[Span | None, str | None]:
        """Return the place and the name of the first of ``paths`` that the policy gives."""
        for path in paths:
            span = self.policy.span_of(path)
            if span is not None:
                return span, path
        return None, None


def _judge_clauses(policy: Policy, target: Target, values: Mapping[str, Scalar], findings: _Findings) -> None:
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


def _check_requires(policy: Policy, facts: Mapping[str, Scalar], findings: _Findings) -> None:
    if policy.requires is None:
        return
    span, holds = policy.span_of("requires"), evaluate(policy.requires, facts)
    if holds is False:
        findings.refuse(
            span, "EXP904", "what the policy requires does not hold here", "correct --fact", "requires"
        )
    elif holds is None:
        unknown = _unknown(policy.requires, facts)
        findings.note(span, "EXP911", f"requires hangs on {', '.join(unknown)}", "requires", _give(unknown))


def _unknown(predicate: Predicate, values: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the facts that ``predicate`` hangs on and that nobody gave."""
    missing = [comparison.fact for comparison in comparisons(predicate) if comparison.fact not in values]
    # What a policy says is open only where it counts layers relative to their number.
    named = ["num_layers" if name.startswith("policy.") else name for name in missing]
    return tuple(dict.fromkeys(name for name in named if name in FACTS))


def _give(facts: Sequence[str]) -> str:
    return f"give {' and '.join(f'--fact {fact}=VALUE' for fact in facts)}"


# Settings


def _emitted(target: Target, values: Mapping[str, Scalar], findings: _Findings) -> dict[str, ExportedSetting]:
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


def _given_settings(
    target: Target, settings: Sequence[str], emitted: Mapping[str, ExportedSetting], findings: _Findings
) -> dict[str, ExportedSetting]:
    given: dict[str, ExportedSetting] = {}
    for text in settings:
        key, equals, written = text.partition("=")
        setting = target.setting(key)
        if not equals or setting is None:
            keys = ", ".join(setting.key for setting in target.settings)
            findings.refuse(
                None, "EXP920", f"{text!r} sets nothing that is known", f"KEY=VALUE, KEY one of {keys}"
            )
            continue
        value = _parsed(setting, written)
        if value is None:
            findings.refuse(
                None, "EXP903", f"{key} is {_kind(setting)}, not {written!r}", f"write {_kind(setting)}"
            )
            continue
        if key in emitted and emitted[key].value != value:
            old = emitted[key].value
            findings.note(None, "EXP912", f"{key}={written} was given, and replaces {old} from the policy")
        given[key] = ExportedSetting(key, value)
    return given


def _parsed(setting: TargetSetting, written: str) -> Scalar | None:
    if setting.type == "text":
        return written
    if setting.type == "boolean":
        return {"true": True, "false": False}.get(written.lower())
    try:
        return int(written) if setting.type == "integer" else float(written)
    except ValueError:
        return None


def _kind(setting: TargetSetting) -> str:
    return {"boolean": "true or false", "integer": "a whole number", "number": "a number", "text": "text"}[
        setting.type
    ]


# Constraints


def _check_ranges(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    findings: _Findings,
) -> None:
    for exported in emitted.values():
        setting = target.setting(exported.key)
        if setting is None or exported.value is None:
            continue
        span, path = findings.span_of(_with_sections(exported.clause))
        wrong = _out_of_range(setting, exported.value, values)
        if wrong is not None:
            quoted = f" ({setting.error})" if setting.error else ""
            message = f"{exported.key} is {wrong}, not {exported.value}{quoted}"
            findings.refuse(span, "EXP903", message, f"choose a value that is {wrong}", path)
        elif setting.below is not None and setting.below not in values:
            message = f"{exported.key}={exported.value} has to be below {setting.below}"
            findings.note(span, "EXP911", message, path, _give([setting.below]))


def _out_of_range(setting: TargetSetting, value: Scalar, values: Mapping[str, Scalar]) -> str | None:
    if setting.choices and value not in setting.choices:
        return f"one of {', '.join(setting.choices)}"
    if isinstance(value, bool | str):
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
    findings: _Findings,
) -> None:
    for constraint in target.constraints:
        if not _holds(constraint.when, values):
            continue
        holds = evaluate(constraint.holds, values)
        span, path = findings.span_of(constraint.clauses)
        if holds is False:
            text = f": {constraint.error!r}" if constraint.error else ""
            message = f"{constraint.message} [{constraint.name}]{text}"
            findings.refuse(span, "EXP902", message, constraint.cure, path)
        elif holds is None and constraint.settled_by not in emitted:
            unknown = _unknown(constraint.holds, values)
            message = f"{constraint.message} [{constraint.name}]; it hangs on {', '.join(unknown)}"
            findings.note(span, "EXP911", message, path, _give(unknown))


def _written(predicate: Predicate, emitted: Mapping[str, ExportedSetting]) -> bool:
    """Tell whether a condition that hangs on something unknown is about a setting that the export writes."""
    return any(comparison.fact in emitted for comparison in comparisons(predicate))
