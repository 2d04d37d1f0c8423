"""Check files: what ``offload validate`` does. One function per kind of document, none imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from offload_runtime.document import Document, MapNode, ScalarNode
from offload_runtime.errors import Diagnostic, UnreadableError, sorted_diagnostics
from offload_runtime.meaning import check_meaning
from offload_runtime.policy_loading import read_policy
from offload_runtime.predicates import Scalar
from offload_runtime.shape import did_you_mean
from offload_runtime.shipped import locate_policy
from offload_runtime.strict_yaml import read_yaml_file
from offload_runtime.targets import EXPORT_TARGETS, check_target

Overrides = Mapping[str, Any] | Sequence[str]
Facts = Mapping[str, Scalar]
NO_FACTS: Facts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy is checked with: overrides, and the front end or system that is to honour it.

    ``facts`` and ``settings`` (``KEY=VALUE``) are what the constraints of another system hang on.
    """

    target: str | None
    overrides: Overrides
    facts: Facts
    settings: Sequence[str]


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """What was found in one file. ``kind`` is None where the file does not say a kind that exists."""

    file: str
    kind: str | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Tell whether no finding is an error."""
        return not any(diagnostic.is_error for diagnostic in self.diagnostics)


def validate_file(
    reference: str,
    *,
    target: str | None = None,
    overrides: Overrides = (),
    facts: Facts = NO_FACTS,
    settings: Sequence[str] = (),
) -> FileVerdict:
    """Check one document: shape, meaning, limits; with ``target``, what that front end or system cannot honour.

    ``reference`` is a path or the name of a shipped policy; ``facts`` are what the constraints of another system
    hang on, ``settings`` (``KEY=VALUE``) what it is told beside the policy. Findings are returned, never raised;
    ValueError for a target that does not exist.
    """
    try:
        path, name = locate_policy(reference)
        document = read_yaml_file(path, file=name)
    except UnreadableError as error:
        return FileVerdict(reference, None, sorted_diagnostics(error.diagnostics))
    kind = document_kind(document)
    if kind is None or kind not in CHECKS:
        finding = _unknown_kind(document, kind)
        return FileVerdict(name, None, sorted_diagnostics([*document.diagnostics, finding]))
    return FileVerdict(name, kind, CHECKS[kind](document, Asked(target, overrides, facts, settings)))


def document_kind(document: Document) -> str | None:
    """Return the ``kind`` that a document states."""
    root = document.root
    kind = root.get("kind") if isinstance(root, MapNode) else None
    return kind.value if isinstance(kind, ScalarNode) and isinstance(kind.value, str) else None


def validate_policy(
    source: str | Path | Mapping[str, Any] | Document,
    *,
    target: str | None = None,
    overrides: Overrides = (),
    facts: Facts = NO_FACTS,
    settings: Sequence[str] = (),
) -> tuple[Diagnostic, ...]:
    """Return every finding about a policy, warnings and notes included."""
    reading = read_policy(source, overrides)
    findings = reading.diagnostics
    if reading.policy is None:
        return findings
    is_whole = not any(diagnostic.is_error for diagnostic in findings)
    findings += check_meaning(reading.policy, is_whole=is_whole)
    if target is None:
        return sorted_diagnostics(findings)
    if target not in EXPORT_TARGETS:
        return sorted_diagnostics([*findings, *check_target(reading.policy, target)])
    # Only here: what is known of other systems is read from their files.
    from offload_runtime.export.exporter import check_export

    # In the order of an export: refusals, then what is not verified, then what else there is to know.
    found = check_export(reading.policy, target, facts, settings)
    return tuple(dict.fromkeys([*sorted_diagnostics(findings), *found]))


def _check_policy(document: Document, asked: Asked) -> tuple[Diagnostic, ...]:
    return validate_policy(
        document,
        target=asked.target,
        overrides=asked.overrides,
        facts=asked.facts,
        settings=asked.settings,
    )


def _check_test(document: Document, asked: Asked) -> tuple[Diagnostic, ...]:
    # Only here, because it brings the compiler with it: a policy is checked without.
    from offload_runtime.policy_tests import check_test_document

    return check_test_document(document)


def _check_hardware(document: Document, asked: Asked) -> tuple[Diagnostic, ...]:
    # Only here, for the same reason.
    from offload_runtime.hardware import read_hardware

    return read_hardware(document).diagnostics


def _check_card(document: Document, asked: Asked) -> tuple[Diagnostic, ...]:
    # Only here, for the same reason.
    from offload_runtime.card_reading import read_card

    return read_card(document).diagnostics


CHECKS: Mapping[str, Callable[[Document, Asked], tuple[Diagnostic, ...]]] = {
    "Policy": _check_policy,
    "PolicyTest": _check_test,
    "HardwareProfile": _check_hardware,
    "SkillCard": _check_card,
}


def _unknown_kind(document: Document, kind: str | None) -> Diagnostic:
    root = document.root
    if not isinstance(root, MapNode):
        return Diagnostic.at(
            root.span, "POL102", "expected a mapping", hint="start with apiVersion: offload/v1"
        )
    kinds = ", ".join(CHECKS)
    if "kind" not in root.entries:
        return Diagnostic.at(root.span, "POL101", "key 'kind' is missing", hint=f"kind is one of {kinds}")
    hint = did_you_mean(kind, CHECKS) if kind is not None else None
    message = f"kind is one of {kinds}, not {kind!r}" if kind is not None else f"kind is one of {kinds}"
    return Diagnostic.at(root.entries["kind"].span, "POL111", message, path="kind", hint=hint)
