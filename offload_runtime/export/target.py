"""What is known about a target of an export: its settings, its rows for the policy schema, its constraints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from offload_runtime.predicates import Predicate, Scalar

Fate = Literal["honoured", "approximate", "refused", "not_applicable"]
Format = Literal["flags", "overrides", "yaml", "json", "python"]
Conversion = Literal["gibibytes", "integer"]
SettingType = Literal["boolean", "integer", "number", "text", "list"]
# null is None; a list of words is a tuple.
SettingValue = Scalar | tuple[str, ...] | None


def setting_text(value: SettingValue) -> str:
    """Return a value as command lines and YAML spell it: ``true``, ``null``, ``[a,b]``."""
    if isinstance(value, tuple):
        return f"[{','.join(value)}]"
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class ExportedSetting:
    """One setting and its value; ``clause`` is the field of the policy that it comes from."""

    key: str
    value: SettingValue
    clause: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where facts come from; ``id`` is what the rows of the same file call it."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class TargetSetting:
    """One setting of the target. Bounds are inclusive, ``below`` names a fact that the value is less than.

    ``error`` is the exact text with which the target refuses a value out of range. ``fact`` is the fact of the run
    that says the same; where that is yes or no and the setting is not, ``stands_for_no`` is that value, and where both
    are words of their own, ``words`` pairs those of the fact with those of the setting. ``also_on_by`` is a fact whose
    yes switches the setting on too. ``choices`` are those of a text, or of each word of a list. ``cure`` is what to do
    about a value out of range, ``LIMIT`` in it the largest. ``since`` says which versions have it, where the one that
    the file is about lacks it.
    """

    key: str
    type: SettingType
    summary: str
    source: str
    default: Scalar | None = None
    minimum: float | None = None
    maximum: float | None = None
    below: str | None = None
    choices: tuple[str, ...] = ()
    error: str | None = None
    fact: str | None = None
    stands_for_no: str | None = None
    words: tuple[tuple[str, str], ...] = ()
    also_on_by: str | None = None
    cure: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a clause, and why. ``reason`` and ``cure`` belong to a refusal, ``note`` to the others."""

    fate: Fate
    reason: str | None = None
    cure: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ClauseRow:
    """The row of one field of the policy schema: the first case that holds decides, else ``otherwise``."""

    path: str
    otherwise: Verdict
    cases: tuple[tuple[Predicate, Verdict], ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """When a setting is written, and with which value: ``value``, what ``taken_from`` names, or null (``unset``).

    ``needs`` says what has to be known, where an unknown value is an error and not a reason to leave it out. ``cure``
    is what to change in the policy where the value is out of range, ``LIMIT`` in it the largest.
    """

    key: str
    when: Predicate | None = None
    value: Scalar | None = None
    taken_from: str | None = None
    conversion: Conversion | None = None
    unset: bool = False
    needs: str | None = None
    clause: str | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule of the target: where ``when`` holds of the settings, ``holds`` has to hold of settings and facts.

    ``error`` is the target's own text. ``settled_by`` names a setting that the export writes and that makes it
    hold where nothing is known. ``since`` names the versions that check it, where the target's version does not.
    """

    name: str
    when: Predicate
    holds: Predicate
    message: str
    cure: str
    clauses: tuple[str, ...]
    source: str
    error: str | None = None
    settled_by: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the target's user sees it: exact text, cause, what confirms it, the cure."""

    error: str
    cause: str
    confirm: str
    fix: str
    source: str
    constraint: str | None = None


@dataclass(frozen=True, slots=True)
class TargetMechanism:
    """One way in which the target offloads: what it is called, what it moves, and when it can be used.

    ``when`` is a condition on facts of the run, ``needs`` the same in words; both are None where nothing limits it.
    ``enabled_when`` tells that a run has it on; None where what is offloaded tells it. ``part_of`` names the mechanism
    that it comes with, where it is no choice of its own. ``chosen_by`` is a setting without which nothing moves, and
    that no fact states.
    """

    name: str
    moves: str
    source: str
    when: Predicate | None = None
    needs: str | None = None
    enabled_when: Predicate | None = None
    part_of: str | None = None
    chosen_by: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """All that is known about one target, at one version, compared with it on the day ``checked``.

    ``trial`` says how an export is tried on another version.
    """

    name: str
    title: str
    version: str
    checked: str
    trial: str
    sources: tuple[Source, ...]
    formats: tuple[Format, ...]
    settings: tuple[TargetSetting, ...]
    clauses: tuple[ClauseRow, ...]
    emits: tuple[Emission, ...]
    constraints: tuple[Constraint, ...]
    failures: tuple[Failure, ...]
    mechanisms: tuple[TargetMechanism, ...] = ()
    notes: tuple[tuple[Predicate, str], ...] = ()

    def row(self, path: str) -> ClauseRow:
        """Return the row of a field of the policy schema; KeyError where the file has none."""
        return {row.path: row for row in self.clauses}[path]

    def setting(self, key: str) -> TargetSetting | None:
        """Return the setting ``key``, None where the target is not known to have it."""
        return {setting.key: setting for setting in self.settings}.get(key)
