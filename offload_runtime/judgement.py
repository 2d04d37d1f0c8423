"""Whether the rules of a policy did something, judged once every activation of a model is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Protocol

from offload_runtime.errors import Diagnostic, sorted_diagnostics
from offload_runtime.matching import SavedActivation, matches
from offload_runtime.meaning import moe_defer_warning
from offload_runtime.patterns import LayerRange
from offload_runtime.policy import Match, Policy, Rule
from offload_runtime.units import format_size

Matched = tuple[SavedActivation, tuple[str, ...]]

MAX_LISTED = 12
_NO_CONDITION = Match()


class MatchingPolicy(Protocol):
    """What is judged: a compiled policy."""

    @property
    def policy(self) -> Policy:
        """The typed policy."""

    def matches(self, activation: SavedActivation, /) -> tuple[str, ...]:
        """Return the names of all rules that match, in order."""


def judge_matches(policy: MatchingPolicy, activations: Sequence[SavedActivation]) -> tuple[Diagnostic, ...]:
    """Judge, once every activation of the model is known, whether the policy's rules did something.

    Errors: a rule that matched nothing (unless optional or inherited), ``expect`` missed. Warnings: a rule
    that matched but decided nothing, with the rule that shadows it; a long defer on a mixture of experts. An
    error lists what there was to match.
    """
    return judge_rules(
        policy.policy, [(activation, policy.matches(activation)) for activation in activations]
    )


def judge_moved(policy: Policy, moved_bytes: int) -> tuple[Diagnostic, ...]:
    """Judge the bytes that one step moves against ``expect.moved``."""
    if policy.expect is None or policy.expect.moved is None or policy.expect.moved.contains(moved_bytes):
        return ()
    bounds = policy.expect.moved
    parts = [f"at least {format_size(bounds.min)}"] if bounds.min is not None else []
    parts += [f"at most {format_size(bounds.max)}"] if bounds.max is not None else []
    message = f"expect.moved asks for {' and '.join(parts)}, and {format_size(moved_bytes)} moved a step"
    hint = "raise limits.budget or widen the rules that offload, or correct the expectation"
    return (Diagnostic.at(policy.expect.span, "MOD753", message, path="expect.moved", hint=hint),)


def judge_layers(
    policy: Policy, activations: Sequence[SavedActivation], *, has_layers: bool
) -> tuple[Diagnostic, ...]:
    """Return an error if ``activations.layers_of`` names no module of any graph: every count would mean nothing.

    ``has_layers`` says whether any graph of the model has layers to count.
    """
    wanted = policy.activations.layers_of if policy.activations is not None else None
    if wanted is None or has_layers:
        return ()
    modules = sorted({activation.module for activation in activations} - {""})
    shown = ", ".join(modules[:8]) + (", ..." if len(modules) > 8 else "")
    return (
        Diagnostic.at(
            policy.span_of("activations.layers_of"),
            "GRF312",
            f"layers_of ({', '.join(map(str, wanted))}) names no module of the model",
            path="activations.layers_of",
            hint=f"modules that hold saved tensors: {shown}" if shown else "write layers_of: auto",
        ),
    )


def judge_rules(policy: Policy, matched: Sequence[Matched]) -> tuple[Diagnostic, ...]:
    """Judge as :func:`judge_matches` does.

    ``matched`` pairs each activation with the names of all rules that match it, in order.
    """
    findings: list[Diagnostic] = []
    for rule in policy.rules:
        hits = [(activation, names) for activation, names in matched if rule.name in names]
        findings += _judge_counts(rule, [activation for activation, _ in hits], [a for a, _ in matched])
        findings += _judge_shadow(rule, hits)
    if any(activation.op_class == "routing" for activation, _ in matched):
        reason = "this model routes its tokens"
        warning = moe_defer_warning(policy, policy.span_of("schedule.defer"), reason)
        findings += [warning] if warning is not None else []
    return sorted_diagnostics(findings)


def _judge_counts(
    rule: Rule, hits: Sequence[SavedActivation], activations: Sequence[SavedActivation]
) -> Iterator[Diagnostic]:
    path = f"rule {rule.name}"
    if not hits and rule.inherited:
        return
    if not hits and (rule.expect.matches.min or 0) > 0:
        message = f"rule {rule.name!r} matches nothing; {what_was_there(rule.match, activations)}"
        hint = "correct the rule, or write optional: true if it may match nothing"
        misses = [key for key, count in _counts_alone(rule.match, activations).items() if count == 0]
        place = rule.match.key_span(_key_name(misses[0])) if misses and activations else rule.match.span
        yield Diagnostic.at(place, "POL180", message, path=path, hint=hint)
        return
    if not rule.expect.matches.contains(len(hits)):
        message = f"rule {rule.name!r} matches {len(hits)} tensors, expected {rule.expect.matches}"
        hint = f"correct the rule or its expect; {what_was_there(rule.match, activations)}"
        yield Diagnostic.at(rule.expect_span, "POL181", message, path=path, hint=hint)
    layers = sorted({hit.layer for hit in hits if hit.layer is not None})
    if rule.expect.layers is not None and not rule.expect.layers.contains(len(layers)):
        expected = rule.expect.layers
        message = f"rule {rule.name!r} matches in {_count(len(layers), 'layer')}, expected {expected}"
        hint = (
            f"it matches in {_layer_list(layers)}; the model has {_layer_list(_layers_present(activations))}"
        )
        yield Diagnostic.at(rule.expect_span, "POL182", message, path=path, hint=hint)


def _judge_shadow(rule: Rule, hits: Sequence[Matched]) -> Iterator[Diagnostic]:
    if not hits or rule.inherited or any(names[0] == rule.name for _, names in hits):
        return
    shadowers = Counter(names[0] for _, names in hits)
    listed = ", ".join(f"{name!r} ({count})" for name, count in shadowers.most_common())
    yield Diagnostic.at(
        rule.span,
        "POL183",
        f"rule {rule.name!r} matches {_count(len(hits), 'tensor')} and decides none: shadowed by {listed}",
        severity="warning",
        path=f"rule {rule.name}",
        hint="the first match wins: move the rule up, or remove it",
    )


def what_was_there(match: Match, activations: Sequence[SavedActivation]) -> str:
    """Say which key of ``match`` fits nothing, and what there was; or that the keys never fit together."""
    if not activations:
        return "the model saves no activations"
    alone = _counts_alone(match, activations)
    misses = [f"{_key_name(key)}: {_present(key, activations)}" for key, count in alone.items() if count == 0]
    if misses:
        return f"{_count(len(activations), 'tensor')} were there, with {'; '.join(misses)}"
    counts = ", ".join(f"{_key_name(key)} {count}" for key, count in alone.items())
    return f"of {_count(len(activations), 'tensor')} each key alone matches some ({counts})"


def _counts_alone(match: Match, activations: Sequence[SavedActivation]) -> dict[str, int]:
    """Count for each key what it alone would match."""
    return {key: sum(matches(part, a) for a in activations) for key, part in _keys(match)}


def _keys(match: Match) -> Iterator[tuple[str, Match]]:
    """Yield a match for each key that asks something, with that key alone."""
    for item in fields(Match):
        value = getattr(match, item.name)
        if item.compare and value != getattr(_NO_CONDITION, item.name):
            yield item.name, replace(_NO_CONDITION, **{item.name: value})


def _key_name(key: str) -> str:
    return "not" if key == "negated" else key


def _present(key: str, activations: Sequence[SavedActivation]) -> str:
    if key == "op":
        ops = Counter(a.op_class for a in activations)
        names = Counter(a.op for a in activations)
        return f"{_counted(ops)} ({_counted(names)})"
    if key == "layers":
        return _layer_list(_layers_present(activations))
    if key == "module":
        return _counted(Counter(a.module or "(root)" for a in activations))
    if key == "inside":
        inner = [a.module_inside_layer for a in activations]
        return _counted(Counter(name or "(the layer)" for name in inner if name is not None)) or "no layers"
    if key == "bytes":
        sizes = [a.num_bytes for a in activations]
        return f"{min(sizes)} to {max(sizes)} bytes"
    if key == "layout":
        return _counted(Counter(a.layout for a in activations))
    if key == "dtype":
        return _counted(Counter(a.dtype for a in activations))
    return "nothing that it leaves"


def _counted(counter: Counter[str]) -> str:
    listed = [
        f"{name} {count}" for name, count in sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    ]
    more = f", and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return ", ".join(listed[:MAX_LISTED]) + more


def _layers_present(activations: Sequence[SavedActivation]) -> list[int]:
    totals = [a.num_layers for a in activations if a.num_layers is not None]
    if totals:
        return list(range(max(totals)))
    return sorted({a.layer for a in activations if a.layer is not None})


def _layer_list(layers: Sequence[int]) -> str:
    """Write layer ids as ranges: ``layers 0-3, 7``."""
    if not layers:
        return "no layers"
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"layers {', '.join(parts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def needs_num_layers(match: Match) -> bool:
    """Tell whether ``match`` names layers relative to their number, anywhere in it."""
    ranges: tuple[LayerRange, ...] = match.layers
    return any(r.needs_num_layers for r in ranges) or (
        match.negated is not None and needs_num_layers(match.negated)
    )
