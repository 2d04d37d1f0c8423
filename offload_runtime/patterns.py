"""The two small languages inside a rule: module globs and layer ranges.

Module glob, anchored at both ends, over dot-separated names::

    glob    = segment ("." segment)*
    segment = "**"                    any number of segments, also none
            | (character | "*")+      "*" is any run of characters inside one segment; alone, one whole
            segment

Layer range, a Python slice over layer ids (0-based), or the word for everything in no layer::

    layers = index | [bound] ":" [bound] [":" step] | "outside"
    bound  = ["-"] digits | percent   a percentage of the number of layers, rounded down
    step   = digits, at least 1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from offload_runtime.units import format_percent, parse_percent

OUTSIDE = "outside"

_SEGMENT = r"[^\s.?\[\]{}()|^$+\\/:]+"
GLOB_PATTERN = rf"^{_SEGMENT}(\.{_SEGMENT})*$"
_BOUND = r"(-?[0-9]{1,6}|[0-9]{1,3}(\.[0-9]{1,9})?%)"
LAYERS_PATTERN = rf"^(outside|-?[0-9]{{1,6}}|{_BOUND}?:{_BOUND}?(:([0-9]{{1,6}})?)?)$"

_GLOB = re.compile(GLOB_PATTERN[:-1] + r"\Z")
_LAYERS = re.compile(LAYERS_PATTERN[:-1] + r"\Z")


@dataclass(frozen=True, slots=True)
class Glob:
    """An anchored pattern over module names; see the grammar above."""

    text: str

    def matches(self, name: str) -> bool:
        """Tell whether the whole of ``name`` (``""`` at the root) fits the pattern."""
        return _glob_matches(self.text, name)

    def covers(self, other: Glob) -> bool:
        """Tell whether every name that ``other`` matches is known to match this pattern.

        True is certain; False may also mean "not provable segment by segment".
        """
        return _segments_cover(tuple(self.text.split(".")), tuple(other.text.split(".")))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class LayerRange:
    """A slice over layer ids, or (``outside``) everything that lies in no layer.

    A bound is an int, or a Fraction of the number of layers, rounded down. A single index is ``single``.
    """

    start: int | Fraction | None = None
    stop: int | Fraction | None = None
    step: int = 1
    single: bool = False
    outside: bool = False

    @property
    def needs_num_layers(self) -> bool:
        """Tell whether the range means something only when the number of layers is known."""
        return any(isinstance(b, Fraction) or (b is not None and b < 0) for b in (self.start, self.stop))

    def contains(self, layer: int | None, num_layers: int | None) -> bool:
        """Tell whether ``layer`` (None: in no layer) lies in the range.

        Raises ValueError when that hangs on an unknown ``num_layers``.
        """
        if self.outside or layer is None:
            return self.outside and layer is None
        if self.needs_num_layers and num_layers is None:
            raise ValueError(
                f"layers {str(self)!r} is relative to the number of layers, which is not known here"
            )
        total = num_layers if num_layers is not None else layer + 1
        if self.single:
            index = _resolve(self.start, total)
            return index is not None and layer == (index + total if index < 0 else index)
        stop = self.stop if num_layers is not None or self.stop is None else min(int(self.stop), total)
        return layer in range(
            *slice(_resolve(self.start, total), _resolve(stop, total), self.step).indices(total)
        )

    def covers(self, other: LayerRange) -> bool:
        """Tell whether every layer in ``other`` lies in this range, whatever the number of layers."""
        if self == other:
            return True
        if self.outside or other.outside or self.single or self.step != 1:
            return False
        if self.start is None and self.stop is None:
            return True
        if other.single:
            start, stop = other.start, None if other.start is None or other.start < 0 else other.start + 1
        else:
            start, stop = other.start, other.stop
        return _at_most(self.start or 0, start or 0) and (self.stop is None or _at_most(stop, self.stop))

    def __str__(self) -> str:
        if self.outside:
            return OUTSIDE
        if self.single:
            return _format_bound(self.start)
        step = f":{self.step}" if self.step != 1 else ""
        return f"{_format_bound(self.start)}:{_format_bound(self.stop)}{step}"


def parse_glob(text: str) -> Glob:
    """Read a module glob; raises ValueError with the cure in its message."""
    if not text:
        raise ValueError("an empty pattern matches nothing; '**' matches every module")
    if text.startswith(".") or text.endswith(".") or ".." in text:
        raise ValueError(f"{text!r} has an empty segment; write '*' for one segment or '**' for any number")
    if "/" in text:
        raise ValueError(f"{text!r}: module names are separated by dots, not slashes")
    if not _GLOB.match(text):
        raise ValueError(
            f"{text!r} is not a module pattern: only '*' (one segment) and '**' (any number) are special"
        )
    if any("**" in segment and segment != "**" for segment in text.split(".")):
        raise ValueError(
            f"{text!r}: '**' stands for whole segments; put dots around it, such as **.attention.**"
        )
    return Glob(text)


def parse_layers(text: str) -> LayerRange:
    """Read a layer range; raises ValueError with the cure in its message."""
    if text == OUTSIDE:
        return LayerRange(outside=True)
    if not _LAYERS.match(text):
        raise ValueError(
            f"{text!r} is not a range of layers; write a Python slice such as ':8', '-4:' or '25%:75%', "
            f"one layer such as '3', or '{OUTSIDE}'"
        )
    if ":" not in text:
        return LayerRange(start=int(text), single=True)
    bounds = text.split(":")
    step = int(bounds[2]) if len(bounds) == 3 and bounds[2] else 1
    if step < 1:
        raise ValueError(f"{text!r} has step 0; a step is at least 1")
    layers = LayerRange(_parse_bound(bounds[0]), _parse_bound(bounds[1]), step)
    if _is_empty(layers):
        raise ValueError(f"{text!r} selects no layer, however many there are; correct its bounds")
    return layers


def _parse_bound(text: str) -> int | Fraction | None:
    if not text:
        return None
    if not text.endswith("%"):
        return int(text)
    share = parse_percent(text)
    if share > 1:
        raise ValueError(f"{text!r} is more than all layers; a percentage is at most 100%")
    return share


def _resolve(bound: int | Fraction | None, num_layers: int) -> int | None:
    return bound * num_layers // 1 if isinstance(bound, Fraction) else bound


def _format_bound(bound: int | Fraction | None) -> str:
    if bound is None:
        return ""
    return format_percent(bound) if isinstance(bound, Fraction) else str(bound)


def _is_empty(layers: LayerRange) -> bool:
    """Tell whether no number of layers gives the range a member."""
    start, stop = layers.start, layers.stop
    if stop == 0:
        return True
    if start is None or stop is None:
        return isinstance(start, Fraction) and start == 1
    comparable = isinstance(start, Fraction) == isinstance(stop, Fraction) and (start < 0) == (stop < 0)
    return comparable and start >= stop


def _at_most(low: int | Fraction | None, high: int | Fraction | None) -> bool:
    """Tell whether ``low <= high`` for every number of layers."""
    if low is None or high is None:
        return False
    if low == 0 and high >= 0:
        return True
    same_kind = isinstance(low, Fraction) == isinstance(high, Fraction) and (low < 0) == (high < 0)
    return low == high or (same_kind and low <= high)


@lru_cache(maxsize=65536)
def _glob_matches(pattern: str, name: str) -> bool:
    segments = name.split(".") if name else []
    return _wildcard_match(pattern.split("."), segments, "**", _segment_matches)


def _segment_matches(pattern: str, segment: str) -> bool:
    if pattern == "*":
        return True
    return pattern == segment or _wildcard_match(pattern, segment, "*", str.__eq__)


def _wildcard_match(
    pattern: Sequence[str], items: Sequence[str], star: str, fits: Callable[[str, str], bool]
) -> bool:
    """Match in at most ``len(pattern) * len(items)`` steps: only the last star ever has to be widened."""
    at_pattern = at_item = 0
    last_star, resume_item = -1, 0
    while at_item < len(items):
        if at_pattern < len(pattern) and pattern[at_pattern] == star:
            last_star, resume_item = at_pattern, at_item
            at_pattern += 1
        elif at_pattern < len(pattern) and fits(pattern[at_pattern], items[at_item]):
            at_pattern, at_item = at_pattern + 1, at_item + 1
        elif last_star >= 0:
            resume_item += 1
            at_pattern, at_item = last_star + 1, resume_item
        else:
            return False
    return all(rest == star for rest in pattern[at_pattern:])


@lru_cache(maxsize=4096)
def _segments_cover(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Compare segment by segment; ``**`` in the wide pattern eats any segments of the narrow one."""
    reachable = [[False] * (len(narrow) + 1) for _ in range(len(wide) + 1)]
    reachable[0][0] = True
    for i, segment in enumerate(wide, start=1):
        for j in range(len(narrow) + 1):
            if segment == "**":
                reachable[i][j] = reachable[i - 1][j] or (j > 0 and reachable[i][j - 1])
            elif j > 0 and reachable[i - 1][j - 1] and narrow[j - 1] != "**":
                reachable[i][j] = _segment_covers(segment, narrow[j - 1])
    return reachable[-1][-1]


def _segment_covers(wide: str, narrow: str) -> bool:
    return wide in ("*", narrow) or ("*" not in narrow and _segment_matches(wide, narrow))
