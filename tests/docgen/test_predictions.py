"""Plans that are quoted belong to the policies, profiles and commands as they are."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.cli.program import program
from offload_runtime.docgen.predictions import PREDICTED, stale_predictions, write_predictions
from offload_runtime.docgen.sources import PREDICTIONS_FILE, Sources, gather
from offload_runtime.errors import Diagnostic
from offload_runtime.hardware import HardwareProfile, load_hardware

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sources() -> Sources:
    return gather(ROOT, program)


def with_plan(sources: Sources, name: str, **changes: Any) -> Sources:
    data = copy.deepcopy(dict(sources.evidence[PREDICTIONS_FILE]))
    data["plans"][name] = {**data["plans"].get(name, {"command": "", "policy_hash": ""}), **changes}
    return replace(sources, evidence={**sources.evidence, PREDICTIONS_FILE: data})


def test_the_quoted_plans_are_those_of_the_policies_and_profiles_as_they_are(sources: Sources) -> None:
    assert stale_predictions(sources) == ()


def test_what_changed_is_named(sources: Sources) -> None:
    changed = "plan lora has changed since it was predicted"
    assert stale_predictions(with_plan(sources, "lora", policy_hash="0")) == (changed,)
    assert stale_predictions(with_plan(sources, "lora", command="offload plan fit")) == (changed,)
    assert stale_predictions(with_plan(sources, "old")) == ("plan old was predicted and is not quoted",)
    profiles = tuple(HardwareProfile(p.name, "changed", p.figures) for p in sources.profiles)
    assert stale_predictions(replace(sources, profiles=profiles)) == tuple(
        f"hardware profile {name} has changed since the quoted plans were predicted"
        for name in ("h100-sxm", "h200-pcie5")
    )
    evidence = {file: data for file, data in sources.evidence.items() if file != PREDICTIONS_FILE}
    missing = "the quoted plans have not been predicted yet"
    assert stale_predictions(replace(sources, evidence=evidence)) == (missing,)


def test_a_refused_plan_is_kept_with_its_words(tmp_path: Path) -> None:
    (tmp_path / PREDICTIONS_FILE).parent.mkdir(parents=True)
    refused = Diagnostic("PLN413", "error", "no plan", hint="more")
    profiles = {run.hardware: load_hardware(run.hardware) for run in PREDICTED}
    write_predictions(tmp_path, [(run, refused) for run in PREDICTED], profiles, {"torch": "2"})
    written = json.loads((tmp_path / PREDICTIONS_FILE).read_text())["plans"]
    assert list(written) == [run.name for run in PREDICTED]
    assert written["adamw"]["refused"] == {"code": "PLN413", "message": "no plan", "hint": "more"}
    assert written["adamw"]["command"] == (
        "offload plan fit --model builtin:llama3-8b --hardware h100-sxm --mode inductor --optimizer adamw"
    )
