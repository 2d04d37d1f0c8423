"""Policy tests (``cases.yaml``): what a policy decides for a tensor, before budget and planner.

A case says what matters about the tensor and no more. A verdict that hangs on something the case leaves out
is an error of the case: it would hold only by accident.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from offload_runtime.compiler import CompiledPolicy, Decision, decide_without_rules, load_policy
from offload_runtime.document import Document, ListNode, MapNode, Node, ScalarNode
from offload_runtime.errors import Diagnostic, OffloadError, Span, UnreadableError, sorted_diagnostics
from offload_runtime.findings import Findings
from offload_runtime.implication import implies
from offload_runtime.matching import SavedActivation, UnknownKeyError, matches
from offload_runtime.op_classes import OP_CLASSES, class_of_overload
from offload_runtime.op_names import check_op, op_hint
from offload_runtime.policy import RESERVED_RULE_NAMES
from offload_runtime.shape import Hint, check_shape, did_you_mean, load_schema
from offload_runtime.shipped import POLICY_FILE, TEST_FILE, locate_policy
from offload_runtime.strict_yaml import read_yaml_file
from offload_runtime.units import parse_size, size_hint

TEST_HINTS: Mapping[str, Hint] = {"size": size_hint, "op": op_hint}

# How a case spells the facts that a match may need.
_KEY_NAMES = {"op_class": "op", "inside": "module"}


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case: the tensor as far as it is given (``known`` keys), and the verdict that is expected."""

    name: str
    activation: SavedActivation
    known: frozenset[str]
    action: str
    rule: str | None
    must: bool | None
    span: Span
    expect_span: Span


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How one case went; ``decision`` is None where the case leaves the verdict open."""

    name: str
    decision: Decision | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def passed(self) -> bool:
        """Tell whether the verdict was the expected one."""
        return not self.diagnostics


@dataclass(frozen=True, slots=True)
class PolicyTestResult:
    """How a test file went.

    ``rules`` are the policy's rules that can decide something, inherited ones included; ``covered`` those
    that decided a passing case. ``diagnostics`` are about the file itself (not its cases).
    """

    file: str
    policy: str | None
    cases: tuple[CaseResult, ...]
    rules: tuple[str, ...]
    covered: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def num_passed(self) -> int:
        """Return how many cases passed."""
        return sum(case.passed for case in self.cases)

    @property
    def num_failed(self) -> int:
        """Return how many cases failed."""
        return len(self.cases) - self.num_passed

    @property
    def rule_coverage(self) -> float:
        """Return the share of rules that decided a passing case; 1 for a policy without rules."""
        return len(self.covered) / len(self.rules) if self.rules else 1.0

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Return the rules that decided no passing case."""
        return tuple(rule for rule in self.rules if rule not in self.covered)

    @property
    def all_diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return the findings about the file and its cases."""
        cases = [diagnostic for case in self.cases for diagnostic in case.diagnostics]
        return sorted_diagnostics([*self.diagnostics, *cases])


def run_policy_tests(reference: str) -> PolicyTestResult:
    """Run a test file: its path, its folder, the policy beside it, or the name of a shipped policy.

    Findings are in the result, never raised.
    """
    try:
        path, name = locate_policy(reference)
        if path.name == POLICY_FILE:
            path, name = path.with_name(TEST_FILE), name.removesuffix(POLICY_FILE) + TEST_FILE
        document = read_yaml_file(path, file=name)
    except UnreadableError as error:
        return PolicyTestResult(reference, None, (), (), (), error.diagnostics)
    findings = Findings()
    root = _checked(document, findings)
    policy = _load_policy(root, document, findings)
    if policy is None or findings.num_errors:
        return PolicyTestResult(name, None, (), (), (), sorted_diagnostics(findings.diagnostics))
    cases = tuple(_run_case(case, policy) for case in _read_cases(root, findings))
    rules = _rules_that_decide(policy)
    decided = {case.decision.rule for case in cases if case.passed and case.decision is not None}
    covered = tuple(rule for rule in rules if rule in decided)
    return PolicyTestResult(
        name, policy.name, cases, rules, covered, sorted_diagnostics(findings.diagnostics)
    )


def untested_policy(reference: str) -> PolicyTestResult:
    """Return the result for a policy without a test file: no case ran, and each of its rules is uncovered.

    Findings are in the result, never raised.
    """
    try:
        policy = load_policy(reference)
    except OffloadError as error:
        return PolicyTestResult(reference, None, (), (), (), error.diagnostics)
    return PolicyTestResult(reference, policy.name, (), _rules_that_decide(policy), (), ())


def check_test_document(document: Document) -> tuple[Diagnostic, ...]:
    """Return what is wrong with a test file by itself and with the policy it names; its cases are not run."""
    findings = Findings()
    root = _checked(document, findings)
    _load_policy(root, document, findings)
    for _ in _read_cases(root, findings):
        pass
    return sorted_diagnostics(findings.diagnostics)


def _checked(document: Document, findings: Findings) -> MapNode:
    findings.diagnostics += document.diagnostics
    root, failures = check_shape(document.root, load_schema("policy-test"), TEST_HINTS)
    findings.diagnostics += failures
    return root if isinstance(root, MapNode) else MapNode({})


def _load_policy(root: MapNode, document: Document, findings: Findings) -> CompiledPolicy | None:
    node = root.get("policy")
    if not isinstance(node, ScalarNode):
        return None
    try:
        _, name = locate_policy(str(node.value), beside=document.file)
        return load_policy(name)
    except OffloadError as error:
        hint = "see the findings in the policy"
        findings.add(node, "PTS204", f"policy {node.value!r} cannot be tested", hint)
        findings.diagnostics += error.diagnostics
        return None


def _read_cases(root: MapNode, findings: Findings) -> Iterator[PolicyCase]:
    cases = root.get("cases")
    seen: set[str] = set()
    for node in cases.items if isinstance(cases, ListNode) else ():
        case = _read_case(node, findings)
        if case is None:
            continue
        if case.name in seen:
            findings.add(node, "PTS203", f"two cases are named {case.name!r}", "rename one of them")
        seen.add(case.name)
        yield case


def _read_case(node: Node, findings: Findings) -> PolicyCase | None:
    if not isinstance(node, MapNode):
        return None
    name, given, expect = _value(node.get("name")), node.get("given"), node.get("expect")
    if not (isinstance(name, str) and isinstance(given, MapNode) and isinstance(expect, MapNode)):
        return None
    op, action = given.get("op"), _value(expect.get("action"))
    if not isinstance(op, ScalarNode) or action is None:
        return None
    check_op(op, str(op.value), findings)
    rule, must = _value(expect.get("rule")), _value(expect.get("must"))
    activation, known = _read_given(given, str(op.value), findings)
    return PolicyCase(
        name=name,
        activation=activation,
        known=known,
        action=str(action),
        rule=str(rule) if rule is not None else None,
        must=must if isinstance(must, bool) else None,
        span=node.span,
        expect_span=node.key_span("expect"),
    )


def _read_given(given: MapNode, op: str, findings: Findings) -> tuple[SavedActivation, frozenset[str]]:
    """Return the tensor, and the keys of it that are known."""
    values = {key: value for key, node in given.entries.items() if (value := _value(node)) is not None}
    op_class = op if op in OP_CLASSES else class_of_overload(op)
    known = set(values) & {"module", "layer", "bytes", "dtype", "layout", "num_layers"}
    known |= {"op"} if op not in OP_CLASSES else set()
    known |= {"op_class"} if op_class is not None else set()
    layer = values.get("layer")
    layer_id = int(layer) if isinstance(layer, int | float) else None
    num_layers = int(values["num_layers"]) if "num_layers" in values else None
    if layer_id is not None and num_layers is not None and layer_id >= num_layers:
        hint = f"layers count from 0: the last one is {num_layers - 1}"
        findings.add(given, "PTS208", f"layer {layer_id} is not one of {num_layers} layers", hint)
    module = str(values.get("module", ""))
    layer_path = _layer_path(module, layer_id)
    known |= {"inside"} if "module" in known and (layer_path is not None or layer == "outside") else set()
    activation = SavedActivation(
        name="case",
        op=op,
        op_class=op_class or "other",
        module=module,
        layer=layer_id,
        num_layers=num_layers,
        num_bytes=_num_bytes(given.get("bytes"), findings),
        dtype=str(values.get("dtype", "")),
        layout=cast(Any, values.get("layout", "contiguous")),
        crosses_layer=values.get("crosses_layer") is True,
        layer_path=layer_path,
    )
    return activation, frozenset(known)


def _layer_path(module: str, layer: int | None) -> str | None:
    """Return the part of ``module`` up to its layer: up to the first segment that is a number."""
    segments = module.split(".")
    if layer is None:
        return None
    for index, segment in enumerate(segments):
        if segment.isdecimal():
            return ".".join(segments[: index + 1])
    return None


def _num_bytes(node: Node | None, findings: Findings) -> int:
    value = _value(node)
    if node is None or not isinstance(value, str):
        return 0
    try:
        return parse_size(value)
    except ValueError as error:
        findings.add(node, "POL104", str(error))
        return 0


def _run_case(case: PolicyCase, policy: CompiledPolicy) -> CaseResult:
    names = (*(rule.name for rule in policy.policy.rules), *RESERVED_RULE_NAMES)
    if case.rule is not None and case.rule not in names:
        hint = did_you_mean(case.rule, names) or f"rules: {', '.join(names)}"
        message = f"case {case.name!r}: the policy has no rule {case.rule!r}"
        return CaseResult(case.name, None, (Diagnostic.at(case.expect_span, "PTS206", message, hint=hint),))
    decision = _decide(case, policy)
    if isinstance(decision, Diagnostic):
        return CaseResult(case.name, None, (decision,))
    return CaseResult(case.name, decision, _compare(case, decision))


def _decide(case: PolicyCase, policy: CompiledPolicy) -> Decision | Diagnostic:
    for rule in policy.policy.rules:
        try:
            if matches(rule.match, case.activation, case.known):
                return Decision(rule.action, rule.must, rule.name)
        except UnknownKeyError as error:
            key = _KEY_NAMES.get(error.key, error.key)
            message = f"case {case.name!r} leaves {key} open, on which rule {rule.name!r} hangs"
            hint = "name an overload in op" if error.key == "op" else f"say {key} in given"
            return Diagnostic.at(case.span, "PTS202", message, hint=hint)
    return decide_without_rules(policy.policy.activations, case.activation)


def _compare(case: PolicyCase, decision: Decision) -> tuple[Diagnostic, ...]:
    wrong = []
    if decision.action != case.action:
        wrong.append(f"action {decision.action}, expected {case.action}")
    if case.rule is not None and decision.decided_by != case.rule:
        wrong.append(f"decided by {decision.decided_by}, expected {case.rule}")
    if case.must is not None and decision.must != case.must:
        wrong.append(f"must {str(decision.must).lower()}, expected {str(case.must).lower()}")
    if not wrong:
        return ()
    message = f"case {case.name!r}: {'; '.join(wrong)}"
    hint = f"{decision.decided_by} decides {decision.action}: correct the policy, or the case"
    return (Diagnostic.at(case.expect_span, "PTS201", message, hint=hint),)


def _rules_that_decide(policy: CompiledPolicy) -> tuple[str, ...]:
    """Leave out inherited rules that a rule of the child hides whole: no case can reach them."""
    rules = policy.policy.rules
    return tuple(
        rule.name
        for index, rule in enumerate(rules)
        if not (rule.inherited and any(implies(rule.match, earlier.match) for earlier in rules[:index]))
    )


def _value(node: Node | None) -> Any:
    return node.value if isinstance(node, ScalarNode) else None
