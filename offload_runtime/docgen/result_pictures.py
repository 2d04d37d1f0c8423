"""Pictures of the frontiers that `offload bench` measured, drawn from the result files in docs/evidence.

A picture holds the hash of the file that it was drawn from, by which :func:`picture_drifts` finds out that it shows
other numbers. Its own bytes differ with the version of matplotlib, so that they are not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offload_runtime.docgen.drift import Drift
from offload_runtime.models.bench_file import read_result
from offload_runtime.reporting.bench import draw_bench

__all__ = ["draw_pictures", "picture_drifts", "result_picture", "result_pictures"]

PICTURES = "docs/reference/results"


def result_picture(file: str, data: Mapping[str, Any]) -> str | None:
    """Return the picture of the result ``file``, from the root of the repository; None where nothing is to be drawn."""
    timed = data.get("kind") == "BenchResult" and data["device"] != "cpu"
    return f"{PICTURES}/{Path(file).stem}.svg" if timed else None


def result_pictures(evidence: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the pictures of all result files: picture -> file, both from the root of the repository."""
    pictures = ((result_picture(file, data), file) for file, data in evidence.items())
    return {picture: file for picture, file in pictures if picture is not None}


def picture_drifts(root: Path, pictures: Mapping[str, str]) -> tuple[Drift, ...]:
    """Name each picture that is missing, or was drawn from another state of its result file."""
    found = []
    for picture, file in sorted(pictures.items()):
        path = root / picture
        if not path.is_file():
            found.append(Drift(picture, "missing"))
        elif _source(root, file) not in path.read_text("utf-8"):
            found.append(Drift(picture, "stale"))
    return tuple(found)


def draw_pictures(root: Path, pictures: Mapping[str, str]) -> None:
    """Draw ``pictures`` (picture -> result file). Raises RefusedError without matplotlib."""
    for picture, file in pictures.items():
        (root / picture).parent.mkdir(parents=True, exist_ok=True)
        draw_bench(read_result(root / file), root / picture, source=_source(root, file))


def _source(root: Path, file: str) -> str:
    return f"{file}, sha256 {hashlib.sha256((root / file).read_bytes()).hexdigest()}"
