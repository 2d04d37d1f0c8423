"""From a document whose shape holds to the typed policy.

Values that failed before are invalid nodes: they read as absent. What a schema cannot say (a size that is not
a whole number of bytes, an operator that does not exist) is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from offload_runtime.document import ListNode, MapNode, Node, ScalarNode
from offload_runtime.errors import Span
from offload_runtime.findings import Findings
from offload_runtime.op_names import check_op
from offload_runtime.patterns import Glob, LayerRange, parse_glob, parse_layers
from offload_runtime.policy import (
    Activations,
    CountRange,
    Expect,
    Gradients,
    Limits,
    Match,
    ModulePattern,
    OptimizerState,
    Parameters,
    Policy,
    Rule,
    RuleExpect,
    Schedule,
)
from offload_runtime.predicates import OPERATORS, AllOf, AnyOf, Comparison, Not, Predicate, Scalar
from offload_runtime.shipped import POLICY_FILE
from offload_runtime.units import parse_percent, parse_size

T = TypeVar("T")
INSIDE_PREFIX = "inside:"


def read_policy_tree(tree: MapNode, findings: Findings, own_rules: frozenset[str] | None = None) -> Policy:
    """Return the typed policy of a merged document; ``own_rules`` names the rules that no base brought."""
    requires = tree.get("requires")
    return Policy(
        name=_text(tree, "name") or "",
        summary=_text(tree, "summary") or "",
        extends=tuple(str(item.value) for item in _scalars(tree.get("extends"))),
        limits=_read_limits(_mapping(tree, "limits"), findings),
        schedule=_read_schedule(_mapping(tree, "schedule")),
        activations=_read_activations(tree, findings, own_rules),
        optimizer_state=_read_optimizer_state(tree),
        gradients=_read_gradients(tree),
        parameters=_read_parameters(tree, findings),
        requires=read_predicate(requires) if requires is not None else None,
        expect=_read_expect(tree, findings),
        spans=tuple(_clause_spans(tree)),
    )


def read_rule(node: Node, findings: Findings, *, inherited: bool = False) -> Rule | None:
    """Return the typed rule, None when what makes a rule is missing (reported by its shape)."""
    if not isinstance(node, MapNode):
        return None
    name, match, action = _text(node, "name"), node.get("match"), _text(node, "action")
    if name is None or action is None or not isinstance(match, MapNode):
        return None
    optional = _flag(node, "optional")
    return Rule(
        name=name,
        match=read_match(match, findings),
        action=cast(Any, action),
        must=_flag(node, "must"),
        optional=optional,
        expect=_read_rule_expect(node, optional, findings),
        inherited=inherited,
        span=node.span,
        expect_span=node.key_span("expect"),
    )


def _read_rule_expect(node: MapNode, optional: bool, findings: Findings) -> RuleExpect:
    """Read ``expect``; unless it says how many matches at least, that is one, or none if optional."""
    expect = _mapping(node, "expect")
    given = expect.get("matches")
    counts = _read_counts(given, findings) or CountRange()
    if optional and isinstance(given, MapNode) and "min" in given.entries:
        hint = "keep one: optional means that matching nothing is fine"
        findings.add(
            given.key_span("min"),
            "POL125",
            "an optional rule cannot expect a number of matches",
            hint,
            path=given.path,
        )
    least = 0 if optional or counts.max == 0 else 1
    matches = counts if counts.min is not None else CountRange(least, counts.max)
    return RuleExpect(matches, _read_counts(expect.get("layers"), findings))


def read_match(node: MapNode, findings: Findings) -> Match:
    """Return the typed match of a rule."""
    negated = node.get("not")
    return Match(
        op=tuple(_read_op(item, findings) for item in _scalars(node.get("op"))),
        layers=_read_layers(node.get("layers"), findings),
        module=_read_module_patterns(node.get("module"), findings),
        inside=_read_globs(node.get("inside"), findings),
        bytes=_read_sizes(node.get("bytes"), findings),
        layout=cast(Any, _text(node, "layout") or "any"),
        dtype=tuple(str(item.value) for item in _scalars(node.get("dtype"))),
        negated=read_match(negated, findings) if isinstance(negated, MapNode) else None,
        span=node.span,
        key_spans=tuple((key, node.key_span(key)) for key in node.entries),
    )


def read_predicate(node: Node) -> Predicate | None:
    """Return the typed predicate; None where a part of it failed its shape."""
    if not isinstance(node, MapNode):
        return None
    for key, build in (("all", AllOf), ("any", AnyOf)):
        members = node.get(key)
        if isinstance(members, ListNode):
            read = [read_predicate(member) for member in members.items]
            return None if None in read else build(tuple(member for member in read if member is not None))
    if "not" in node.entries:
        inner = read_predicate(node.entries["not"])
        return None if inner is None else Not(inner)
    fact = _text(node, "fact")
    for operator in OPERATORS:
        operand = node.get(operator)
        if fact is not None and isinstance(operand, ScalarNode | ListNode):
            value = _operand(operand)
            return Comparison(fact, operator, value, node.span)
    return None


def glob_hint(value: object) -> str | None:
    """Say what is wrong with a module pattern."""
    try:
        parse_glob(str(value).removeprefix(INSIDE_PREFIX).strip())
    except ValueError as error:
        return str(error)
    return None


def _read_op(node: ScalarNode, findings: Findings) -> str:
    check_op(node, str(node.value), findings)
    return str(node.value)


def _read_limits(node: MapNode, findings: Findings) -> Limits:
    overhead = _parsed(node.get("step_overhead"), parse_percent, "POL105", findings, words=("unlimited",))
    peak = node.get("device_peak")
    return Limits(
        budget=_size(node.get("budget"), findings),
        device_peak="auto" if _value(peak) == "auto" else _size(peak, findings),
        host=_size(node.get("host"), findings),
        step_overhead=float(overhead) if overhead is not None else None,
    )


def _read_schedule(node: MapNode) -> Schedule:
    given: dict[str, Any] = {}
    for key in ("select", "defer", "prefetch", "keep_last"):
        value = _value(node.get(key))
        if value is not None:
            given[key] = value if isinstance(value, str) else int(value)
    return Schedule(**given)


def _read_activations(
    tree: MapNode, findings: Findings, own_rules: frozenset[str] | None
) -> Activations | None:
    if "activations" not in tree.entries:
        return None
    node = _mapping(tree, "activations")
    rules = node.get("rules")
    layers_of = node.get("layers_of")
    read = []
    for item in rules.items if isinstance(rules, ListNode) else ():
        name = _text(item, "name") if isinstance(item, MapNode) else None
        rule = read_rule(item, findings, inherited=own_rules is not None and name not in own_rules)
        read += [rule] if rule is not None else []
    return Activations(
        default=cast(Any, _text(node, "default") or "auto"),
        layer_outputs=cast(Any, _text(node, "layer_outputs")),
        layers_of=_read_globs(layers_of, findings) if isinstance(layers_of, ListNode) else None,
        rules=tuple(read),
        span=tree.key_span("activations"),
    )


def _read_optimizer_state(tree: MapNode) -> OptimizerState | None:
    node = _section(tree, "optimizer_state")
    if node is None:
        return None
    return OptimizerState(
        offload_fraction=float(cast(Any, _value(node.get("offload_fraction")) or 0)),
        overlap=_flag(node, "overlap"),
        step_device=cast(Any, _text(node, "step_device") or "cpu"),
        span=tree.key_span("optimizer_state"),
    )


def _read_gradients(tree: MapNode) -> Gradients | None:
    node = _section(tree, "gradients")
    return Gradients(_flag(node, "offload"), span=tree.key_span("gradients")) if node is not None else None


def _read_parameters(tree: MapNode, findings: Findings) -> Parameters | None:
    node = _section(tree, "parameters")
    if node is None:
        return None
    return Parameters(
        offload=_flag(node, "offload"),
        layers=_read_layers(node.get("layers"), findings),
        double_buffering=_flag(node, "double_buffering"),
        span=tree.key_span("parameters"),
    )


def _read_expect(tree: MapNode, findings: Findings) -> Expect | None:
    if "expect" not in tree.entries:
        return None
    node = _mapping(tree, "expect")
    return Expect(_read_sizes(node.get("moved"), findings), span=tree.key_span("expect"))


def _section(tree: MapNode, name: str) -> MapNode | None:
    return _mapping(tree, name) if name in tree.entries else None


def _read_layers(node: Node | None, findings: Findings) -> tuple[LayerRange, ...]:
    read = (_parsed(item, parse_layers, "POL106", findings) for item in _scalars(node))
    return tuple(layers for layers in read if layers is not None)


def _read_globs(node: Node | None, findings: Findings) -> tuple[Glob, ...]:
    read = (_parsed(item, parse_glob, "POL107", findings) for item in _scalars(node))
    return tuple(glob for glob in read if glob is not None)


def _read_module_patterns(node: Node | None, findings: Findings) -> tuple[ModulePattern, ...]:
    read = (_parsed(item, _parse_module_pattern, "POL107", findings) for item in _scalars(node))
    return tuple(pattern for pattern in read if pattern is not None)


def _parse_module_pattern(text: str) -> ModulePattern:
    inside = text.startswith(INSIDE_PREFIX)
    return ModulePattern(parse_glob(text.removeprefix(INSIDE_PREFIX).strip()), inside)


def _read_sizes(node: Node | None, findings: Findings) -> CountRange | None:
    if not isinstance(node, MapNode):
        return None
    return _range(node, _size(node.get("min"), findings), _size(node.get("max"), findings), findings)


def _read_counts(node: Node | None, findings: Findings) -> CountRange | None:
    if not isinstance(node, MapNode):
        return None
    low, high = _value(node.get("min")), _value(node.get("max"))
    return _range(node, None if low is None else int(low), None if high is None else int(high), findings)


def _range(node: MapNode, low: int | None, high: int | None, findings: Findings) -> CountRange:
    if low is not None and high is not None and low > high:
        findings.add(node, "POL126", "min is greater than max: nothing lies between", "swap the two")
        return CountRange(high, low)
    return CountRange(low, high)


def _size(node: Node | None, findings: Findings) -> int | None:
    return _parsed(node, parse_size, "POL104", findings, words=("unlimited",))


def _parsed(
    node: Node | None,
    parse: Callable[[str], T],
    code: str,
    findings: Findings,
    *,
    words: tuple[str, ...] = (),
) -> T | None:
    """Parse the text of a scalar, None for an absent one and for the ``words`` that mean "no value"."""
    value = _value(node)
    if node is None or value is None or value in words:
        return None
    try:
        return parse(str(int(value)) if isinstance(value, float) else str(value))
    except ValueError as error:
        message, _, cure = str(error).partition("; ")
        findings.add(node, code, message, cure or None)
        return None


def _operand(node: ScalarNode | ListNode) -> Scalar | tuple[Scalar, ...]:
    return node.value if isinstance(node, ScalarNode) else tuple(item.value for item in _scalars(node))


def _mapping(node: MapNode, key: str) -> MapNode:
    value = node.get(key)
    return value if isinstance(value, MapNode) else MapNode({}, {}, node.span)


def _scalars(node: Node | None) -> tuple[ScalarNode, ...]:
    """Return a scalar, or the scalars of a list, as a tuple."""
    if isinstance(node, ScalarNode):
        return (node,)
    items = node.items if isinstance(node, ListNode) else ()
    return tuple(item for item in items if isinstance(item, ScalarNode))


def _value(node: Node | None) -> Scalar | None:
    return node.value if isinstance(node, ScalarNode) else None


def _text(node: MapNode, key: str) -> str | None:
    value = _value(node.get(key))
    return value if isinstance(value, str) else None


def _flag(node: MapNode, key: str) -> bool:
    return _value(node.get(key)) is True


def _clause_spans(tree: MapNode) -> Iterator[tuple[str, Span]]:
    bases = {f"policies/{item.value}/{POLICY_FILE}": item.span for item in _scalars(tree.get("extends"))}
    for section, node in tree.entries.items():
        yield section, _reachable(tree.key_span(section), bases)
        if isinstance(node, MapNode):
            spans = {key: _reachable(node.key_span(key), bases) for key in node.entries}
            yield from ((f"{section}.{key}", span) for key, span in spans.items())


def _reachable(span: Span, bases: Mapping[str, Span]) -> Span:
    """Return where a clause can be changed: where a policy names the shipped one that it came with, or itself."""
    return bases.get(span.file or "", span)
