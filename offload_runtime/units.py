"""Sizes and percentages as people write them: ``12GiB``, ``5GB``, ``0B``, ``75%``.

Grammar::

    size    = number [" "] unit
    number  = ("0" | nonzero digit*) ["." digit+]
    unit    = "B" | ("K" | "M" | "G" | "T" | "P") ["i"] "B"
    percent = number "%"

``KiB`` is 1024 bytes and ``KB`` is 1000. Units are spelled exactly so; a number without one is refused,
because nobody can tell later which was meant.
"""

from __future__ import annotations

import re
from fractions import Fraction

UNIT_BYTES: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
SIZE_PATTERN = r"^(0|[1-9][0-9]{0,19})(\.[0-9]{1,9})? ?(B|[KMGTP]i?B)$"
PERCENT_PATTERN = r"^(0|[1-9][0-9]{0,2})(\.[0-9]{1,9})?%$"

_SIZE = re.compile(SIZE_PATTERN.replace("$", r"\Z"))
_PERCENT = re.compile(PERCENT_PATTERN.replace("$", r"\Z"))
_ALMOST_SIZE = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*\Z")


def parse_size(text: str) -> int:
    """Return the number of bytes that ``text`` names.

    Raises ValueError, with the cure in its message, when ``text`` is no size or not a whole number of bytes.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; {size_hint(text)}")
    whole, fraction, unit = match.groups()
    num_bytes = Fraction(whole + (fraction or "")) * UNIT_BYTES[unit]
    if num_bytes.denominator != 1:
        smaller = f", such as {int(num_bytes) >> 20}MiB" if num_bytes >= 1 << 20 else ""
        raise ValueError(f"{text!r} is not a whole number of bytes; use a smaller unit{smaller}")
    return int(num_bytes)


def parse_percent(text: str) -> Fraction:
    """Return the share that ``text`` (such as ``75%``) names, exact: ``12.5%`` is 1/8.

    Raises ValueError when ``text`` is no percentage.
    """
    match = _PERCENT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage; write a number and %, such as 5%")
    return Fraction(text[:-1]) / 100


def format_size(num_bytes: int) -> str:
    """Write ``num_bytes`` exactly, in the largest unit that keeps the number whole: ``12GiB``, ``10GB``."""
    candidates = [(num_bytes // scale, unit) for unit, scale in UNIT_BYTES.items() if num_bytes % scale == 0]
    number, unit = min(candidates, key=lambda c: (len(str(c[0])), -UNIT_BYTES[c[1]]))
    return f"{number}{unit}" if num_bytes else "0B"


def format_size_short(num_bytes: int) -> str:
    """Write ``num_bytes`` for reading, to three figures, in binary units: ``11.8 GiB``."""
    number, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(number) < 1024:
            break
        number, unit = number / 1024, larger
    if unit == "B":
        return f"{num_bytes} B"
    return f"{number:.0f} {unit}" if abs(number) >= 999.5 else f"{number:.3g} {unit}"


def format_percent(share: Fraction) -> str:
    """Write ``share`` as a percentage: 3/4 as ``75%``; exact for shares that a percentage can name."""
    percent = share * 100
    if percent.denominator == 1:
        return f"{percent.numerator}%"
    return f"{float(percent):.9f}".rstrip("0") + "%"


def size_hint(value: object) -> str:
    """Say how to write ``value`` as a size."""
    general = "write a number and a unit, such as 12GiB (2**30 bytes each) or 12GB (10**9)"
    if isinstance(value, bool):
        return general
    if isinstance(value, int | float):
        if value == 0:
            return "write 0B"
        if value > 0 and float(value).is_integer():
            return _bare_number_hint(int(value))
        return general
    match = _ALMOST_SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        return general
    number, unit = match.groups()
    number = number.replace("_", "").replace(",", "").rstrip(".")
    number = f"0{number}" if number.startswith(".") else number
    number = number.lstrip("0") or "0" if "." not in number else number
    if not unit:
        if "." in number:
            return f"a bare number has no unit: write {number}GiB or {number}GB"
        return _bare_number_hint(int(number)) if number != "0" else "write 0B"
    exact = {spelled.lower(): spelled for spelled in UNIT_BYTES}
    letter = unit[0].upper()
    if unit.lower() in exact:
        return f"did you mean {number}{exact[unit.lower()]}?"
    if letter in "KMGTP":
        return f"did you mean {number}{letter}iB (binary) or {number}{letter}B (decimal)?"
    return general


def _bare_number_hint(number: int) -> str:
    """Suggest gigabytes for a small number, the same bytes with a unit for a large one."""
    if number < 1 << 16:
        return f"a bare number has no unit: write {number}GiB or {number}GB"
    return f"a bare number has no unit: write {format_size(number)} if bytes were meant"
