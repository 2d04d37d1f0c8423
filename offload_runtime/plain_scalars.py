"""What an unquoted YAML scalar means, and which ones are refused because readers disagree about them.

Accepted: text; ``true`` and ``false``; numbers as JSON writes them (and ``1e9``, which YAML 1.1 reads as
text). Refused: whatever some reader of YAML 1.1 or 1.2 takes for something else than another does, or for
nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from offload_runtime.document import Scalar

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?(0|[1-9][0-9]*))?\Z")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_NUMBER_LIKE = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+"
    r"|(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?)\Z"
)
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-9_]+)+(\.[0-9_]*)?\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?\Z", re.DOTALL)
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)\Z", re.IGNORECASE)

_TRUE_WORDS = {"y", "yes", "on", "true"}
_FALSE_WORDS = {"n", "no", "off", "false"}
_MAX_DIGITS = 40


@dataclass(frozen=True, slots=True)
class Refusal:
    """Say why a scalar is refused and how to write it instead."""

    code: str
    message: str
    hint: str


def resolve_plain(text: str) -> Scalar | Refusal:
    """Return what the unquoted scalar ``text`` means, or why it is refused."""
    if text == "true":
        return True
    if text == "false":
        return False
    refusal = _refused_word(text)
    if refusal is not None:
        return refusal
    if _NUMBER.match(text):
        return _number(text)
    return _refused_number(text) or text


def _refused_word(text: str) -> Refusal | None:
    lowered = text.lower()
    if lowered in _TRUE_WORDS | _FALSE_WORDS and text in (lowered, lowered.capitalize(), lowered.upper()):
        word = "true" if lowered in _TRUE_WORDS else "false"
        return Refusal(
            "YAML030",
            f"{text!r} is a boolean to some readers and text to others",
            f"write {word}, or quote it if text is meant",
        )
    if text in ("", "~", "null", "Null", "NULL"):
        what = f"{text!r} is a null, which no key takes" if text else "a value is missing here"
        return Refusal("YAML034", what, "give a value, or leave the key out")
    if text in ("=", "<<"):
        return Refusal("YAML036", f"{text!r} has a special meaning to some readers", f'quote it: "{text}"')
    if _NOT_FINITE.match(text):
        return Refusal(
            "YAML035", f"{text!r} is not a finite number", "write a number, or unlimited where that is meant"
        )
    if _DATE.match(text):
        return Refusal(
            "YAML033", f"{text!r} is a date to some readers and text to others", f'quote it: "{text}"'
        )
    return None


def _number(text: str) -> int | float | Refusal:
    if len(text) > _MAX_DIGITS:
        return Refusal(
            "YAML031", f"a number of {len(text)} characters is longer than readers agree on", "shorten it"
        )
    if text == "-0":
        return Refusal("YAML031", "'-0' is an integer to some readers and a float to others", "write 0")
    if _INTEGER.match(text):
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return Refusal("YAML035", f"{text!r} is too large for a float", "write a smaller number")
    return value


def _refused_number(text: str) -> Refusal | None:
    if _SEXAGESIMAL.match(text):
        return Refusal(
            "YAML032",
            f"{text!r} is a base-60 number to some readers and text to others",
            f'quote it: "{text}"',
        )
    if not _NUMBER_LIKE.match(text):
        return None
    return Refusal(
        "YAML031",
        f"{text!r} is read as different numbers, or as text, by different readers",
        _number_cure(text),
    )


def _number_cure(text: str) -> str:
    sign = "-" if text.startswith("-") else ""
    body = text.lstrip("+-").replace("_", "").lower()
    quoted = f'or quote it if text is meant: "{text}"'
    if re.match(r"0[xob]", body):
        try:
            return f"write {sign}{int(body, 0)}, {quoted}"
        except ValueError:
            return quoted.removeprefix("or ")
    if re.fullmatch(r"0[0-7]+", body):
        decimal, octal = body.lstrip("0") or "0", int(body, 8)
        return f"write {sign}{decimal} (or {octal}, if octal was meant), {quoted}"
    try:
        value = float(body)
    except ValueError:
        return quoted.removeprefix("or ")
    plain = repr(int(value)) if value.is_integer() and value < 1e15 else repr(value)
    return f"write {sign}{plain}, {quoted}"
