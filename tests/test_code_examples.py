"""The examples of the code table do what they say: the bad one provokes the code, the good one nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offload_runtime.codes import CODES, CodeEntry
from tests.code_examples import message_templates, outcomes

SOURCE = Path(__file__).parents[1] / "offload_runtime"
WITH_EXAMPLES = [entry for entry in CODES.values() if entry.bad_example is not None]
WITH_MESSAGES = [entry for entry in CODES.values() if entry.message_example is not None]
# Raised only where no accelerator is there, or none that is known.
WITHOUT_AN_ACCELERATOR = {"MOD707", "PLN421", "RUN524"}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Return a folder for the bad and one for the good example; what they import is forgotten in between."""
    folders = tmp_path / "bad", tmp_path / "good"
    for folder in folders:
        folder.mkdir()
    before = set(sys.modules)
    yield folders
    for name in ("my_model", "train"):
        if name not in before:
            sys.modules.pop(name, None)


def found(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[frozenset[tuple[str, str]]]:
    for run in outcomes(text, folder):
        monkeypatch.chdir(folder)
        sys.modules.pop("my_model", None)
        yield run()


@pytest.mark.parametrize("entry", WITH_EXAMPLES, ids=lambda entry: entry.code)
def test_the_bad_example_provokes_the_code_and_the_good_one_nothing(
    entry: CodeEntry, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if entry.code in WITHOUT_AN_ACCELERATOR:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("an accelerator is here")
    assert entry.bad_example is not None
    assert entry.good_example is not None, "an example that is bad needs one that is good"
    bad = found(entry.bad_example, folders[0], monkeypatch)
    good = found(entry.good_example, folders[1], monkeypatch)
    tried = []
    for provoked, left in zip(bad, good, strict=True):
        codes, remaining = {code for code, _ in provoked}, {code for code, _ in left}
        graver = {code for code, severity in left if severity != "note"}
        if entry.code in codes and entry.code not in remaining and not graver:
            return
        tried.append((sorted(codes), sorted(remaining)))
    pytest.fail(f"{entry.code} is not what separates the examples: {tried}")


@pytest.mark.parametrize("entry", WITH_MESSAGES, ids=lambda entry: entry.code)
def test_the_message_shown_is_one_that_the_source_makes(entry: CodeEntry) -> None:
    message = entry.message_example
    assert message is not None
    assert any(pattern.match(message) for pattern in message_templates(entry.code, SOURCE)), message


@pytest.mark.parametrize("entry", CODES.values(), ids=lambda entry: entry.code)
def test_every_code_is_shown(entry: CodeEntry) -> None:
    assert (entry.bad_example is None) is (entry.good_example is None)
    assert entry.bad_example is not None or entry.message_example is not None
