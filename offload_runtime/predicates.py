"""Predicates over named facts: the grammar of a policy's ``requires`` and of a card's conditions.

::

    predicate  = {all: [predicate, ...]} | {any: [predicate, ...]} | {not: predicate}
               | {fact: name, OPERATOR: value}
    OPERATOR   = is | lt | le | gt | ge | in

Structured values only, never expression strings: nothing written in a file is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from offload_runtime.errors import NOWHERE, Span
from offload_runtime.units import parse_size

Operator = Literal["is", "lt", "le", "gt", "ge", "in"]
Scalar = str | int | float | bool
OPERATORS: tuple[Operator, ...] = ("is", "lt", "le", "gt", "ge", "in")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compare the fact ``fact`` with ``value``; ``in`` takes a tuple of scalars."""

    fact: str
    operator: Operator
    value: Scalar | tuple[Scalar, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every member holds."""

    members: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one member holds."""

    members: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The member does not hold."""

    member: Predicate


Predicate = Comparison | AllOf | AnyOf | Not


def evaluate(predicate: Predicate, facts: Mapping[str, Scalar]) -> bool | None:
    """Return whether ``predicate`` holds; None when that hangs on a fact that is not in ``facts``.

    Raises ValueError when a fact and the value it is compared with have no order between them.
    """
    if isinstance(predicate, Not):
        inner = evaluate(predicate.member, facts)
        return None if inner is None else not inner
    if isinstance(predicate, Comparison):
        return _compare(predicate, facts[predicate.fact]) if predicate.fact in facts else None
    results = [evaluate(member, facts) for member in predicate.members]
    decisive = isinstance(predicate, AnyOf)
    if decisive in results:
        return decisive
    return None if None in results else not decisive


def comparisons(predicate: Predicate) -> tuple[Comparison, ...]:
    """Return every comparison inside ``predicate``, in the order written."""
    if isinstance(predicate, Comparison):
        return (predicate,)
    members = (predicate.member,) if isinstance(predicate, Not) else predicate.members
    return tuple(c for member in members for c in comparisons(member))


def _compare(comparison: Comparison, fact: Scalar) -> bool:
    value = comparison.value
    if isinstance(value, tuple):
        return any(_equal(fact, member) for member in value)
    if comparison.operator == "is":
        return _equal(fact, value)
    left, right = _number(fact), _number(value)
    if left is None or right is None:
        raise ValueError(f"fact {comparison.fact!r} is {fact!r}, which has no order with {value!r}")
    match comparison.operator:
        case "lt":
            return left < right
        case "le":
            return left <= right
        case "gt":
            return left > right
    return left >= right


def _equal(fact: Scalar, value: Scalar) -> bool:
    if isinstance(fact, bool) or isinstance(value, bool):
        return fact is value
    left, right = _number(fact), _number(value)
    return left == right if left is not None and right is not None else fact == value


def _number(value: Scalar) -> float | None:
    """Read a number or a size (``8GiB``, in bytes); None when ``value`` is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return parse_size(value)
    except ValueError:
        return None
