"""Whether a rule matches an activation: keys are AND, members are OR, ``not`` negates one match.

An activation may be known only in part (a policy test says what matters and no more), so the answer is
three-valued: True, False, or the names of the keys on which it hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from offload_runtime.op_classes import OP_CLASSES, class_of_overload
from offload_runtime.policy import Match

ActivationLayout = Literal["contiguous", "dense", "strided"]


@dataclass(frozen=True, slots=True)
class SavedActivation:
    """Describe one alias set that forward saves for backward; what a rule sees.

    ``op`` (``aten.mm.default``), ``module`` (normalised FQN, ``""`` at the root) and ``layer`` are those of
    the last writer; ``num_bytes`` is the storage extent. ``layer`` is 0-based, None in no layer;
    ``num_layers`` None means that this graph cannot know the total. ``layer_path`` is the FQN of the layer
    element (``model.layers.3``), below which ``inside:`` patterns match.
    """

    name: str
    op: str
    op_class: str
    module: str
    layer: int | None
    num_layers: int | None
    num_bytes: int
    dtype: str
    layout: ActivationLayout
    crosses_layer: bool = False
    layer_path: str | None = None

    @property
    def module_inside_layer(self) -> str | None:
        """Return the part of ``module`` below the layer element, None in no layer."""
        if self.layer_path is None:
            return None
        if self.module == self.layer_path:
            return ""
        prefix = f"{self.layer_path}."
        return self.module[len(prefix) :] if self.module.startswith(prefix) else None


ALL_KEYS = frozenset(
    {"op", "op_class", "module", "inside", "layer", "num_layers", "bytes", "dtype", "layout"}
)


class UnknownKeyError(Exception):
    """The answer hangs on something that is not known; ``key`` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def matches(match: Match, activation: SavedActivation, known: frozenset[str] = ALL_KEYS) -> bool:
    """Tell whether ``activation`` fits every key of ``match``.

    ``known`` holds the facts of the activation that may be looked at. Raises UnknownKeyError when the keys
    that can be judged all fit and another cannot be judged.
    """
    unknown: str | None = None
    for key_matches in _KEY_TESTS:
        try:
            if not key_matches(match, activation, known):
                return False
        except UnknownKeyError as error:
            unknown = unknown or error.key
    if unknown is not None:
        raise UnknownKeyError(unknown)
    return True


def _need(key: str, known: frozenset[str]) -> None:
    if key not in known:
        raise UnknownKeyError(key)


def _op_matches(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if not match.op:
        return True
    if "op_class" in known and activation.op_class in match.op:
        return True
    if "op" in known and activation.op in match.op:
        return True
    if any(op in OP_CLASSES for op in match.op):
        _need("op_class", known)
    if any(op not in OP_CLASSES and _may_be_of_class(op, activation, known) for op in match.op):
        _need("op", known)
    return False


def _may_be_of_class(overload: str, activation: SavedActivation, known: frozenset[str]) -> bool:
    """Tell whether an activation of which only the class is known may come from ``overload``."""
    if "op" in known or "op_class" not in known:
        return True
    return class_of_overload(overload) in (None, activation.op_class)


def _layers_match(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if not match.layers:
        return True
    _need("layer", known)
    unknown = False
    for layers in match.layers:
        if layers.needs_num_layers and activation.layer is not None and activation.num_layers is None:
            unknown = True
        elif layers.contains(activation.layer, activation.num_layers):
            return True
    if unknown:
        raise UnknownKeyError("num_layers")
    return False


def _module_matches(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if not match.module:
        return True
    unknown: str | None = None
    for pattern in match.module:
        key = "inside" if pattern.inside else "module"
        if key not in known:
            unknown = key
            continue
        name = activation.module_inside_layer if pattern.inside else activation.module
        if name is not None and pattern.glob.matches(name):
            return True
    if unknown is not None:
        raise UnknownKeyError(unknown)
    return False


def _inside_matches(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if not match.inside:
        return True
    _need("inside", known)
    name = activation.module_inside_layer
    return name is not None and any(glob.matches(name) for glob in match.inside)


def _bytes_match(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if match.bytes is None:
        return True
    _need("bytes", known)
    return match.bytes.contains(activation.num_bytes)


def _layout_matches(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if match.layout == "any":
        return True
    _need("layout", known)
    return activation.layout in (("contiguous",) if match.layout == "contiguous" else ("contiguous", "dense"))


def _dtype_matches(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    if not match.dtype:
        return True
    _need("dtype", known)
    return activation.dtype in match.dtype


def _not_negated(match: Match, activation: SavedActivation, known: frozenset[str]) -> bool:
    return match.negated is None or not matches(match.negated, activation, known)


_KEY_TESTS: tuple[Callable[[Match, SavedActivation, frozenset[str]], bool], ...] = (
    _op_matches,
    _layers_match,
    _module_matches,
    _inside_matches,
    _bytes_match,
    _layout_matches,
    _dtype_matches,
    _not_negated,
)
