"""Pictures of measured frontiers belong to the numbers that they show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from offload_runtime.docgen.drift import Drift
from offload_runtime.docgen.result_pictures import (
    draw_pictures,
    picture_drifts,
    result_picture,
    result_pictures,
)

ROOT = Path(__file__).parents[2]
FILE = "docs/evidence/frontier-llama3-8b-h200.json"
PICTURE = "docs/reference/results/frontier-llama3-8b-h200.svg"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / FILE).parent.mkdir(parents=True)
    shutil.copy(ROOT / FILE, tmp_path / FILE)
    return tmp_path


def test_a_timed_comparison_has_a_picture_and_nothing_else_has() -> None:
    timed = {"kind": "BenchResult", "device": "cuda"}
    assert result_picture(FILE, timed) == PICTURE
    assert result_picture(FILE, {**timed, "device": "cpu"}) is None
    assert result_picture(FILE, {"what": "a rate"}) is None
    assert result_pictures({FILE: timed, "docs/evidence/rate.json": {}}) == {PICTURE: FILE}


def test_a_picture_is_missing_then_drawn_then_stale_when_its_numbers_change(checkout: Path) -> None:
    pictures = {PICTURE: FILE}
    assert picture_drifts(checkout, pictures) == (Drift(PICTURE, "missing"),)
    draw_pictures(checkout, pictures)
    assert picture_drifts(checkout, pictures) == ()
    assert "32 layers, 1 x 8192 tokens" in (checkout / PICTURE).read_text()
    data = json.loads((checkout / FILE).read_text())
    data["rounds"][0]["turns"][0]["step_ms"][0] += 1
    (checkout / FILE).write_text(json.dumps(data))
    assert picture_drifts(checkout, pictures) == (Drift(PICTURE, "stale"),)


def test_the_same_numbers_give_the_same_picture(checkout: Path) -> None:
    draw_pictures(checkout, {PICTURE: FILE})
    first = (checkout / PICTURE).read_bytes()
    draw_pictures(checkout, {PICTURE: FILE})
    assert (checkout / PICTURE).read_bytes() == first
