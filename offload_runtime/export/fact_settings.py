"""Facts of the run for which a target has a setting: what they set, and whether they agree with what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.target import ExportedSetting, SettingValue, Target, TargetSetting, setting_text
from offload_runtime.predicates import Scalar

__all__ = ["check_against_facts", "contradiction", "facts_of_settings", "open_settings", "settings_of_facts"]


def settings_of_facts(target: Target, facts: Mapping[str, Scalar]) -> dict[str, ExportedSetting]:
    """Return the settings that ``facts`` state, by key; a yes that leaves the value open states none."""
    settings: dict[str, ExportedSetting] = {}
    for setting in target.settings:
        fact = facts.get(setting.fact) if setting.fact is not None else None
        if fact is None or (setting.stands_for_no is not None and fact is True):
            continue
        value = _no(setting) if setting.stands_for_no is not None else fact
        settings[setting.key] = ExportedSetting(setting.key, value)
    return settings


def open_settings(
    target: Target, facts: Mapping[str, Scalar], written: Collection[str]
) -> tuple[TargetSetting, ...]:
    """Return the settings that ``facts`` say are used, without their value, and that are not in ``written``."""
    return tuple(
        setting
        for setting in target.settings
        if setting.stands_for_no is not None
        and setting.key not in written
        and setting.fact is not None
        and facts.get(setting.fact) is True
    )


def facts_of_settings(target: Target, settings: Mapping[str, ExportedSetting]) -> dict[str, Scalar]:
    """Return the facts that ``settings`` state."""
    facts: dict[str, Scalar] = {}
    for key, exported in settings.items():
        setting = target.setting(key)
        if setting is not None and setting.fact is not None:
            stated = _stated(setting, exported.value)
            if stated is not None:
                facts[setting.fact] = stated
    return facts


def contradiction(setting: TargetSetting, value: SettingValue, facts: Mapping[str, Scalar]) -> str | None:
    """Say how ``value`` contradicts the fact that says the same; None where it does not."""
    fact = setting.fact
    if fact is None or fact not in facts or _stated(setting, value) == facts[fact]:
        return None
    return f"{setting.key}={setting_text(value)} contradicts --fact {fact}={setting_text(facts[fact])}"


def check_against_facts(
    settings: Mapping[str, ExportedSetting],
    facts: Mapping[str, Scalar],
    named: Collection[str],
    findings: ExportFindings,
) -> None:
    """Refuse what the policy makes the export write against ``facts``, those left out that are ``named`` already."""
    for key, exported in settings.items():
        setting = findings.target.setting(key)
        if setting is None or setting.fact is None or setting.fact in named:
            continue
        message = contradiction(setting, exported.value, facts)
        if message is not None:
            clause = exported.clause
            span, path = findings.span_of(() if clause is None else (clause, clause.partition(".")[0]))
            hint = f"change {clause or 'the policy'}, or give --fact {setting.fact} as the exported run is to have it"
            findings.refuse(span, "EXP907", message, hint, path)


def _no(setting: TargetSetting) -> SettingValue:
    """Return the value that switches ``setting`` off: null where it has no default."""
    return None if setting.default is None else setting.stands_for_no


def _stated(setting: TargetSetting, value: SettingValue) -> Scalar | None:
    """Return the value of the setting's fact that goes with ``value``."""
    if setting.stands_for_no is not None:
        return value is not None and value != setting.stands_for_no
    return None if isinstance(value, tuple) else value
