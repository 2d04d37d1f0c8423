"""What is known of one machine, model and run: facts with their values, and where each came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offload_runtime.errors import Diagnostic, PolicyError, UnreadableError
from offload_runtime.fact_values import choice_hint, fact_hint, wrong_value
from offload_runtime.facts import BYTES, FACTS, PROBED, PROFILED, SHARE, Fact
from offload_runtime.predicates import Scalar
from offload_runtime.result_facts import (
    facts_of_reports,
    facts_of_result,
    is_bench,
    is_report,
    is_result,
    subject_of_result,
)
from offload_runtime.units import format_size_short, parse_size

__all__ = [
    "FactFile",
    "FactSheet",
    "FactsResult",
    "KnownFact",
    "MemoryPart",
    "ModelEstimate",
    "format_fact",
    "how_to_know",
    "open_fact_file",
    "read_fact_file",
    "typed_value",
]

# Facts that neither a machine nor a profile nor any model gives as the others of their source.
_WAYS = {
    "numa_local": "compare `taskset -cp PID` of each rank with its GPU's CPU Affinity in `nvidia-smi topo -m` (of this "
    "package's policies --from with a result of `offload apply` says it), then",
    "pcie_generation": "run this on the machine while it trains (an idle link goes down), or",
    "pcie_link_width": "run this on the machine while it trains (an idle link may be narrower), or",
    "link_is_coherent": "look it up in the machine's data sheet, then",
    "nvme_read_gbps": "measure it with fio, then",
    "nvme_rated_gbps": "look it up in the data sheet of the SSD, then",
    "floor_bytes": "give --model and --hardware that it does not fit, or",
}
# The report of a large model names every tensor that is saved.
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A fact's value, in the unit of the table, and where it comes from."""

    name: str
    value: Scalar
    origin: str

    @property
    def fact(self) -> Fact:
        """The fact's row in the table."""
        return FACTS[self.name]


@dataclass(frozen=True, slots=True)
class FactSheet:
    """Known facts, in the order of the table; a fact that is not here is not known."""

    known: tuple[KnownFact, ...] = ()

    @property
    def values(self) -> dict[str, Scalar]:
        """Values by name."""
        return {fact.name: fact.value for fact in self.known}

    @property
    def unknown(self) -> tuple[Fact, ...]:
        """Facts of the table that are not known."""
        names = self.values
        return tuple(fact for name, fact in FACTS.items() if name not in names)

    def get(self, name: str) -> Scalar | None:
        """Return the value of a fact, None where it is not known; KeyError for what is no fact."""
        if name not in FACTS:
            raise KeyError(name)
        return self.values.get(name)

    def number(self, name: str) -> float | None:
        """Return the number that a fact is; None where it is not known."""
        value = self.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def size(self, name: str) -> int | None:
        """Return a fact that is in bytes or a count as a whole number; None where it is not known."""
        value = self.number(name)
        return None if value is None else int(value)

    def origin(self, name: str) -> str | None:
        """Return where the value of a fact comes from; None where it is not known."""
        return next((fact.origin for fact in self.known if fact.name == name), None)

    def with_facts(self, values: Mapping[str, Scalar], origin: str) -> FactSheet:
        """Return the sheet with ``values`` instead of what it had; sizes that are written out become bytes."""
        merged = {fact.name: fact for fact in self.known}
        merged |= {
            name: KnownFact(name, _amount(FACTS[name], value), origin) for name, value in values.items()
        }
        return FactSheet(tuple(merged[name] for name in FACTS if name in merged))

    def beneath(self, values: Mapping[str, Scalar], origin: str) -> FactSheet:
        """Return the sheet with those of ``values`` that it had nothing for."""
        mine = self.values
        return self.with_facts({name: value for name, value in values.items() if name not in mine}, origin)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Something that takes device memory."""

    what: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """What simulating a model on hardware found beside its facts.

    ``step_bytes`` is the device memory of the optimizer's step, when activations are gone, made up of ``step_parts``,
    of which ``step_temporary_bytes`` are allocated and freed by it. ``peak_at`` says where the peak without a policy
    sits. ``floor_parts`` are alive at the floor: empty where that is the optimizer's step, or was not looked for.
    ``backward_peak_bytes`` is the peak of forward and backward without a policy, and ``least_backward_bytes`` the least
    that a policy brings it to; None where it was not looked for.
    """

    hardware: str
    step_bytes: int
    step_parts: tuple[MemoryPart, ...]
    peak_at: str
    floor_parts: tuple[MemoryPart, ...]
    window_ms: float
    step_temporary_bytes: int = 0
    backward_peak_bytes: int | None = None
    least_backward_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FactsResult:
    """Facts, what else simulating the model found (None where it was not simulated), and what did not work."""

    sheet: FactSheet
    estimate: ModelEstimate | None = None
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class FactFile:
    """Facts out of a file; ``subject`` is what a result was measured on, empty for facts that are no result."""

    path: Path
    facts: Mapping[str, Scalar]
    subject: Mapping[str, Any] = field(default_factory=dict)
    is_bench: bool = False


def format_fact(fact: Fact, value: Scalar) -> str:
    """Write a value for people: sizes in binary units, shares as percentages."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if fact.unit == BYTES:
        return format_size_short(int(value))
    if fact.unit == SHARE:
        return f"{value:.3g} ({value:.3%})" if value and value < 0.01 else f"{value:.3g}"
    amount = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return amount if fact.unit is None else f"{amount} {fact.unit}"


