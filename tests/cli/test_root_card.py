"""What the package's own card tells to run next works where there is no checkout."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from offload_runtime.card_reading import load_card
from offload_runtime.shipped import shipped_policies
from tests.cli.conftest import Offload

CARD = Path(__file__).parents[2] / "card.yaml"


def test_the_shipped_policies_are_tested_from_any_folder(
    offload: Offload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [follow_up.command or "" for follow_up in load_card(CARD).follow_up_validation]
    (words,) = (shlex.split(line)[1:] for line in commands if line.startswith("offload test "))
    assert sorted(word for word in words[1:] if word in shipped_policies()) == sorted(shipped_policies())
    monkeypatch.chdir(tmp_path)
    assert offload(*words).exit_code == 0
