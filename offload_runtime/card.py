"""A skill card as values: what a skill is for, when it helps, what was measured, how it fails, how each claim is known.

The file form is described by ``schemas/card.schema.json``; :mod:`offload_runtime.card_reading` reads it. Nothing in
a card is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from offload_runtime.errors import NOWHERE, Span
from offload_runtime.predicates import Predicate, Scalar

__all__ = [
    "CARD_FILE",
    "DIMENSIONS",
    "MECHANISMS",
    "Assumption",
    "Card",
    "Claim",
    "Condition",
    "Dimension",
    "Evidence",
    "Expression",
    "FailureMode",
    "Figure",
    "FileEvidence",
    "FollowUp",
    "Interactions",
    "MeasuredResult",
    "Mechanism",
    "Operation",
    "SourceEvidence",
    "Spread",
    "SymbolEvidence",
]

CARD_FILE = "card.yaml"

Mechanism = Literal["activations", "gradients", "optimizer_state", "parameters", "recompute", "none"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
Confidence = Literal["high", "medium", "low"]
ClaimStatus = Literal["measured", "code_verified", "documented", "assumed"]
Operation = Literal["pointer", "ratio", "difference", "reduction", "median", "min", "max", "count"]
DIMENSIONS = ("speed", "memory", "scale", "convergence", "stability")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in words and, where facts can say it, as a predicate with an example of each outcome.

    ``given`` says in which runs an interaction is asked about at all; None: in every one.
    """

    text: str
    when: Predicate | None = None
    holds: Mapping[str, Scalar] = field(default_factory=dict)
    fails: Mapping[str, Scalar] = field(default_factory=dict)
    given: Predicate | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Interactions:
    """How a mechanism goes together with other settings; ``permitted`` are those that need no care."""

    required: tuple[Condition, ...] = ()
    permitted: tuple[Condition, ...] = ()
    conditional: tuple[Condition, ...] = ()
    incompatible: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a mechanism does to one dimension of a training, and why that is believed."""

    effect: str
    confidence: Confidence
    rationale: str


@dataclass(frozen=True, slots=True)
class Expression:
    """How a number follows from a result file: ``operation`` on the values at JSON pointers.

    ``pointer`` is the value itself, ``ratio`` p / q, ``difference`` p - q, ``reduction`` 1 - p / q; the others are of
    the list at the one pointer.
    """

    operation: Operation
    pointers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileEvidence:
    """A number derived from a result file: ``scale`` times ``value``, and likewise the ends of the spread.

    ``file`` is relative to the repository.
    """

    file: str
    value: Expression
    scale: float = 1.0
    num_samples: Expression | None = None
    min: Expression | None = None
    max: Expression | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SymbolEvidence:
    """Code that makes a claim true (``path::symbol``), and the test (``path::name``) that holds it."""

    symbol: str
    test: str
    symbol_span: Span = field(default=NOWHERE, compare=False, repr=False)
    test_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SourceEvidence:
    """Whose statement it is."""

    source: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """Why something is believed that nobody checked."""

    reason: str


Evidence = FileEvidence | SymbolEvidence | SourceEvidence | Assumption


@dataclass(frozen=True, slots=True)
class Spread:
    """The range of the measurements behind a value, in the value's unit."""

    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as a card states it; ``num_samples`` counts the measurements, None where the source does not say."""

    value: float
    unit: str
    num_samples: int | None = None
    spread: Spread | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MeasuredResult:
    """A number and what it is of: one of ours, with a result file, or somebody else's, with its source."""

    text: str
    figure: Figure
    evidence: FileEvidence | SourceEvidence
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FailureMode:
    """One way to fail. ``test`` provokes ``error`` here; ``source`` says whose text it is; one of them is given."""

    error: str
    cause: str
    confirm: str
    fix: str
    code: str | None = None
    test: str | None = None
    source: str | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    error_span: Span = field(default=NOWHERE, compare=False, repr=False)
    code_span: Span = field(default=NOWHERE, compare=False, repr=False)
    test_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What to check after the mechanism was enabled, and the command that does it."""

    text: str
    command: str | None = None
    command_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, and how it is known; ``figure`` is the number that a measured one states."""

    text: str
    status: ClaimStatus
    evidence: Evidence
    figure: Figure | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Card:
    """One skill card; ``spans`` says where each of its top-level keys stands."""

    name: str
    title: str
    summary: str
    applies_to: tuple[Condition, ...]
    enable_when: tuple[Condition, ...]
    avoid_when: tuple[Condition, ...]
    interactions: Interactions
    training_dimensions: Mapping[str, Dimension]
    measured_results: tuple[MeasuredResult, ...]
    failure_modes: tuple[FailureMode, ...]
    known_limitations: tuple[str, ...]
    follow_up_validation: tuple[FollowUp, ...]
    claims: tuple[Claim, ...]
    mechanism: Mechanism | None = None
    next_command: str | None = None
    spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)

    def conditions(self) -> Iterator[tuple[str, Condition]]:
        """Yield every condition with the dotted path of its list, in the order of the file."""
        yield from (("applies_to", condition) for condition in self.applies_to)
        yield from (("enable_when", condition) for condition in self.enable_when)
        yield from (("avoid_when", condition) for condition in self.avoid_when)
        for key in ("required", "permitted", "conditional", "incompatible"):
            listed: tuple[Condition, ...] = getattr(self.interactions, key)
            yield from ((f"interactions.{key}", condition) for condition in listed)

    def figures(self) -> Iterator[tuple[Figure, FileEvidence]]:
        """Yield every number of ours with its evidence."""
        for result in self.measured_results:
            if isinstance(result.evidence, FileEvidence):
                yield result.figure, result.evidence
        for claim in self.claims:
            if claim.figure is not None and isinstance(claim.evidence, FileEvidence):
                yield claim.figure, claim.evidence

    def span(self, key: str) -> Span:
        """Return where the top-level key ``key`` stands."""
        return self.spans.get(key, NOWHERE)
