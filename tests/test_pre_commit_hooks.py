"""The hooks that other repositories take from this one are valid, and call commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from offload_runtime.cli.program import COMMANDS
from offload_runtime.shipped import POLICY_FILE, TEST_FILE

MANIFEST = Path(__file__).parents[1] / ".pre-commit-hooks.yaml"
HOOKS: dict[str, dict[str, Any]] = {hook["id"]: hook for hook in yaml.safe_load(MANIFEST.read_text("utf-8"))}


def test_pre_commit_accepts_the_manifest() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    assert len(clientlib.load_manifest(str(MANIFEST))) == len(HOOKS) == 2


@pytest.mark.parametrize("hook", HOOKS.values(), ids=list(HOOKS))
def test_a_hook_calls_a_command_that_exists(hook: dict[str, Any]) -> None:
    program, command = shlex.split(hook["entry"])
    assert (program, command in COMMANDS) == ("offload", True)


@pytest.mark.parametrize(
    ("path", "validated", "tested"),
    [
        (f"policies/mine/{POLICY_FILE}", True, True),
        (TEST_FILE, True, True),
        ("skills/tune/card.yaml", True, False),
        ("docs/old-policy.yaml", False, False),
        ("policy.yaml.orig", False, False),
    ],
)
def test_hooks_run_for_the_files_they_are_about(path: str, validated: bool, tested: bool) -> None:
    matched = {name: re.search(hook["files"], path) is not None for name, hook in HOOKS.items()}
    assert matched == {"offload-validate": validated, "offload-test": tested}
