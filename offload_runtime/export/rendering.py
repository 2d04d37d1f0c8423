"""An export as text in the forms that targets read: flags, overrides, YAML, JSON, Python."""

from __future__ import annotations

import json
import pprint
import shlex
from collections.abc import Callable, Mapping
from string import Template
from textwrap import indent
from types import MappingProxyType
from typing import Any

from offload_runtime.export.exporter import Export
from offload_runtime.export.target import Format, SettingValue, setting_text
from offload_runtime.export.target_reading import TARGET_DIRECTORY
from offload_runtime.patterns import LayerRange
from offload_runtime.policy_text import policy_data

__all__ = ["render_export", "settings_tree"]


def render_export(export: Export, form: Format | None = None) -> str:
    """Return the export in ``form``, the target's usual one where it is None, without a final line feed.

    Raises ValueError for a form that the target does not read, and for an export with refusals.
    """
    if export.refusals:
        raise ValueError(f"{export.target.name} refused {len(export.refusals)} clauses; nothing is written")
    form = form or export.target.formats[0]
    if form not in export.target.formats:
        raise ValueError(
            f"{export.target.name} is written as {', '.join(export.target.formats)}, not {form!r}"
        )
    return _RENDERERS[form](export)


def settings_tree(export: Export) -> dict[str, Any]:
    """Return the settings as nested mappings, split at the dots of their keys."""
    tree: dict[str, Any] = {}
    for setting in export.settings:
        *sections, name = setting.key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = setting.value
    return tree


def _flags(export: Export) -> str:
    return " \\\n".join(
        f"--{setting.key} {shlex.quote(setting_text(setting.value))}" for setting in export.settings
    )


def _overrides(export: Export) -> str:
    return "\n".join(f"{setting.key}={setting_text(setting.value)}" for setting in export.settings)


def _yaml(export: Export) -> str:
    return "\n".join(_yaml_lines(settings_tree(export), ""))


def _yaml_lines(tree: Mapping[str, Any], margin: str) -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{margin}{key}:", *_yaml_lines(value, f"{margin}  ")]
        else:
            lines.append(f"{margin}{key}: {json.dumps(value)}")
    return lines


def _json(export: Export) -> str:
    return json.dumps(settings_tree(export), indent=2)


def _python(export: Export) -> str:
    path = TARGET_DIRECTORY / f"{export.target.name}.py.template"
    if not path.is_file():
        return "\n".join(f"cfg.{setting.key} = {_literal(setting.value)}" for setting in export.settings)
    template = path.read_text("utf-8")
    fields = {
        "name": export.policy.name,
        "version": export.target.version,
        "flags": "\n".join(f"    --{s.key} {setting_text(s.value)}" for s in export.settings),
        "policy": indent(pprint.pformat(policy_data(export.policy), width=100, sort_dicts=False), "    "),
        "layers": _layers_expression(export.policy.parameters.layers if export.policy.parameters else ()),
        "offload": str(any(setting.key == "offload_policy" for setting in export.settings)),
    }
    return Template(template).substitute(fields).rstrip("\n")


def _literal(value: SettingValue) -> str:
    return json.dumps(list(value)) if isinstance(value, tuple) else repr(value)


def _layers_expression(layers: tuple[LayerRange, ...]) -> str:
    """Return Python that selects from ``range(num_blocks)`` the layers that are offloaded."""
    if not layers:
        return "set(range(num_blocks))"
    return " | ".join(_one_range(only) for only in layers)


def _one_range(layers: LayerRange) -> str:
    if layers.outside:
        return "set()"
    if layers.single:
        return f"{{range(num_blocks)[{layers.start}]}}"
    start, stop = _bound(layers.start), _bound(layers.stop)
    step = f":{layers.step}" if layers.step != 1 else ""
    return f"set(range(num_blocks)[{start}:{stop}{step}])"


def _bound(bound: Any) -> str:
    if bound is None:
        return ""
    return str(bound) if isinstance(bound, int) else f"num_blocks * {bound.numerator} // {bound.denominator}"


_RENDERERS: Mapping[Format, Callable[[Export], str]] = MappingProxyType(
    {"flags": _flags, "overrides": _overrides, "yaml": _yaml, "json": _json, "python": _python}
)
