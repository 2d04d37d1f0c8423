"""(being built) A minimal reader, replaced by the strict one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from offload_runtime.patterns import parse_glob, parse_layers
from offload_runtime.policy import (
    Activations,
    CountRange,
    Limits,
    Match,
    ModulePattern,
    Policy,
    Rule,
    Schedule,
)
from offload_runtime.units import parse_percent, parse_size


def _list(v):
    return [] if v is None else v if isinstance(v, list) else [v]


def read_policy(source: Any, overrides: Any) -> Policy:
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_dir():
            path = path / "policy.yaml"
        source = yaml.safe_load(path.read_text())

    def size(v):
        return None if v in (None, "unlimited") else parse_size(v)

    lim = source.get("limits", {})
    act = source.get("activations", {})
    rules = []
    for r in act.get("rules", []):
        m = r.get("match", {})
        b = m.get("bytes")
        rules.append(
            Rule(
                r["name"],
                Match(
                    op=tuple(_list(m.get("op"))),
                    layers=tuple(parse_layers(str(x)) for x in _list(m.get("layers"))),
                    module=tuple(ModulePattern(parse_glob(x)) for x in _list(m.get("module"))),
                    bytes=b and CountRange(size(b.get("min")), size(b.get("max"))),
                    layout=m.get("layout", "any"),
                ),
                r["action"],
                r.get("must", False),
                r.get("optional", False),
            )
        )
    so = lim.get("step_overhead", "unlimited")
    return Policy(
        source["name"],
        limits=Limits(
            size(lim.get("budget")),
            size(lim.get("device_peak")),
            size(lim.get("host")),
            None if so == "unlimited" else float(parse_percent(so)),
        ),
        schedule=Schedule(**source.get("schedule", {})),
        activations=Activations(act["default"], act.get("layer_outputs"), rules=tuple(rules)) if act else None,
    )
