"""Predicates as a line of Markdown, for tables that people and agents read."""

from __future__ import annotations

from offload_runtime.predicates import AllOf, AnyOf, Comparison, Not, Predicate, Scalar

__all__ = ["predicate_text"]

_SIGNS = {"is": "is", "lt": "<", "le": "≤", "gt": ">", "ge": "≥", "in": "is one of"}


def predicate_text(predicate: Predicate) -> str:
    """Write a predicate as ``fact`` ≤ value, joined by *and* and *or*."""
    if isinstance(predicate, Comparison):
        values = predicate.value if isinstance(predicate.value, tuple) else (predicate.value,)
        return f"`{predicate.fact}` {_SIGNS[predicate.operator]} {', '.join(map(_scalar, values))}"
    if isinstance(predicate, Not):
        return f"not ({predicate_text(predicate.member)})"
    word = " and " if isinstance(predicate, AllOf) else " or "
    return word.join(
        f"({predicate_text(member)})"
        if isinstance(member, AllOf | AnyOf) and len(predicate.members) > 1
        else predicate_text(member)
        for member in predicate.members
    )


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
