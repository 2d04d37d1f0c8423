"""Grade an answer to an eval's prompt by its assertions, offline.

An answer is Markdown: its policies are the fenced ``yaml`` blocks of ``kind: Policy``, its commands those that
:mod:`offload_runtime.card_checks.commands` finds. Kinds of assertion that need more than the text layer (training,
export) are handed in by whoever has it, and skipped where nobody does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offload_runtime.card_checks.commands import CommandLookup, commands_in, fenced_blocks
from offload_runtime.errors import UnreadableError
from offload_runtime.strict_yaml import read_yaml
from offload_runtime.validate import document_kind, validate_policy

__all__ = ["Assertion", "Grader", "Grades", "OutsideGrader", "policies_in"]

Assertion = Mapping[str, Any]
# Gets the text of an answer's policy and the assertion; says what failed, None where nothing did.
OutsideGrader = Callable[[str, Assertion], str | None]

ANSWER = "<answer>"


@dataclass(frozen=True, slots=True)
class Grades:
    """What an answer failed, in words, and how many assertions nobody could grade here."""

    failures: tuple[str, ...]
    num_skipped: int


def policies_in(answer: str) -> tuple[str, ...]:
    """Return the text of each policy in an answer's fenced yaml blocks."""
    blocks = (block for language, block, _ in fenced_blocks(answer) if language in ("yaml", "yml"))
    return tuple(block for block in blocks if _is_policy(block))


def _is_policy(block: str) -> bool:
    try:
        return document_kind(read_yaml(block, ANSWER)) == "Policy"
    except UnreadableError:
        return "kind: Policy" in block  # meant as one, and to be failed as one


@dataclass(frozen=True)
class Grader:
    """Grades answers; ``outside`` holds the graders of kinds that need more than the text layer."""

    lookup: CommandLookup
    outside: Mapping[str, OutsideGrader] = field(default_factory=dict)

    def grade(self, answer: str, assertions: Sequence[Assertion]) -> Grades:
        """Grade ``answer`` by every assertion."""
        own: Mapping[str, Callable[[str, Assertion], str | None]] = {
            "policy_valid": _policy_valid,
            "contains": _contains,
            "absent": _absent,
            "order": _order,
            "command_exists": self._command_exists,
        }
        failures = []
        num_skipped = 0
        for assertion in assertions:
            kind = assertion["kind"]
            if kind in own:
                failure = own[kind](answer, assertion)
            elif kind in self.outside:
                failure = self._of_policy(self.outside[kind], answer, assertion)
            else:
                num_skipped += 1
                continue
            failures += [f"{kind}: {failure}"] if failure is not None else []
        return Grades(tuple(failures), num_skipped)

    def _command_exists(self, answer: str, assertion: Assertion) -> str | None:
        mentions = commands_in(answer)
        for mention in mentions:
            problem = self.lookup(mention.text, mention.is_whole)
            if problem is not None:
                return f"`{mention.text}`: {problem}"
        wanted = assertion.get("command")
        if wanted is not None and not any(
            f"{mention.text} ".startswith(f"{wanted} ") for mention in mentions
        ):
            return f"there is no `{wanted}`"
        return None if mentions else "there is no command"

    def _of_policy(self, grader: OutsideGrader, answer: str, assertion: Assertion) -> str | None:
        policies = policies_in(answer)
        if not policies:
            return "there is no policy"
        failures = (grader(policy, assertion) for policy in policies)
        return next((failure for failure in failures if failure is not None), None)


def _policy_valid(answer: str, assertion: Assertion) -> str | None:
    policies = policies_in(answer)
    if not policies:
        return "there is no policy"
    target = assertion.get("for")
    for policy in policies:
        try:
            diagnostics = validate_policy(read_yaml(policy, ANSWER), target=target)
        except (ValueError, UnreadableError) as error:
            return str(error)
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.is_error]
        if errors:
            return str(errors[0])
    return None


def _contains(answer: str, assertion: Assertion) -> str | None:
    text, texts = _plain(answer), assertion["any_of"]
    if any(_plain(wanted) in text for wanted in texts):
        return None
    return f"there is none of {_listed(texts)}"


def _absent(answer: str, assertion: Assertion) -> str | None:
    text = _plain(answer)
    found = [unwanted for unwanted in assertion["any_of"] if _plain(unwanted) in text]
    return f"there is {_listed(found)}" if found else None


def _order(answer: str, assertion: Assertion) -> str | None:
    text, texts = _plain(answer), assertion["texts"]
    places = [text.find(_plain(wanted)) for wanted in texts]
    if -1 in places:
        return f"there is no {texts[places.index(-1)]!r}"
    for earlier, later, before, after in zip(texts, texts[1:], places, places[1:], strict=False):
        if before >= after:
            return f"{later!r} comes before {earlier!r}"
    return None


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(repr(text) for text in texts)