def how_to_know(fact: Fact) -> str:
    """Say how the value of a fact that is not known can be given, or found out."""
    example = f"--fact {fact.name}={typed_value(fact.example)}"
    if fact.name in _WAYS:
        return f"{_WAYS[fact.name]} {example}"
    if fact.source == "machine":
        ways = [
            *(["run this on the machine"] if fact.name in PROBED else []),
            *(["give --hardware"] if fact.name in PROFILED else []),
        ]
        return ", ".join([*ways, f"or {example}"]) if ways else example
    return {
        "model": f"give --model and --hardware, or {example}",
        "configuration": example,
        "measurement": f"measure it, then {example}",
    }[fact.source]


def read_fact_file(path: Path) -> dict[str, Scalar]:
    """Return the facts of a file alone, as `open_fact_file` does."""
    return dict(open_fact_file(path).facts)


def open_fact_file(path: Path, side: str | None = None) -> FactFile:
    """Read facts that ``offload facts --format json`` printed, a JSON mapping of names and values, or a result.

    A result is what ``offload bench`` or ``offload apply`` measured, as a file or as ``--format json`` printed it; of
    several sides of a bench that offload the facts are those of ``side``. A file that ``OFFLOAD_REPORT`` named is read,
    too.

    Raises UnreadableError (ADV901) for a file that is neither, PolicyError (ADV902) for each name or value that the
    table does not have.
    """
    data = _unwrapped(_read_json(path))
    listed = _listed(path, data, side)
    findings = []
    for name, value in listed.items():
        fact = FACTS.get(name)
        wanted = wrong_value(fact, value) if fact is not None else None
        if fact is None:
            message, hint = f"there is no fact {name!r}", fact_hint(name)
        elif wanted is not None:
            message, hint = (
                f"{name} is {wanted}, not {value!r}",
                choice_hint(fact, value) or f"such as {fact.example}",
            )
        else:
            continue
        findings.append(Diagnostic("ADV902", "error", message, file=str(path), hint=hint))
    if findings:
        raise PolicyError(*findings)
    if not is_result(data):
        return FactFile(path, listed)
    return FactFile(path, listed, subject_of_result(data), is_bench(data))


def _read_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if len(content) > MAX_FILE_BYTES:
        raise _unreadable(path, f"it is larger than {format_size_short(MAX_FILE_BYTES)}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        reports = _reports_by_line(content)
        if reports is None:
            raise _unreadable(path, f"it is no JSON: {error}") from error
        return reports


def _reports_by_line(content: bytes) -> list[Any] | None:
    """Return the reports of several models, which stand one on a line; None where they are something else."""
    try:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
    return lines if lines and all(is_report(line) for line in lines) else None


def _unwrapped(data: Any) -> Any:
    """Return the facts or the result in what `offload facts` prints, or in its ``data`` alone; else ``data`` itself."""
    for key in ("data", "facts"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
    return data


def _listed(path: Path, data: Any, side: str | None) -> dict[str, Scalar]:
    """Find names and values in a plain mapping, reports or a result, of a bench those of ``side``."""
    reports = data if isinstance(data, list) else [data]
    are_reports = bool(reports) and all(is_report(report) for report in reports)
    if are_reports or is_result(data):
        try:
            return facts_of_reports(reports) if are_reports else facts_of_result(data, side)
        except ValueError as error:
            reason, _, hint = str(error).partition("; ")
            raise _unreadable(path, reason, hint or None) from error
    if not isinstance(data, dict):
        raise _unreadable(path, "it is no mapping of names and values")
    named: dict[str, Scalar] = {}
    for name, entry in data.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        if not isinstance(value, str | int | float | bool):
            raise _unreadable(path, f"{name!r} is no text, number, true or false")
        named[name] = value
    return named


def _unreadable(path: Path, reason: str, hint: str | None = None) -> UnreadableError:
    hint = (
        hint or 'give the output of `offload facts --format json`, or a JSON mapping such as {"num_gpus": 8}'
    )
    return UnreadableError(Diagnostic("ADV901", "error", f"{path} holds no facts: {reason}", hint=hint))


def _amount(fact: Fact, value: Scalar) -> Scalar:
    return parse_size(value) if fact.unit == BYTES and isinstance(value, str) else value


def typed_value(value: Scalar) -> str:
    """Return a fact's value as ``--fact`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
