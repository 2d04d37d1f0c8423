"""Where skills come from: those of the installed package, or of the checkout beside it.

A skill is a folder ``skills/NAME`` with SKILL.md (for the agent that reads it), card.yaml (checked), evals and
references. The package itself has a card too, under the name ``cpu-offload`` and without a folder of its own. Findings
name a shipped file ``skills/NAME/...`` wherever it is installed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from offload_runtime.card import CARD_FILE
from offload_runtime.errors import Diagnostic, UnreadableError
from offload_runtime.shape import did_you_mean
from offload_runtime.shipped import skills_directory

__all__ = [
    "PACKAGE_CARD",
    "SKILL_FILE",
    "Skill",
    "find_skill",
    "list_skills",
    "package_card",
    "repository_root",
]

SKILL_FILE = "SKILL.md"
EVALS_FILE = "evals/evals.json"
PACKAGE_CARD = "cpu-offload"


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill: its folder, and the name ``label`` by which findings call that folder.

    ``is_package`` marks the card of the package itself, which has neither SKILL.md nor evals.
    """

    name: str
    directory: Path
    label: str
    is_package: bool = False

    def path(self, file: str) -> Path:
        """Return the path of one of the skill's files."""
        return self.directory / file

    def file_label(self, file: str) -> str:
        """Return the name by which findings call one of the skill's files."""
        return f"{self.label}/{file}" if self.label else file

    @property
    def card(self) -> Path:
        """The path of its card."""
        return self.directory / CARD_FILE

    def files(self) -> tuple[str, ...]:
        """Return the skill's files, relative to its folder, sorted; of the package, its card alone."""
        if self.is_package:
            return (CARD_FILE,)
        found = (path for path in self.directory.rglob("*") if path.is_file() and not _is_hidden(path))
        return tuple(sorted(path.relative_to(self.directory).as_posix() for path in found))


def list_skills() -> tuple[Skill, ...]:
    """Return the shipped skills, by name; the package's own card is not among them."""
    directory = skills_directory()
    if not directory.is_dir():
        return ()
    folders = sorted(entry for entry in directory.iterdir() if entry.is_dir() and not _is_hidden(entry))
    return tuple(Skill(folder.name, folder, f"skills/{folder.name}") for folder in folders)


def package_card() -> Skill:
    """Return the card of the package itself."""
    package = Path(__file__).parent
    directory = package if (package / CARD_FILE).is_file() else package.parent
    return Skill(PACKAGE_CARD, directory, "", is_package=True)


def find_skill(reference: str) -> Skill:
    """Return the skill ``reference``: the name of a shipped one, of the package's card, or the path of a folder.

    Raises UnreadableError where there is none.
    """
    shipped = {skill.name: skill for skill in (*list_skills(), package_card())}
    if reference in shipped:
        return shipped[reference]
    path = Path(reference.removesuffix(f"/{CARD_FILE}"))
    if "/" in reference and os.path.isdir(path):
        return Skill(path.resolve().name, path, path.as_posix())
    hint = did_you_mean(reference, shipped) or f"skills: {', '.join(shipped)}; a path of a folder has a /"
    raise UnreadableError(Diagnostic("CRD601", "error", f"there is no skill {reference!r}", hint=hint))


def repository_root() -> Path | None:
    """Return the checkout that this package runs from, None where it is installed without one."""
    root = Path(__file__).parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "tests").is_dir() else None


def _is_hidden(path: Path) -> bool:
    return path.name.startswith((".", "__"))
