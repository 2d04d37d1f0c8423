"""The typed policy: what a document means, once it has been read. Frozen values, no torch.

Spans and provenance take no part in equality or hashing: two files that say the same are the same policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offload_runtime.errors import NOWHERE, Span
from offload_runtime.patterns import Glob, LayerRange
from offload_runtime.predicates import Predicate

Action = Literal["save", "recompute", "offload", "auto"]
LayerOutputs = Literal["save", "recompute", "offload"]
Layout = Literal["contiguous", "dense", "any"]
Select = Literal["largest_first", "planned"]
Tier = Literal["host"]
StepDevice = Literal["cpu", "gpu"]

DEFAULT_RULE = "default"
LAYER_OUTPUTS_RULE = "layer_outputs"
RESERVED_RULE_NAMES = (DEFAULT_RULE, LAYER_OUTPUTS_RULE)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds within which the planner chooses. Sizes in bytes; None is unlimited; 0 is none at all.

    ``budget``: activation bytes offloaded per rank and forward-backward. ``device_peak``: device bytes, or
    ``auto`` = what the process can have (the least of free device memory, its cap and that of the hardware profile)
    minus 6 %. ``host``: pinned host bytes, rounding included; None = 80 % of what the cgroup allows.
    ``step_overhead``: share of the time of forward and backward that the policy may add; the optimizer's step is not
    counted.
    """

    budget: int | None = None
    device_peak: int | Literal["auto"] | None = None
    host: int | None = None
    step_overhead: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When transfers start and end, in layers.

    ``defer``: layers by which the wait for (and release after) a D2H may lag its last forward use.
    ``prefetch``: layers ahead of the first backward use at which the reload starts. ``keep_last``: offloads
    in the last N layers become saves.
    """

    select: Select = "largest_first"
    defer: int | Literal["auto"] = 1
    prefetch: int | Literal["auto"] = 1
    keep_last: int = 1


@dataclass(frozen=True, slots=True)
class CountRange:
    """Bounds, both inclusive, on a count; None is unbounded."""

    min: int | None = None
    max: int | None = None

    def contains(self, count: int) -> bool:
        """Tell whether ``count`` lies within the bounds."""
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)

    def covers(self, other: CountRange) -> bool:
        """Tell whether whatever lies in ``other`` lies here too."""
        low = self.min is None or (other.min is not None and other.min >= self.min)
        high = self.max is None or (other.max is not None and other.max <= self.max)
        return low and high

    def __str__(self) -> str:
        if self.min == self.max and self.min is not None:
            return f"exactly {self.min}"
        parts = [f"at least {self.min}"] if self.min is not None else []
        parts += [f"at most {self.max}"] if self.max is not None else []
        return " and ".join(parts) or "any number"


@dataclass(frozen=True, slots=True)
class ModulePattern:
    """A glob over module names; with ``inside``, over the part of the name below the layer."""

    glob: Glob
    inside: bool = False

    def __str__(self) -> str:
        return f"inside:{self.glob}" if self.inside else str(self.glob)


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule looks for. Keys are AND, the members of one key are OR; an empty key asks nothing.

    ``op`` holds op classes and overload names. ``bytes`` bounds the storage extent, in bytes.
    """

    op: tuple[str, ...] = ()
    layers: tuple[LayerRange, ...] = ()
    module: tuple[ModulePattern, ...] = ()
    inside: tuple[Glob, ...] = ()
    bytes: CountRange | None = None
    layout: Layout = "any"
    dtype: tuple[str, ...] = ()
    negated: Match | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    key_spans: tuple[tuple[str, Span], ...] = field(default=(), compare=False, repr=False)

    def key_span(self, key: str) -> Span:
        """Return where ``key`` (as the file spells it) was written; the match as a whole if it was not."""
        return dict(self.key_spans).get(key, self.span)


@dataclass(frozen=True, slots=True)
class RuleExpect:
    """How much a rule has to match: activations, and distinct layers they lie in."""

    matches: CountRange = CountRange(min=1)
    layers: CountRange | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One clause of ``activations.rules``: the first that matches an activation decides its action.

    ``must`` fixes the fate and fails by name when it cannot hold. ``optional`` lets it match nothing.
    ``inherited`` rules come from a base policy: they may match nothing or be shadowed.
    """

    name: str
    match: Match
    action: Action
    must: bool = False
    optional: bool = False
    expect: RuleExpect = RuleExpect()
    tier: Tier = "host"
    inherited: bool = field(default=False, compare=False)
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    expect_span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Activations:
    """What happens to tensors that forward saves for backward.

    ``layer_outputs`` is the action for values that cross into a later layer where no rule matched; None
    leaves them to ``default``. ``layers_of`` None finds the repeated blocks by itself.
    """

    default: Action
    layer_outputs: LayerOutputs | None = None
    layers_of: tuple[Glob, ...] | None = None
    rules: tuple[Rule, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Optimizer state on the host: its share (0 to 1), overlap with the step, where the step runs."""

    offload_fraction: float
    overlap: bool = False
    step_device: StepDevice = "cpu"
    tier: Tier = "host"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients on the host between backward and the optimizer step."""

    offload: bool
    tier: Tier = "host"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters on the host between uses, for the layers given (empty: all of them)."""

    offload: bool
    layers: tuple[LayerRange, ...] = ()
    double_buffering: bool = False
    tier: Tier = "host"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Expect:
    """What the run has to show: ``moved`` bounds the bytes offloaded per step."""

    moved: CountRange | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy, bases merged in. A section that is None is untouched.

    ``extends`` names the bases for display only: their content is already in the other fields.
    ``spans`` lists the clauses that were written, as ``(dotted path, span)``, defaults left out; one that came with a
    shipped policy stands where that is named: nobody can change it there.
    """

    name: str
    summary: str = field(default="", compare=False)
    extends: tuple[str, ...] = field(default=(), compare=False)
    limits: Limits = Limits()
    schedule: Schedule = Schedule()
    activations: Activations | None = None
    optimizer_state: OptimizerState | None = None
    gradients: Gradients | None = None
    parameters: Parameters | None = None
    requires: Predicate | None = None
    expect: Expect | None = None
    spans: tuple[tuple[str, Span], ...] = field(default=(), compare=False, repr=False)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in the order in which they are tried."""
        return self.activations.rules if self.activations else ()

    @property
    def clause_by_time(self) -> str | None:
        """Return the first clause that is carried out by predicted times, for known hardware alone; None for none."""
        by_time = {
            "schedule.select": self.schedule.select == "planned",
            "schedule.defer": self.schedule.defer == "auto",
            "schedule.prefetch": self.schedule.prefetch == "auto",
        }
        return next((clause for clause, is_given in by_time.items() if is_given), None)

    def span_of(self, path: str) -> Span | None:
        """Return where the clause at ``path`` (such as ``limits.budget``) was written, None for a default."""
        return dict(self.spans).get(path)
