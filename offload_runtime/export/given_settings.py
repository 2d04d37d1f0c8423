"""Settings that are given by hand, ``KEY=VALUE``: read, and compared with the facts that say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.fact_settings import contradiction
from offload_runtime.export.target import ExportedSetting, SettingValue, Target, TargetSetting, setting_text
from offload_runtime.predicates import Scalar
from offload_runtime.shape import did_you_mean

__all__ = ["read_settings"]

_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "text": "text",
    "list": "a list such as [a,b]",
}


def read_settings(
    texts: Sequence[str],
    emitted: Mapping[str, ExportedSetting],
    facts: Mapping[str, Scalar],
    findings: ExportFindings,
) -> dict[str, ExportedSetting]:
    """Return the settings that ``texts`` give, those that replace one of the policy noted.

    What is no setting, has another type, or contradicts one of ``facts`` is refused.
    """
    target, given = findings.target, {}
    for text in texts:
        key, equals, written = text.partition("=")
        setting = target.setting(key)
        if not equals or setting is None:
            problem = f"{text!r} is not KEY=VALUE" if not equals else f"{text!r} sets nothing that is known"
            findings.refuse(None, "EXP920", problem, _keys_hint(key, target))
            continue
        known, value = _parsed(setting, written)
        if not known:
            kind = _KINDS[setting.type]
            findings.refuse(None, "EXP903", f"{key} is {kind}, not {written!r}", f"write {kind}")
            continue
        message = contradiction(setting, value, facts)
        if message is not None:
            hint = f"leave one of them out, or give --fact {setting.fact} as it is set"
            findings.refuse(None, "EXP907", message, hint)
        if key in emitted and emitted[key].value != value:
            old = setting_text(emitted[key].value)
            whence = "the policy" if emitted[key].clause is not None else "the export"
            message = f"{key}={setting_text(value)} was given, and replaces {old} from {whence}"
            findings.note(None, "EXP912", message)
        given[key] = ExportedSetting(key, value)
    return given


def _parsed(setting: TargetSetting, written: str) -> tuple[bool, SettingValue]:
    """Return whether ``written`` is a value of the setting, and that value; null where the setting can be unset."""
    if written.lower() in ("null", "none") and setting.default is None and setting.type != "list":
        return True, None
    if setting.type == "text":
        return True, written
    if setting.type == "boolean":
        value = {"true": True, "false": False}.get(written.lower())
        return value is not None, value
    if setting.type == "list":
        words = [
            word.strip().strip("\"'")
            for word in written.strip().removeprefix("[").removesuffix("]").split(",")
        ]
        return True, tuple(word for word in words if word)
    try:
        return True, int(written) if setting.type == "integer" else float(written)
    except ValueError:
        return False, None


def _keys_hint(key: str, target: Target) -> str:
    """Return the closest key, and all keys by section."""
    sections: dict[str, list[str]] = {}
    for setting in target.settings:
        section, _, name = setting.key.rpartition(".")
        sections.setdefault(section, []).append(name)
    listed = "; ".join(
        f"in {section or 'the root'}: {', '.join(names)}" for section, names in sections.items()
    )
    keys = [setting.key for setting in target.settings]
    by_ending = [known for known in keys if known.endswith(f".{key.rpartition('.')[2]}")]
    close = f"did you mean {by_ending[0]}?" if len(by_ending) == 1 else did_you_mean(key, keys)
    return f"{close} " * (close is not None) + f"KEY=VALUE, KEY one of {listed}"
