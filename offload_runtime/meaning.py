"""What a policy means as a whole: contradictions, rules that can never decide, switches that do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from offload_runtime.errors import Diagnostic, Span
from offload_runtime.fact_values import fact_problems
from offload_runtime.implication import fits_nothing, implies
from offload_runtime.op_classes import OP_CLASSES, class_of_overload
from offload_runtime.policy import Limits, Policy, Rule

MAX_MOE_DEFER = 2
MOE_PRESET = "moe"


def check_meaning(policy: Policy, *, is_whole: bool = True) -> tuple[Diagnostic, ...]:
    """Return what is wrong, or doubtful, with a typed policy by itself: no model, no machine.

    ``is_whole`` False says that parts of it failed to read. Then a match may look wider than it was written,
    and what compares matches is left out.
    """
    findings = [finding for rule in policy.rules for finding in _check_rule(rule)]
    findings += _select_conflicts(policy)
    findings += _fact_problems(policy)
    if is_whole:
        findings += [finding for rule in policy.rules for finding in _check_satisfiable(rule)]
        findings += _unreachable_rules(policy)
        findings += _idle_budget(policy)
        findings += _moe_defer(policy)
    return tuple(findings)


def may_offload_activations(policy: Policy) -> bool:
    """Tell whether any clause of the policy can send an activation to the host."""
    activations = policy.activations
    if activations is None:
        return False
    actions = {activations.default, activations.layer_outputs, *(rule.action for rule in activations.rules)}
    return "offload" in actions or (policy.schedule.select == "planned" and "auto" in actions)


def moe_defer_warning(policy: Policy, span: Span | None, reason: str) -> Diagnostic | None:
    """Return the warning for a mixture of experts with a long defer, None when defer is short."""
    defer = policy.schedule.defer
    if not isinstance(defer, int) or defer <= MAX_MOE_DEFER or not may_offload_activations(policy):
        return None
    message = f"{reason}: defer {defer} has cost mixtures of experts 24 % of their speed, or a timeout"
    return Diagnostic.at(
        span,
        "POL160",
        message,
        severity="warning",
        path="schedule.defer",
        hint="set schedule.defer to 1, as the policy moe does",
    )


def _check_rule(rule: Rule) -> Iterator[Diagnostic]:
    path = f"rule {rule.name}"
    if rule.must and rule.action == "auto":
        yield Diagnostic.at(
            rule.span,
            "POL124",
            f"rule {rule.name!r}: auto leaves the choice open, must fixes it",
            path=path,
            hint="name the fate, or drop must",
        )
    if rule.action == "offload":
        collectives = [op for op in rule.match.op if _is_collective(op)]
        if collectives:
            yield Diagnostic.at(
                rule.match.span,
                "POL129",
                f"rule {rule.name!r} offloads {', '.join(collectives)}: "
                "collectives and their waits are never offloaded",
                path=path,
                hint="save them, or take them out of op",
            )


def _check_satisfiable(rule: Rule) -> Iterator[Diagnostic]:
    nothing = fits_nothing(rule.match)
    if nothing is not None:
        yield Diagnostic.at(
            rule.match.span,
            "POL128",
            f"rule {rule.name!r} can match nothing: {nothing}",
            path=f"rule {rule.name}",
            hint="drop one of the two",
        )


def _is_collective(op: str) -> bool:
    return op == "collective" if op in OP_CLASSES else class_of_overload(op) == "collective"


def _unreachable_rules(policy: Policy) -> Iterator[Diagnostic]:
    """Compare rules of one file: across files a shadowed rule is judged when the model is known."""
    for index, rule in enumerate(policy.rules):
        for earlier in policy.rules[:index]:
            same_file = (earlier.span.file, earlier.inherited) == (rule.span.file, rule.inherited)
            if same_file and implies(rule.match, earlier.match):
                where = f" (line {earlier.span.line})" if earlier.span.line else ""
                yield Diagnostic.at(
                    rule.span,
                    "POL127",
                    f"rule {rule.name!r} is unreachable: {earlier.name!r}{where} matches all it could match",
                    path=f"rule {rule.name}",
                    hint=f"move it before {earlier.name!r}, or remove it",
                )
                break


def _select_conflicts(policy: Policy) -> Iterator[Diagnostic]:
    if policy.schedule.select != "largest_first":
        return
    for key in ("device_peak", "step_overhead"):
        if getattr(policy.limits, key) != getattr(Limits(), key):
            yield Diagnostic.at(
                policy.span_of(f"limits.{key}"),
                "POL130",
                f"select: largest_first cannot hold {key}: it uses budget and host only",
                path=f"limits.{key}",
                hint=f"write schedule: {{select: planned}}, or drop {key}",
            )


def _fact_problems(policy: Policy) -> Iterator[Diagnostic]:
    for problem in fact_problems(policy.requires) if policy.requires is not None else ():
        code = "POL114" if problem.kind == "name" else "POL115"
        span = problem.comparison.span
        yield Diagnostic.at(span, code, problem.message, path="requires", hint=problem.hint)


def _idle_budget(policy: Policy) -> Iterator[Diagnostic]:
    span = policy.span_of("limits.budget")
    if span is not None and policy.limits.budget != 0 and not may_offload_activations(policy):
        yield Diagnostic.at(
            span,
            "POL161",
            "budget has no effect: nothing in this policy offloads activations",
            severity="warning",
            path="limits.budget",
            hint="give a rule, default or layer_outputs the action offload",
        )


def _moe_defer(policy: Policy) -> Iterator[Diagnostic]:
    routing = [r.name for r in policy.rules if not r.optional and any(_is_routing(op) for op in r.match.op)]
    if routing:
        reason = f"rule {routing[0]!r} expects routing operators"
    elif MOE_PRESET in (policy.name, *policy.extends):
        reason = "the policy is for mixtures of experts"
    else:
        return
    warning = moe_defer_warning(policy, policy.span_of("schedule.defer"), reason)
    if warning is not None:
        yield warning


def _is_routing(op: str) -> bool:
    return op == "routing" if op in OP_CLASSES else class_of_overload(op) == "routing"
