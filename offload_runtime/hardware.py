"""From a name, a file or data to a hardware profile; findings point at the line and say what was probably meant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.document import Document, MapNode, Node, ScalarNode, document_from_data
from offload_runtime.errors import Diagnostic, UnreadableError, sorted_diagnostics
from offload_runtime.findings import Findings, raise_errors
from offload_runtime.hardware_profile import FIGURES, Figure, HardwareProfile, hardware_document
from offload_runtime.shape import Hint, check_shape, did_you_mean, load_schema
from offload_runtime.strict_yaml import read_yaml_file

__all__ = [
    "Figure",
    "HardwareProfile",
    "HardwareReading",
    "hardware_document",
    "hardware_names",
    "list_hardware",
    "load_hardware",
    "locate_hardware",
    "read_hardware",
]

PROFILE_DIRECTORY = Path(__file__).parent / "profiles"
SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in FIGURES))
_YAML_SUFFIXES = (".yaml", ".yml", ".json")

# A share of a rate says nothing without the rate.
_SHARED_RATES = {
    "device.hbm_reachable_share": ("device.hbm_rate",),
    "device.matmul_reachable_share": tuple(key for key in FIGURES if FIGURES[key] == "compute"),
    "device.attention_forward_share": ("device.matmul_bfloat16", "device.matmul_float16"),
    "device.attention_backward_share": ("device.matmul_bfloat16", "device.matmul_float16"),
}


@dataclass(frozen=True, slots=True)
class HardwareReading:
    """What could be read, and what was found; ``profile`` is None where a finding is an error."""

    profile: HardwareProfile | None
    diagnostics: tuple[Diagnostic, ...]


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILE_DIRECTORY.glob("*.yaml")))


def list_hardware() -> tuple[HardwareProfile, ...]:
    """Return the shipped profiles, by name."""
    return tuple(load_hardware(name) for name in hardware_names())


def load_hardware(source: str | Path | Mapping[str, Any]) -> HardwareProfile:
    """Load a profile: the name of a shipped one, the path of a file, or the data of one.

    Raises UnreadableError for what does not exist or cannot be read, PolicyError with every finding for what
    says something wrong.
    """
    if isinstance(source, Mapping):
        reading = read_hardware(document_from_data(source))
    else:
        path, name = locate_hardware(source)
        reading = read_hardware(read_yaml_file(path, file=name))
    raise_errors(reading.diagnostics)
    assert reading.profile is not None
    return reading.profile


def locate_hardware(reference: str | Path) -> tuple[Path, str]:
    """Return the path of a profile, and the name by which findings call it.

    Text without ``/`` and without ``.yaml`` names a shipped profile. Raises UnreadableError where there is none.
    """
    text = os.fspath(reference)
    if isinstance(reference, Path) or "/" in text or os.sep in text or text.endswith(_YAML_SUFFIXES):
        return Path(text), text
    names = hardware_names()
    if text in names:
        return PROFILE_DIRECTORY / f"{text}.yaml", f"profiles/{text}.yaml"
    hint = (
        did_you_mean(text, names) or f"shipped profiles: {', '.join(names)}; a path ends in .yaml or has a /"
    )
    raise UnreadableError(Diagnostic("HWP801", "error", f"there is no hardware profile {text!r}", hint=hint))


def read_hardware(document: Document) -> HardwareReading:
    """Read a document; findings are returned, never raised."""
    findings = Findings(list(document.diagnostics))
    root, failures = check_shape(document.root, load_schema("hardware"), HARDWARE_HINTS)
    findings.diagnostics += failures
    figures = tuple(_read_figures(root)) if isinstance(root, MapNode) else ()
    if isinstance(root, MapNode):
        _check_shares(root, figures, findings)
    profile = None
    if not findings.num_errors and isinstance(root, MapNode):
        profile = HardwareProfile(_text(root.get("name")), _text(root.get("summary")), figures)
    return HardwareReading(profile, sorted_diagnostics(findings.diagnostics))


def _read_figures(root: MapNode) -> Iterator[Figure]:
    """Yield the figures that are whole; what is missing in another was reported by its shape."""
    for key in FIGURES:
        section, _, name = key.partition(".")
        members = root.get(section)
        node = members.get(name) if isinstance(members, MapNode) else None
        if not isinstance(node, MapNode):
            continue
        value, unit = node.get("value"), node.get("unit")
        if isinstance(value, ScalarNode) and isinstance(value.value, int | float):
            given = _text(unit) or None
            if _has_unit(key, given):
                yield Figure(key, value.value, given, _text(node.get("source")))


def _has_unit(key: str, unit: str | None) -> bool:
    return (unit is None) == (FIGURES[key] in ("share", "count"))


def _check_shares(root: MapNode, figures: tuple[Figure, ...], findings: Findings) -> None:
    stated = {figure.key for figure in figures}
    for share, rates in _SHARED_RATES.items():
        section, _, name = share.partition(".")
        members = root.get(section)
        if share in stated and not stated.intersection(rates) and isinstance(members, MapNode):
            message = f"{name} is a share of a rate that is not given"
            hint = f"give {' or '.join(rate.partition('.')[2] for rate in rates)}, or leave the share out"
            findings.add(members.key_span(name), "HWP804", message, hint, path=share)


def _text(node: Node | None) -> str:
    return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else ""


def _amount_hint(value: object) -> str:
    """Say what a size, rate or duration is."""
    return "write a number greater than 0, without its unit"


def _share_hint(value: object) -> str:
    """Suggest a share for a percentage."""
    text = str(value).removesuffix("%")
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    return f"write {percent / 100:g}" if 1 < percent <= 100 else "write a share between 0 and 1"


def _unit_hint(value: object) -> str | None:
    """Suggest the unit that was probably meant; rates are in bytes, not bits."""
    spelled = {unit.lower(): unit for unit in ("GB/s", "TB/s", "TFLOP/s", "Gparam/s")}
    others = {"gbps": "GB/s", "tflops": "TFLOP/s", "tflop": "TFLOP/s", "µs": "us", "microseconds": "us"}
    known = (spelled | others).get(str(value).lower())
    return f"did you mean {known}?" if known is not None else None


HARDWARE_HINTS: Mapping[str, Hint] = {"amount": _amount_hint, "share": _share_hint, "unit": _unit_hint}
