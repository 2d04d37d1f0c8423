"""The conditions of a card: facts that exist, values that they can have, examples that decide as they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from offload_runtime.card import Card, Condition
from offload_runtime.fact_values import fact_hint, fact_problems, wrong_value
from offload_runtime.facts import FACTS
from offload_runtime.findings import Findings
from offload_runtime.predicates import Predicate, Scalar, comparisons, evaluate

__all__ = ["check_conditions"]

_CODES: Mapping[Literal["name", "value"], str] = {"name": "POL114", "value": "POL115"}


def check_conditions(card: Card, findings: Findings) -> None:
    """Add what is wrong with the conditions of ``card``: their facts, and the examples beside them."""
    for path, condition in card.conditions():
        num_before = findings.num_errors
        _check_predicate(condition, path, findings)
        if findings.num_errors == num_before:
            _check_example_facts(condition, path, findings)
        if findings.num_errors == num_before:
            _check_examples(condition, path, findings)


def _check_predicate(condition: Condition, path: str, findings: Findings) -> None:
    if condition.when is None:
        if condition.given is not None:
            message = "given without a condition: there is no when"
            hint = "add when: what has to be so in the runs that given names"
            findings.add(condition.span, "CRD101", message, hint, path=path)
        if condition.holds or condition.fails:
            message = "examples without a condition: there is no when"
            hint = "add when: {fact: NAME, OPERATOR: VALUE}, or remove holds and fails"
            findings.add(condition.span, "CRD101", message, hint, path=path)
        return
    if not condition.holds or not condition.fails:
        message = f"{'holds' if not condition.holds else 'fails'} is missing beside when"
        hint = "give facts that satisfy the condition (holds) and facts that do not (fails)"
        findings.add(condition.span, "CRD101", message, hint, path=path)
    for predicate in _predicates(condition):
        for problem in fact_problems(predicate):
            code = _CODES[problem.kind]
            findings.add(problem.comparison.span, code, problem.message, problem.hint, path=path)


def _predicates(condition: Condition) -> tuple[Predicate, ...]:
    return tuple(predicate for predicate in (condition.given, condition.when) if predicate is not None)


def _check_example_facts(condition: Condition, path: str, findings: Findings) -> None:
    used = {c.fact for predicate in _predicates(condition) for c in comparisons(predicate)}
    for key, example in (("holds", condition.holds), ("fails", condition.fails)):
        for name, value in example.items():
            fact = FACTS.get(name)
            where = f"{path}.{key}"
            if fact is None:
                message = f"there is no fact {name!r}"
                findings.add(condition.span, "POL114", message, fact_hint(name), path=where)
            elif (wanted := wrong_value(fact, value)) is not None:
                message = f"{name} is {wanted}, never {value!r}"
                findings.add(condition.span, "POL115", message, f"such as {fact.example}", path=where)
            elif condition.when is not None and name not in used:
                message = f"{name} stands in {key}, and the condition does not ask for it"
                findings.add(condition.span, "CRD101", message, f"remove {name} from {key}", path=where)


def _check_examples(condition: Condition, path: str, findings: Findings) -> None:
    if condition.when is None:
        return
    for key, example, wanted in (("holds", condition.holds, True), ("fails", condition.fails, False)):
        try:
            found = evaluate(condition.when, example)
        except ValueError as error:
            findings.add(condition.span, "CRD101", f"{key}: {error}", "give a number", path=f"{path}.{key}")
            continue
        if found is not wanted:
            message = f"with the facts of {key} ({_listed(example)}) the condition is {_word(found)}"
            hint = f"give facts that make it {_word(wanted)}, or correct when"
            findings.add(condition.span, "CRD101", message, hint, path=f"{path}.{key}")
        elif condition.given is not None and evaluate(condition.given, example) is not True:
            message = f"with the facts of {key} ({_listed(example)}) nobody asks: given does not hold"
            findings.add(
                condition.span, "CRD101", message, "give facts for which given holds", path=f"{path}.{key}"
            )


def _listed(facts: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _word(truth: bool | None) -> str:
    return "open" if truth is None else str(truth).lower()
