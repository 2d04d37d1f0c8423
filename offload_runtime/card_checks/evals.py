"""The evals of a skill: prompts, assertions about a good answer, and two stored answers to prove them on.

The stored right answer has to pass every assertion, the stored wrong one to fail at least one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.card_checks.grading import Grader, Grades
from offload_runtime.document import Document, ListNode, MapNode, ScalarNode
from offload_runtime.errors import Span, UnreadableError
from offload_runtime.findings import Findings
from offload_runtime.shape import Hint, check_shape, load_schema
from offload_runtime.strict_yaml import read_yaml_file
from offload_runtime.units import size_hint

__all__ = ["Eval", "check_evals", "read_evals"]

MIN_EVALS_OF_A_KIND = 3
_HINTS: Mapping[str, Hint] = {"size": size_hint}


@dataclass(frozen=True, slots=True)
class Eval:
    """One prompt; ``assertions`` are the plain data of the file, whose ``kind`` names a grader."""

    id: str
    prompt: str
    should_trigger: bool
    assertions: tuple[Mapping[str, Any], ...]
    right_answer: str
    wrong_answer: str
    span: Span


def read_evals(path: Path, skill: str, label: str, findings: Findings) -> tuple[Eval, ...]:
    """Read the evals of ``skill``, whose file findings call ``label``; empty where its shape does not hold."""
    try:
        document = read_yaml_file(path, file=label)
    except UnreadableError as error:
        findings.diagnostics += error.diagnostics
        return ()
    num_before = findings.num_errors
    root = _checked(document, findings)
    if root is None or findings.num_errors > num_before:
        return ()
    named = root.get("skill")
    if isinstance(named, ScalarNode) and named.value != skill:
        findings.add(named, "CRD501", f"these are the evals of {named.value!r}", f"write {skill}")
    listed = root.get("evals")
    members = listed.items if isinstance(listed, ListNode) else ()
    return tuple(_eval(member) for member in members if isinstance(member, MapNode))


def check_evals(evals: tuple[Eval, ...], skill: str, label: str, grader: Grader, findings: Findings) -> int:
    """Check the evals of a skill against each other and grade their stored answers; returns how many there were."""
    for wanted, word in ((True, "should trigger the skill"), (False, "should not trigger it")):
        num_found = sum(one.should_trigger is wanted for one in evals)
        if evals and num_found < MIN_EVALS_OF_A_KIND:
            message = f"{num_found} prompts that {word}, fewer than {MIN_EVALS_OF_A_KIND}"
            findings.add(Span(label), "CRD501", message, "add prompts of this kind")
    seen = set()
    for one in evals:
        if one.id in seen:
            findings.add(one.span, "CRD501", f"two evals are called {one.id}", "rename one of them")
        seen.add(one.id)
        if skill in one.prompt:
            hint = "write what a user would, who does not know the skill"
            findings.add(one.span, "CRD501", f"the prompt of {one.id} names the skill", hint)
        _check_answers(one, grader, findings)
    return len(evals)


def _check_answers(one: Eval, grader: Grader, findings: Findings) -> None:
    right, wrong = (grader.grade(answer, one.assertions) for answer in (one.right_answer, one.wrong_answer))
    for failure in right.failures:
        hint = "correct the stored answer, or the assertion that it should pass"
        findings.add(one.span, "CRD502", f"the right answer of {one.id} fails: {failure}", hint)
    if not wrong.failures and not wrong.num_skipped:
        hint = "add the assertion that tells the two answers apart"
        findings.add(one.span, "CRD503", f"the wrong answer of {one.id} passes every assertion", hint)
    elif not wrong.failures:
        findings.add(
            one.span,
            "CRD504",
            _open(one, wrong),
            "`offload skills check --run-tests` grades it",
            severity="note",
        )


def _open(one: Eval, wrong: Grades) -> str:
    counted = (
        "1 assertion that was" if wrong.num_skipped == 1 else f"{wrong.num_skipped} assertions that were"
    )
    return f"whether the wrong answer of {one.id} fails hangs on {counted} not graded"


def _checked(document: Document, findings: Findings) -> MapNode | None:
    findings.diagnostics += document.diagnostics
    root, failures = check_shape(document.root, load_schema("evals"), _HINTS)
    findings.diagnostics += failures
    return root if isinstance(root, MapNode) else None


def _eval(node: MapNode) -> Eval:
    data: Any = node.data
    return Eval(
        id=data["id"],
        prompt=data["prompt"],
        should_trigger=data["should_trigger"],
        assertions=tuple(data["assertions"]),
        right_answer=data["right_answer"],
        wrong_answer=data["wrong_answer"],
        span=node.span,
    )
