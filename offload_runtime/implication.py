"""Whether one match implies another, key by key: what tells that a rule can never decide.

Sound, not complete: True is certain for every model; False may only mean that the keys do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from offload_runtime.op_classes import OP_CLASSES, class_of_overload
from offload_runtime.patterns import Glob, LayerRange
from offload_runtime.policy import Layout, Match, ModulePattern

# Longer lists are compared as a whole only, so that a policy of many long lists is still checked at once.
MAX_COMPARISONS = 64

T = TypeVar("T")
_LAYOUT_ORDER: tuple[Layout, ...] = ("contiguous", "dense", "any")


def implies(narrow: Match, wide: Match) -> bool:
    """Tell whether whatever fits ``narrow`` is known to fit ``wide``."""
    return (
        _ops_imply(narrow, wide)
        and _layers_imply(narrow, wide)
        and _modules_imply(narrow, wide)
        and _insides_imply(narrow, wide)
        and (wide.bytes is None or (narrow.bytes is not None and wide.bytes.covers(narrow.bytes)))
        and _LAYOUT_ORDER.index(narrow.layout) <= _LAYOUT_ORDER.index(wide.layout)
        and (not wide.dtype or (bool(narrow.dtype) and set(narrow.dtype) <= set(wide.dtype)))
        and (wide.negated is None or _excludes(narrow, wide.negated))
    )


def fits_nothing(match: Match) -> str | None:
    """Say why no tensor can fit ``match``, None when one might."""
    negated = match.negated
    if negated is not None and implies(_without_negation(match), negated):
        return "the match and its not: exclude each other"
    outside = bool(match.layers) and all(layers.outside for layers in match.layers)
    below_layer = match.inside or (match.module and all(pattern.inside for pattern in match.module))
    if outside and below_layer:
        return "layers: outside and a pattern inside the layer exclude each other"
    return None


def _excludes(match: Match, other: Match) -> bool:
    """Tell whether nothing that fits ``match`` fits ``other``, by what ``match`` negates."""
    return match.negated is not None and implies(other, match.negated)


def _without_negation(match: Match) -> Match:
    return Match(match.op, match.layers, match.module, match.inside, match.bytes, match.layout, match.dtype)


def _ops_imply(narrow: Match, wide: Match) -> bool:
    if not wide.op:
        return True
    return bool(narrow.op) and all(
        op in wide.op or (op not in OP_CLASSES and class_of_overload(op) in wide.op) for op in narrow.op
    )


def _layers_imply(narrow: Match, wide: Match) -> bool:
    return _each_covered(narrow.layers, wide.layers, LayerRange.covers)


def _modules_imply(narrow: Match, wide: Match) -> bool:
    if any(not pattern.inside and pattern.glob.text == "**" for pattern in wide.module):
        return True
    return _each_covered(narrow.module, wide.module, _covers)


def _covers(wide: ModulePattern, narrow: ModulePattern) -> bool:
    return wide.inside == narrow.inside and wide.glob.covers(narrow.glob)


def _insides_imply(narrow: Match, wide: Match) -> bool:
    return _each_covered(narrow.inside, wide.inside, Glob.covers)


def _each_covered(narrow: Sequence[T], wide: Sequence[T], covers: Callable[[T, T], bool]) -> bool:
    """Tell whether each member of ``narrow`` is covered by one of ``wide``; an empty ``wide`` covers all."""
    if not wide or narrow == wide:
        return True
    if not narrow or len(narrow) * len(wide) > MAX_COMPARISONS:
        return False
    return all(any(covers(w, n) for w in wide) for n in narrow)
