from pathlib import Path

import pytest

from offload_runtime.cli.paths import files_named


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out two policies, one of them below a hidden folder, and an empty folder."""
    monkeypatch.chdir(tmp_path)
    for file in ("b/policy.yaml", "b/cases.yaml", "a/deep/policy.yaml", "a/.old/policy.yaml", "a/notes.yaml"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()


@pytest.mark.parametrize(
    ("references", "files"),
    [
        (["."], ["a/deep/policy.yaml", "b/cases.yaml", "b/policy.yaml"]),
        (["b", "a"], ["b/cases.yaml", "b/policy.yaml", "a/deep/policy.yaml"]),
        (["b/policy.yaml", "b"], ["b/policy.yaml", "b/cases.yaml"]),
        (["balanced", "missing.yaml", "empty"], ["balanced", "missing.yaml", "empty"]),
    ],
)
def test_folders_become_their_files_in_order_and_once(references: list[str], files: list[str]) -> None:
    assert list(files_named(references, ("policy.yaml", "cases.yaml"))) == files
