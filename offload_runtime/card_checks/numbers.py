"""Numbers of a card, derived again from the result files that they came from.

A number on a card holds when the derived one rounds to it at the digits that the card gives.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from offload_runtime.card import Card, Expression, Figure, FileEvidence
from offload_runtime.findings import Findings

__all__ = ["ResultFiles", "UnderivableError", "check_numbers", "derive", "resolve_pointer", "rounds_to"]


class UnderivableError(ValueError):
    """A number does not follow from its result file: a pointer leads nowhere, or to something else."""


@dataclass(slots=True)
class ResultFiles:
    """The result files below ``root``, each read once."""

    root: Path
    _read: dict[str, Any] = field(default_factory=dict)

    def read(self, file: str) -> Any:
        """Return the data of a file; raises UnderivableError where it is not there or no JSON."""
        if file not in self._read:
            try:
                self._read[file] = json.loads((self.root / file).read_text("utf-8"))
            except FileNotFoundError:
                raise UnderivableError(f"there is no file {file}") from None
            except (OSError, ValueError) as error:
                raise UnderivableError(f"{file} cannot be read: {error}") from None
        return self._read[file]


def check_numbers(card: Card, files: ResultFiles, findings: Findings) -> int:
    """Derive every number of ours again; returns how many numbers there were, spreads and counts included."""
    num_checked = 0
    for figure, evidence in card.figures():
        try:
            data = files.read(evidence.file)
        except UnderivableError as error:
            findings.add(evidence.span, "CRD201", str(error), "correct the file's name, or measure again")
            continue
        for name, stated, expression, scale in _parts(figure, evidence):
            num_checked += 1
            _check(name, stated, expression, scale, data, figure, evidence, findings)
    return num_checked


def _parts(figure: Figure, evidence: FileEvidence) -> list[tuple[str, float, Expression, float]]:
    """List what a figure states: a name, the number, how it follows, and its scale."""
    parts = [("value", figure.value, evidence.value, evidence.scale)]
    if figure.num_samples is not None and evidence.num_samples is not None:
        parts.append(("num_samples", figure.num_samples, evidence.num_samples, 1.0))
    if figure.spread is not None and evidence.min is not None and evidence.max is not None:
        parts.append(("spread.min", figure.spread.min, evidence.min, evidence.scale))
        parts.append(("spread.max", figure.spread.max, evidence.max, evidence.scale))
    return parts


def _check(
    name: str,
    stated: float,
    expression: Expression,
    scale: float,
    data: Any,
    figure: Figure,
    evidence: FileEvidence,
    findings: Findings,
) -> None:
    try:
        derived = derive(expression, data) * scale
    except UnderivableError as error:
        hint = "correct the pointer, or measure again"
        findings.add(evidence.span, "CRD202", f"{name}: {evidence.file}: {error}", hint)
        return
    if not rounds_to(derived, stated):
        message = f"{name} is {stated:.15g} here, and {derived:.15g} by {evidence.file}"
        findings.add(figure.span, "CRD203", message, "write what the file gives, or find out why it changed")


def derive(expression: Expression, data: Any) -> float:
    """Return the number that ``expression`` says, from the data of a result file.

    Raises UnderivableError for a pointer that leads nowhere or to no number, and for a division by zero.
    """
    values = [resolve_pointer(data, pointer) for pointer in expression.pointers]
    match expression.operation:
        case "pointer":
            return _number(values[0], expression.pointers[0])
        case "count":
            if not isinstance(values[0], list | dict):
                raise UnderivableError(f"{expression.pointers[0]} is no list")
            return len(values[0])
        case "median":
            return float(statistics.median(_numbers(values[0], expression.pointers[0])))
        case "min":
            return min(_numbers(values[0], expression.pointers[0]))
        case "max":
            return max(_numbers(values[0], expression.pointers[0]))
    p, q = (_number(value, at) for value, at in zip(values, expression.pointers, strict=True))
    if expression.operation == "difference":
        return p - q
    if q == 0:
        raise UnderivableError(f"{expression.pointers[1]} is 0, and nothing can be divided by it")
    return p / q if expression.operation == "ratio" else 1 - p / q


def resolve_pointer(data: Any, pointer: str) -> Any:
    """Return what a JSON pointer (RFC 6901) leads to; raises UnderivableError where it leads nowhere."""
    value = data
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise UnderivableError(f"{pointer} leads nowhere, there is no {key!r}")
    return value


def rounds_to(derived: float, stated: float) -> bool:
    """Tell whether ``derived`` is ``stated`` at the digits that ``stated`` is written with."""
    exponent = Decimal(repr(stated)).as_tuple().exponent
    assert isinstance(exponent, int), "a number of a file is finite"
    half = 0.5 * 10.0 ** min(exponent, 0)
    return abs(derived - stated) <= half * (1 + 1e-9)


def _number(value: Any, pointer: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnderivableError(f"{pointer} is no number")
    return value


def _numbers(value: Any, pointer: str) -> list[float]:
    if not isinstance(value, list) or not value:
        raise UnderivableError(f"{pointer} is no list of numbers")
    return [_number(member, pointer) for member in value]
