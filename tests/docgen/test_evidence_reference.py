"""Result files as tables."""

import json
from pathlib import Path

import pytest

from offload_runtime.docgen.evidence_reference import read_evidence

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
FILES = sorted(path.name for path in EVIDENCE.glob("*.json"))


@pytest.mark.parametrize("name", FILES)
def test_every_result_file_has_a_table_and_says_what_it_is(name: str) -> None:
    reference = read_evidence(name, json.loads((EVIDENCE / name).read_text()))
    assert reference.what
    assert reference.environment
    assert reference.figures.startswith("|")


def test_numbers_of_a_pair_stand_as_they_are_in_the_file() -> None:
    data = json.loads((EVIDENCE / "llama3-8b-inductor-h200.json").read_text())
    figures = read_evidence("x.json", data).figures
    step = data["step_ms"]
    assert f"| ms a step, median | {step['baseline']:.1f} | {step['policy']:.1f} |" in figures
    assert f"{data['ratio']:.3f}" in figures


def test_a_side_that_did_not_fit_says_so_and_what_a_process_was_kept_to_stands_there() -> None:
    data = json.loads((EVIDENCE / "eager-llama3-8b-lora-80gb-h200.json").read_text())
    reference = read_evidence("x.json", data)
    assert "| `eager` |  |  |  | out of memory |" in reference.figures
    assert reference.environment.endswith("kept to 74.5 GiB of device memory")


def test_what_apply_printed_stands_with_its_predictions_and_its_verdict() -> None:
    data = json.loads((EVIDENCE / "apply-llama3-8b-lora-80gb-h200.json").read_text())
    printed = data["printed"]["data"]
    reference = read_evidence("x.json", data)
    peaks = [f"{printed[run]['peak_device_bytes'] / 2**30:.3g} GiB" for run in ("baseline", "policy")]
    assert f"| peak | {' | '.join(peaks)} |" in reference.figures
    assert reference.figures.endswith(printed["verdict"])
    assert printed["environment"]["gpu"] in reference.environment


def test_a_file_of_unknown_form_shows_its_numbers() -> None:
    figures = read_evidence(
        "x.json", {"a": 1, "b": {"c": 2.5, "d": {"e": {"f": 3}}}, "g": [1], "h": True}
    ).figures
    assert figures.splitlines()[2:] == ["| `a` | 1 |", "| `b.c` | 2.5 |", "| `h` | yes |"]
