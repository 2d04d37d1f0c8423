from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.card_checks import Checker, OutsideGrader, SkillVerdict
from offload_runtime.skills_catalog import Skill

NAME = "move-things"

CARD = """\
apiVersion: offload/v1
kind: SkillCard
name: move-things
title: Move things
summary: Moves things; use when they do not fit.
next_command: offload explain POLICY --model MODEL
applies_to: [{text: Training with PyTorch.}]
enable_when:
  - text: The step does not fit.
    when: {fact: fits, is: false}
    holds: {fits: false}
    fails: {fits: true}
avoid_when:
  - text: The step fits.
    when: {fact: fits, is: true}
    holds: {fits: true}
    fails: {fits: false}
interactions: {required: [], conditional: [], incompatible: []}
training_dimensions:
  speed: {effect: slower, confidence: high, rationale: The link is slow.}
  memory: {effect: lower, confidence: high, rationale: What was moved is elsewhere.}
  scale: {effect: improves, confidence: high, rationale: More fits.}
  convergence: {effect: neutral, confidence: high, rationale: The numbers are the same.}
  stability: {effect: neutral, confidence: low, rationale: Nobody has looked.}
measured_results:
  - text: Step time.
    value: 1.009
    unit: ratio
    num_samples: 3
    spread: {min: 1.006, max: 1.013}
    evidence:
      file: docs/evidence/run.json
      value: /ratio
      num_samples: {count: /ratio_by_round}
      min: {min: /ratio_by_round}
      max: {max: /ratio_by_round}
failure_modes:
  - error: the host can give ... of pinned memory, not more
    cause: The budget is larger than the host allows.
    confirm: Read the host's limit.
    fix: Lower the budget.
    code: RUN503
    test: tests/test_arena.py::test_a_full_host_is_refused
known_limitations: [It moves nothing without an accelerator.]
follow_up_validation: [{text: The numbers are the same., command: offload apply POLICY --model MODEL --steps 20}]
claims:
  - text: Sizes have units.
    status: code_verified
    evidence: {symbol: offload_runtime/units.py::Size.parse, test: tests/test_units.py::test_a_size_has_a_unit}
"""
SKILL_TEXT = """\
---
name: move-things
description: "Moves things. Use when they do not fit."
---
# Move things

Read [the details](references/details.md) where it fails. `offload codes RUN503` explains an error.

```console
$ offload validate policy.yaml
```
"""
RESULT = {"ratio": 1.0088, "ratio_by_round": [1.0131, 1.0094, 1.0056]}
SOURCES = {
    "offload_runtime/units.py": "class Size:\n    def parse(self):\n        return 1\n\nLIMIT = 3\n",
    "offload_runtime/arena.py": (
        "def reserve(n):\n"
        "    raise MemoryError(\n"
        "        f'the host can give {n} of pinned '\n"
        "        'memory, not more')\n"
    ),
    "offload_runtime/schemas/x.schema.json": "{}",
    "tests/test_units.py": "def test_a_size_has_a_unit():\n    assert True\n",
    "tests/test_arena.py": 'def test_a_full_host_is_refused():\n    assert "RUN503"\n',
}


def one_eval(name: str, *, should_trigger: bool = True) -> dict[str, Any]:
    return {
        "id": name,
        "prompt": "It does not fit.",
        "should_trigger": should_trigger,
        "assertions": [{"kind": "contains", "any_of": ["offload apply"]}],
        "right_answer": "Run `offload apply POLICY --model MODEL`.",
        "wrong_answer": "Buy a larger one.",
    }


def evals() -> dict[str, Any]:
    members = [one_eval(f"case-{i}", should_trigger=i < 3) for i in range(6)]
    return {"skill": NAME, "evals": members}


@dataclass(frozen=True)
class Project:
    """A small repository with one skill in it, in which nothing is wrong until something is changed."""

    root: Path

    def replace(self, file: str, old: str, new: str) -> None:
        """Change one place of a file."""
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new))

    def write(self, file: str, text: str) -> None:
        """Write a file, and the folders above it."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(
        self,
        *,
        run_tests: bool = False,
        outside: dict[str, OutsideGrader] | None = None,
        missing_command: str | None = None,
    ) -> SkillVerdict:
        """Check the skill, with a command line that has everything but ``missing_command``."""

        def lookup(line: str, is_whole: bool) -> str | None:
            return "it does not exist" if missing_command is not None and missing_command in line else None

        skill = Skill(NAME, self.root / "skills" / NAME, f"skills/{NAME}")
        (verdict,) = Checker(self.root, lookup, outside or {}).check([skill], run_tests=run_tests)
        return verdict

    def findings(self, **options: Any) -> list[tuple[str, str | None, int | None]]:
        """Check, and return code, file and line of each finding."""
        return [(d.code, d.file, d.line) for d in self.check(**options).diagnostics]

    def line(self, file: str, text: str) -> int:
        """Return the line on which ``text`` stands first."""
        lines = (self.root / file).read_text().split("\n")
        return next(number for number, line in enumerate(lines, 1) if text in line)
