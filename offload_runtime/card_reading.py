"""From a document of ``kind: SkillCard`` to the typed card, with every finding at its line.

What the file can be judged by alone is judged here: its shape, the facts that its conditions name, and whether the
examples beside a condition decide it as they say. What it says about other files is for
:mod:`offload_runtime.card_checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from offload_runtime.card import (
    DIMENSIONS,
    Assumption,
    Card,
    Claim,
    Condition,
    Dimension,
    Evidence,
    Expression,
    FailureMode,
    Figure,
    FileEvidence,
    FollowUp,
    Interactions,
    MeasuredResult,
    SourceEvidence,
    Spread,
    SymbolEvidence,
)
from offload_runtime.card_conditions import check_conditions
from offload_runtime.codes import CODES
from offload_runtime.document import Document, ListNode, MapNode, Node, ScalarNode, document_from_data
from offload_runtime.errors import NOWHERE, Diagnostic, Span, sorted_diagnostics
from offload_runtime.findings import Findings, raise_errors
from offload_runtime.policy_reading import read_predicate
from offload_runtime.predicates import Scalar
from offload_runtime.shape import check_shape, did_you_mean, load_schema
from offload_runtime.strict_yaml import read_yaml_file

__all__ = ["CardReading", "load_card", "read_card"]


@dataclass(frozen=True, slots=True)
class CardReading:
    """What could be read, and what was found; ``card`` is None where its shape is not that of a card."""

    card: Card | None
    diagnostics: tuple[Diagnostic, ...]


def load_card(source: str | Path | Mapping[str, Any]) -> Card:
    """Load the card in a file or in plain data.

    Raises UnreadableError for what cannot be read, PolicyError with every finding for what says something wrong.
    """
    document = document_from_data(source) if isinstance(source, Mapping) else read_yaml_file(Path(source))
    reading = read_card(document)
    raise_errors(reading.diagnostics)
    assert reading.card is not None
    return reading.card


def read_card(document: Document) -> CardReading:
    """Read a document; findings are returned, never raised."""
    findings = Findings(list(document.diagnostics))
    root, failures = check_shape(document.root, load_schema("card"))
    findings.diagnostics += failures
    card = None
    if isinstance(root, MapNode) and not findings.num_errors:
        card = _card(root)
        check_conditions(card, findings)
        _check_figures(card, findings)
        _check_codes(card, findings)
    return CardReading(card, sorted_diagnostics(findings.diagnostics))


def _check_figures(card: Card, findings: Findings) -> None:
    """Find numbers whose count or spread nothing backs, and claims that do not state their number."""
    for figure, evidence in card.figures():
        if (figure.num_samples or 1) > 1 and evidence.num_samples is None:
            hint = "add num_samples: a pointer to the count, or {count: pointer} of the list of measurements"
            findings.add(evidence.span, "CRD102", f"nothing backs num_samples: {figure.num_samples}", hint)
        if figure.spread is not None and (evidence.min is None or evidence.max is None):
            hint = "add min and max, such as min: {min: /ratio_by_round}"
            findings.add(evidence.span, "CRD102", "nothing backs the spread", hint)
    for claim in card.claims:
        if claim.figure is not None and not _states(claim.text, claim.figure.value):
            message = f"the text of the claim does not state its number, {claim.figure.value:.15g}"
            findings.add(claim.span, "CRD103", message, "write the number into the text, as value has it")


def _check_codes(card: Card, findings: Findings) -> None:
    for mode in card.failure_modes:
        if mode.code is not None and mode.code not in CODES:
            hint = did_you_mean(mode.code, CODES) or "`offload codes` lists them"
            findings.add(mode.code_span, "CRD104", f"there is no diagnostic code {mode.code}", hint)


def _states(text: str, value: float) -> bool:
    return f"{value:.15g}" in text.replace(",", "")


# From nodes to values


def _card(root: MapNode) -> Card:
    interactions = _mapping(root, "interactions")
    dimensions = _mapping(root, "training_dimensions")
    return Card(
        name=_text(root, "name"),
        title=_text(root, "title"),
        summary=_text(root, "summary"),
        applies_to=_conditions(root, "applies_to"),
        enable_when=_conditions(root, "enable_when"),
        avoid_when=_conditions(root, "avoid_when"),
        interactions=Interactions(
            required=_conditions(interactions, "required"),
            permitted=_conditions(interactions, "permitted"),
            conditional=_conditions(interactions, "conditional"),
            incompatible=_conditions(interactions, "incompatible"),
        ),
        training_dimensions={name: _dimension(_mapping(dimensions, name)) for name in DIMENSIONS},
        measured_results=tuple(_measured_result(node) for node in _members(root, "measured_results")),
        failure_modes=tuple(_failure_mode(node) for node in _members(root, "failure_modes")),
        known_limitations=tuple(_texts(root.get("known_limitations"))),
        follow_up_validation=tuple(_follow_up(node) for node in _members(root, "follow_up_validation")),
        claims=tuple(_claim(node) for node in _members(root, "claims")),
        mechanism=cast(Any, _optional(root, "mechanism")),
        next_command=_optional(root, "next_command"),
        spans={key: value.span for key, value in root.entries.items()},
    )


def _conditions(node: MapNode, key: str) -> tuple[Condition, ...]:
    return tuple(_condition(member) for member in _members(node, key))


def _condition(node: MapNode) -> Condition:
    when, given = node.get("when"), node.get("given")
    return Condition(
        text=_text(node, "text"),
        when=None if when is None else read_predicate(when),
        holds=_facts(node, "holds"),
        fails=_facts(node, "fails"),
        given=None if given is None else read_predicate(given),
        span=node.span,
    )


def _facts(node: MapNode, key: str) -> dict[str, Scalar]:
    entries = _mapping(node, key).entries
    return {name: value.value for name, value in entries.items() if isinstance(value, ScalarNode)}


def _dimension(node: MapNode) -> Dimension:
    return Dimension(_text(node, "effect"), cast(Any, _text(node, "confidence")), _text(node, "rationale"))


def _measured_result(node: MapNode) -> MeasuredResult:
    source = _optional(node, "source")
    evidence = SourceEvidence(source) if source is not None else _file_evidence(_mapping(node, "evidence"))
    return MeasuredResult(_text(node, "text"), _figure(node), evidence, node.span)


def _figure(node: MapNode) -> Figure:
    spread = node.get("spread")
    count = _number(node, "num_samples")
    return Figure(
        value=_number(node, "value") or 0,
        unit=_text(node, "unit"),
        num_samples=None if count is None else int(count),
        spread=Spread(_number(spread, "min") or 0, _number(spread, "max") or 0)
        if isinstance(spread, MapNode)
        else None,
        span=_span(node, "value"),
    )


def _file_evidence(node: MapNode) -> FileEvidence:
    scale = _number(node, "scale")
    value = _expression(node.get("value"))
    assert value is not None, "the schema requires the value of a file's evidence"
    return FileEvidence(
        file=_text(node, "file"),
        value=value,
        scale=1.0 if scale is None else scale,
        num_samples=_expression(node.get("num_samples")),
        min=_expression(node.get("min")),
        max=_expression(node.get("max")),
        span=node.span,
    )


def _expression(node: Node | None) -> Expression | None:
    if isinstance(node, ScalarNode):
        return Expression("pointer", (str(node.value),))
    if not isinstance(node, MapNode):
        return None
    ((operation, operand),) = node.entries.items()
    pointers = _texts(operand) if isinstance(operand, ListNode) else [str(operand.data)]
    return Expression(cast(Any, operation), tuple(pointers))


def _failure_mode(node: MapNode) -> FailureMode:
    return FailureMode(
        error=_text(node, "error"),
        cause=_text(node, "cause"),
        confirm=_text(node, "confirm"),
        fix=_text(node, "fix"),
        code=_optional(node, "code"),
        test=_optional(node, "test"),
        source=_optional(node, "source"),
        span=node.span,
        error_span=_span(node, "error"),
        code_span=_span(node, "code"),
        test_span=_span(node, "test"),
    )


def _follow_up(node: MapNode) -> FollowUp:
    return FollowUp(_text(node, "text"), _optional(node, "command"), _span(node, "command"))


def _claim(node: MapNode) -> Claim:
    status = _text(node, "status")
    return Claim(
        text=_text(node, "text"),
        status=cast(Any, status),
        evidence=_evidence(_mapping(node, "evidence"), status),
        figure=_figure(node) if status == "measured" else None,
        span=node.span,
    )


def _evidence(node: MapNode, status: str) -> Evidence:
    if status == "measured":
        return _file_evidence(node)
    if status == "code_verified":
        return SymbolEvidence(
            _text(node, "symbol"), _text(node, "test"), _span(node, "symbol"), _span(node, "test")
        )
    if status == "documented":
        return SourceEvidence(_text(node, "source"))
    return Assumption(_text(node, "reason"))


def _mapping(node: MapNode, key: str) -> MapNode:
    value = node.get(key)
    return value if isinstance(value, MapNode) else MapNode({}, {}, node.span)


def _members(node: MapNode, key: str) -> Iterator[MapNode]:
    value = node.get(key)
    items = value.items if isinstance(value, ListNode) else ()
    return (item for item in items if isinstance(item, MapNode))


def _texts(node: Node | None) -> list[str]:
    items = node.items if isinstance(node, ListNode) else ()
    return [str(item.value) for item in items if isinstance(item, ScalarNode)]


def _optional(node: MapNode, key: str) -> str | None:
    value = node.get(key)
    return value.value if isinstance(value, ScalarNode) and isinstance(value.value, str) else None


def _text(node: MapNode, key: str) -> str:
    return _optional(node, key) or ""


def _number(node: MapNode, key: str) -> float | None:
    value = node.get(key)
    if not isinstance(value, ScalarNode) or isinstance(value.value, bool | str):
        return None
    return value.value


def _span(node: MapNode, key: str) -> Span:
    value = node.get(key)
    return NOWHERE if value is None else value.span
