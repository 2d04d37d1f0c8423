"""What a card says about this repository's code: symbols, tests and error texts that have to be there."""

from __future__ import annotations

from offload_runtime.card import Card, FailureMode, SymbolEvidence
from offload_runtime.card_checks.symbols import Sources, split_reference
from offload_runtime.errors import Span
from offload_runtime.findings import Findings

__all__ = ["check_failure_modes", "check_symbols", "fixed_parts", "named_tests"]

VARYING = "..."
# A part shorter than this would be found in any program.
MIN_PART_LENGTH = 4


def named_tests(card: Card) -> tuple[tuple[str, Span], ...]:
    """Return the tests that a card names and where, in the order of the file."""
    of_modes = [(mode.test, mode.test_span) for mode in card.failure_modes if mode.test is not None]
    held = [claim.evidence for claim in card.claims if isinstance(claim.evidence, SymbolEvidence)]
    return (*of_modes, *((evidence.test, evidence.test_span) for evidence in held))


def check_symbols(card: Card, sources: Sources, findings: Findings, *, has_tests: bool) -> int:
    """Look up every symbol that a claim names and, with ``has_tests``, every test; returns how many there were."""
    num_checked = 0
    for claim in card.claims:
        if isinstance(claim.evidence, SymbolEvidence):
            num_checked += 1
            problem = sources.problem(claim.evidence.symbol)
            if problem is not None:
                hint = "name the symbol that does it now, or take the claim back"
                findings.add(claim.evidence.symbol_span, "CRD301", problem, hint)
    for test, span in named_tests(card) if has_tests else ():
        num_checked += 1
        problem = sources.problem(test)
        if problem is not None:
            findings.add(span, "CRD302", problem, "name the test that holds it now, or write one")
    return num_checked


def check_failure_modes(card: Card, sources: Sources, findings: Findings) -> None:
    """Find error texts that no program text has any more, and tests that are about something else."""
    package = None
    for mode in card.failure_modes:
        if mode.test is None or sources.problem(mode.test) is not None:
            continue
        if package is None:
            package = _package_texts(sources)
        parts = fixed_parts(mode.error)
        texts = f"{package}\n{sources.literals(split_reference(mode.test)[0])}"
        missing = [part for part in parts if part not in texts]
        if missing or not parts:
            message = f"no message of the package contains {missing[0]!r}" if missing else "no fixed text"
            hint = f"write the message as it is now; {VARYING} stands for each part that varies"
            findings.add(mode.error_span, "CRD303", message, hint)
        elif not _is_about(mode, parts, sources):
            wanted = f"neither {mode.code} nor the error's text" if mode.code else "not the error's text"
            message = f"the test names {wanted}"
            findings.add(mode.test_span, "CRD304", message, "name the test that provokes this error")


def fixed_parts(error: str) -> list[str]:
    """Return the parts of an error's text that are always the same, those that say too little left out."""
    parts = (part.strip() for part in " ".join(error.split()).split(VARYING))
    return [part for part in parts if len(part) >= MIN_PART_LENGTH]


def _is_about(mode: FailureMode, parts: list[str], sources: Sources) -> bool:
    """Tell whether a test's own text (or the id of its case) has the code, or a part of the error."""
    assert mode.test is not None
    text = f"{mode.test}\n{sources.text(mode.test)}"
    return (mode.code is not None and mode.code in text) or any(part in text for part in parts)


def _package_texts(sources: Sources) -> str:
    schemas = sorted((sources.root / "offload_runtime/schemas").glob("*.json"))
    return "\n".join(
        [sources.literals("offload_runtime/**/*.py"), *(path.read_text("utf-8") for path in schemas)]
    )
