from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.card_checks.small_project import CARD, NAME, RESULT, SKILL_TEXT, SOURCES, Project, evals


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Write the small repository."""
    written = Project(tmp_path)
    for file, text in SOURCES.items():
        written.write(file, text)
    written.write("docs/evidence/run.json", json.dumps(RESULT))
    written.write(f"skills/{NAME}/card.yaml", CARD)
    written.write(f"skills/{NAME}/SKILL.md", SKILL_TEXT)
    written.write(f"skills/{NAME}/references/details.md", "# Details\n")
    written.write(f"skills/{NAME}/evals/evals.json", json.dumps(evals(), indent=1))
    return written
