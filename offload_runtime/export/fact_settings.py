"""Facts of the run for which a target has a setting: what they set, and whether they agree with what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.target import ExportedSetting, SettingValue, Target, TargetSetting, setting_text
from offload_runtime.predicates import Scalar

__all__ = ["check_against_facts", "contradiction", "facts_of_settings", "open_settings", "settings_of_facts"]

# The fact's word for all that a setting can say and the fact has no word for.
_OTHER = "other"


def settings_of_facts(target: Target, facts: Mapping[str, Scalar]) -> dict[str, ExportedSetting]:
    """Return the settings that ``facts`` state, by key; a yes that leaves the value open states none."""
    settings: dict[str, ExportedSetting] = {}
    for setting in target.settings:
        fact = facts.get(setting.fact) if setting.fact is not None else None
        if setting.also_on_by is not None and facts.get(setting.also_on_by) is True:
            fact = True
        words = dict(setting.words)
        if fact is None or _leaves_open(setting, fact) or (words and fact not in words):
            continue
        value = _no(setting) if setting.stands_for_no is not None else words.get(str(fact), fact)
        settings[setting.key] = ExportedSetting(setting.key, value)
    return settings


def open_settings(
    target: Target, facts: Mapping[str, Scalar], written: Collection[str]
) -> tuple[TargetSetting, ...]:
    """Return the settings that ``facts`` say are used, without their value, and that are not in ``written``."""
    return tuple(
        setting
        for setting in target.settings
        if setting.key not in written
        and setting.fact is not None
        and setting.fact in facts
        and _leaves_open(setting, facts[setting.fact])
    )


def _leaves_open(setting: TargetSetting, fact: Scalar) -> bool:
    """Tell whether ``fact`` says of ``setting`` only that its value is another one: a yes, or `other`."""
    if setting.stands_for_no is not None:
        return fact is True
    return bool(setting.words) and fact == _OTHER


def facts_of_settings(target: Target, settings: Mapping[str, ExportedSetting]) -> dict[str, Scalar]:
    """Return the facts that ``settings`` state."""
    facts: dict[str, Scalar] = {}
    for key, exported in settings.items():
        setting = target.setting(key)
        if setting is not None and setting.fact is not None:
            stated = _stated(setting, exported.value)
            if stated:
                facts[setting.fact] = stated[0]
    return facts


def contradiction(setting: TargetSetting, value: SettingValue, facts: Mapping[str, Scalar]) -> str | None:
    """Say how ``value`` contradicts the fact that says the same; None where it does not."""
    fact = setting.fact
    if fact is None or fact not in facts or facts[fact] in _stated(setting, value):
        return None
    if setting.also_on_by is not None and facts.get(setting.also_on_by) is True and value is True:
        return None
    return f"{setting.key}={setting_text(value)} contradicts --fact {fact}={setting_text(facts[fact])}"


def check_against_facts(
    settings: Mapping[str, ExportedSetting],
    facts: Mapping[str, Scalar],
    named: Collection[str],
    findings: ExportFindings,
) -> None:
    """Refuse what the policy makes the export write against ``facts``, those left out that are ``named`` already."""
    said = facts_of_settings(findings.target, settings) | dict(facts)
    for key, exported in settings.items():
        setting = findings.target.setting(key)
        if setting is None or setting.fact is None or setting.fact in named:
            continue
        also = setting.also_on_by
        of_setting = facts if also is None or also not in said else {**facts, also: said[also]}
        message = contradiction(setting, exported.value, of_setting)
        if message is not None:
            clause = exported.clause
            span, path = findings.span_of(() if clause is None else (clause, clause.partition(".")[0]))
            hint = f"change {clause or 'the policy'}, or give --fact {setting.fact} as the exported run is to have it"
            findings.refuse(span, "EXP907", message, hint, path)


def _no(setting: TargetSetting) -> SettingValue:
    """Return the value that switches ``setting`` off: null where it has no default."""
    return None if setting.default is None else setting.stands_for_no


def _stated(setting: TargetSetting, value: SettingValue) -> tuple[Scalar, ...]:
    """Return the values of the setting's fact that go with ``value``, the usual one first."""
    if setting.stands_for_no is not None:
        return (value is not None and value != setting.stands_for_no,)
    if value is None or isinstance(value, tuple):
        return ()
    if setting.words:
        return tuple(fact for fact, word in setting.words if word == value) or (_OTHER,)
    return (value,)
