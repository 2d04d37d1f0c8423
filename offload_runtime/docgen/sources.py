"""What the reference is written from, gathered once: the repository's files and the program's own tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from offload_runtime.card import Card
from offload_runtime.card_reading import load_card
from offload_runtime.codes import CODES, CodeEntry
from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.facts import FACTS, Fact
from offload_runtime.hardware import HardwareProfile, list_hardware
from offload_runtime.shape import SCHEMA_DIRECTORY
from offload_runtime.shipped import POLICY_FILE, policies_directory, shipped_policies

__all__ = ["EFFECTS_FILE", "PREDICTIONS_FILE", "Sources", "checkout", "gather"]

EFFECTS_FILE = "docs/evidence/policy-effects.json"
PREDICTIONS_FILE = "docs/evidence/quoted-plans.json"
_EXAMPLES = (
    "policies/*/*.yaml",
    "offload_runtime/profiles/*.yaml",
    "offload_runtime/targets_data/*.yaml",
    "skills/*/card.yaml",
    "card.yaml",
    "skills/*/evals/evals.json",
    "tests/examples/positive/*.yaml",
)


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything that a page can show; ``effects`` is what the shipped policies were simulated to do, if they were."""

    root: Path
    program: click.Group
    codes: Mapping[str, CodeEntry]
    facts: tuple[Fact, ...]
    schemas: Mapping[str, Mapping[str, Any]]
    policies: Mapping[str, CompiledPolicy]
    policy_texts: Mapping[str, str]
    profiles: tuple[HardwareProfile, ...]
    cards: Mapping[str, Card]
    evidence: Mapping[str, Mapping[str, Any]]
    examples: tuple[Any, ...]

    @property
    def effects(self) -> Mapping[str, Any] | None:
        """The result file of the policies' simulation, None where there is none yet."""
        return self.evidence.get(EFFECTS_FILE)


def checkout(named: Path | None = None) -> Path:
    """Return the repository whose documentation is built: ``named``, or the one that this package lies in.

    Raises UsageError where that is none.
    """
    root = named if named is not None else Path(__file__).parents[2]
    if (root / "docs" / "evidence").is_dir():
        return root
    message = "no checkout of the repository here" if named is None else f"{named} is no checkout"
    hint = "the documentation is built in a checkout, which has docs/evidence; name it with --root"
    raise UsageError(Diagnostic("DOC100", "error", message, hint=hint))


def gather(root: Path, program: click.Group) -> Sources:
    """Read all sources. Raises PolicyError or UnreadableError where a policy, profile or card is none."""
    names = shipped_policies()
    return Sources(
        root=root,
        program=program,
        codes=CODES,
        facts=_facts(),
        schemas={
            path.name.removesuffix(".schema.json"): json.loads(path.read_text("utf-8"))
            for path in sorted(SCHEMA_DIRECTORY.glob("*.schema.json"))
        },
        policies={name: load_policy(name) for name in names},
        policy_texts={name: (policies_directory() / name / POLICY_FILE).read_text("utf-8") for name in names},
        profiles=list_hardware(),
        cards=_cards(root),
        evidence={
            path.relative_to(root).as_posix(): json.loads(path.read_text("utf-8"))
            for path in sorted((root / "docs" / "evidence").glob("*.json"))
        },
        examples=tuple(_read_example(path) for pattern in _EXAMPLES for path in sorted(root.glob(pattern))),
    )


def _facts() -> tuple[Fact, ...]:
    return tuple(FACTS.values())


def _cards(root: Path) -> Mapping[str, Card]:
    """Return the cards by the path of their file: that of the package first, then the skills'."""
    files = [root / "card.yaml", *sorted((root / "skills").glob("*/card.yaml"))]
    return {path.relative_to(root).as_posix(): load_card(path) for path in files if path.is_file()}


def _read_example(path: Path) -> Any:
    """Read a file that the test suite has checked; what the strict reader refuses cannot stand in it."""
    return yaml.safe_load(path.read_text("utf-8-sig"))
