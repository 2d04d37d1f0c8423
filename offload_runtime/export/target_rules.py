"""The rules of a target, checked between settings and facts: what its settings are, their ranges, its constraints.

An export and advice check the same rules: an export with the settings that it writes and the target's defaults, advice
with what facts alone state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.fact_settings import facts_of_settings, open_settings
from offload_runtime.export.target import (
    Emission,
    ExportedSetting,
    SettingValue,
    Target,
    TargetSetting,
    setting_text,
)
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate

__all__ = [
    "check_constraints",
    "check_ranges",
    "comparable",
    "emitted_settings",
    "give_hint",
    "holds",
    "known_values",
    "unknown_facts",
    "with_sections",
]

_GIB = 2**30


def holds(predicate: Predicate, values: Mapping[str, Scalar]) -> bool:
    """Tell whether ``predicate`` holds for certain; a word (auto) has no order, and no order holds of it."""
    try:
        return evaluate(predicate, values) is True
    except ValueError:
        return False


def unknown_facts(predicate: Predicate, values: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the facts, and settings of a target, that ``predicate`` hangs on and that nobody gave."""
    missing = [comparison.fact for comparison in comparisons(predicate) if comparison.fact not in values]
    # What a policy says is open only where it counts layers relative to their number.
    named = ["num_layers" if name.startswith("policy.") else name for name in missing]
    return tuple(dict.fromkeys(name for name in named if name in FACTS or "." in name))


def give_hint(names: Sequence[str]) -> str:
    """Return the hint that asks for facts, or settings of the target."""
    options = (f"{'--fact' if name in FACTS else '--setting'} {name}=VALUE" for name in names)
    return f"give {' and '.join(options)}"


def _choices(target: Target, names: Sequence[str]) -> str:
    """Return what the one setting that is asked for may be, where that is one of a list."""
    setting = target.setting(names[0]) if len(names) == 1 else None
    return f", one of {', '.join(setting.choices)}" if setting is not None and setting.choices else ""


def known_values(
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
    known |= comparable(target, {key: setting.value for key, setting in emitted.items()})
    return known | {f"written.{setting.key}": setting.key in emitted for setting in target.settings}


def comparable(target: Target, settings: Mapping[str, SettingValue]) -> dict[str, Scalar]:
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


def emitted_settings(
    target: Target, values: Mapping[str, Scalar], findings: ExportFindings
) -> dict[str, ExportedSetting]:
    """Return the settings that the target's rows write where ``values`` are known; refuse what they need and lack."""
    emitted: dict[str, ExportedSetting] = {}
    for emission in target.emits:
        if emission.key in emitted or (emission.when is not None and not holds(emission.when, values)):
            continue
        if emission.unset:
            emitted[emission.key] = ExportedSetting(emission.key, None, emission.clause)
            continue
        value = _value(emission, values)
        if value is not None:
            emitted[emission.key] = ExportedSetting(emission.key, value, emission.clause)
        elif emission.needs is not None:
            span, path = findings.span_of(with_sections(emission.clause))
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


def with_sections(path: str | None) -> tuple[str, ...]:
    """Return a clause's path and its section's, where a finding about it can stand."""
    return () if path is None else (path, path.partition(".")[0])


def check_ranges(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    findings: ExportFindings,
) -> None:
    """Refuse settings out of their range, with the target's own text where it has one."""
    for exported in emitted.values():
        setting = target.setting(exported.key)
        if setting is None or exported.value is None:
            continue
        span, path = findings.span_of(with_sections(exported.clause))
        wrong = _out_of_range(setting, exported.value, values)
        if wrong is not None:
            message = f"{exported.key} is {wrong}, not {setting_text(exported.value)}"
            message += _quoted(setting, exported.value, values)
            cure = _range_cure(target, setting, exported, values) or _range_hint(setting, wrong)
            findings.refuse(span, "EXP903", message, cure, path)
        elif setting.below is not None and setting.below not in values:
            message = (
                f"not verified: {exported.key}={setting_text(exported.value)} has to be below {setting.below}"
            )
            findings.note(span, "EXP911", message, path, give_hint([setting.below]))


def _range_cure(
    target: Target, setting: TargetSetting, exported: ExportedSetting, values: Mapping[str, Scalar]
) -> str | None:
    """Return what the file says is to be done, first about the clause of the policy that the value comes from."""
    cures = [e.cure for e in target.emits if e.key == exported.key and e.clause == exported.clause]
    cure = next((cure for cure in (*cures, setting.cure) if cure is not None), None)
    limit = _largest(setting, values)
    return cure.replace("LIMIT", str(limit)) if cure is not None and limit is not None else None


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
    high = _largest(setting, values)
    if (setting.minimum is not None and value < setting.minimum) or (high is not None and value > high):
        return f"from {setting.minimum} on" if high is None else f"between {setting.minimum} and {high}"
    return None


def _largest(setting: TargetSetting, values: Mapping[str, Scalar]) -> float | None:
    limit = values.get(setting.below) if setting.below is not None else None
    return limit - 1 if isinstance(limit, int) and not isinstance(limit, bool) else setting.maximum


def check_constraints(
    target: Target,
    emitted: Mapping[str, ExportedSetting],
    values: Mapping[str, Scalar],
    findings: ExportFindings,
) -> set[str]:
    """Refuse what breaks a constraint; return the facts that the broken ones hang on."""
    broken: set[str] = set()
    for constraint in target.constraints:
        if not holds(constraint.when, values):
            continue
        is_kept = evaluate(constraint.holds, values)
        span, path = findings.span_of(constraint.clauses)
        if is_kept is False:
            broken |= {comparison.fact for comparison in comparisons(constraint.holds)}
            text = f": {constraint.error!r}" if constraint.error else ""
            since = f", in {constraint.since}" if constraint.since else ""
            message = f"{constraint.message}{since} [{constraint.name}]{text}"
            findings.refuse(span, "EXP902", message, constraint.cure, path)
        elif is_kept is None and constraint.settled_by not in emitted:
            unknown = unknown_facts(constraint.holds, values)
            message = (
                f"not verified: {constraint.message} [{constraint.name}]; it hangs on {', '.join(unknown)}"
            )
            findings.note(span, "EXP911", message, path, give_hint(unknown) + _choices(target, unknown))
    return broken
