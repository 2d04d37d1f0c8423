"""`offload docs build` on a small checkout of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offload_runtime.cli import run
from offload_runtime.docgen.sources import EFFECTS_FILE
from tests.cli.conftest import Offload

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the documentation is built from, and the documentation."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("docs", "skills", "policies", "tests/examples/positive", "offload_runtime"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "card.yaml"]:
        shutil.copy(path, root)
    assert run(["docs", "build", "--root", str(root)]) == 0
    return root


@pytest.fixture
def checkout(built: Path, tmp_path: Path) -> Path:
    """Return a copy of it for one test."""
    return shutil.copytree(built, tmp_path / "checkout")


def test_the_pages_of_this_repository_are_up_to_date(offload: Offload) -> None:
    finished = offload("docs", "build", "--check")
    assert (finished.exit_code, finished.stderr) == (0, ""), finished.stdout


def test_pages_that_are_stale_missing_or_not_generated_are_named(offload: Offload, checkout: Path) -> None:
    reference = checkout / "docs/reference"
    stale, gone, left = reference / "facts.md", reference / "codes.md", reference / "old.md"
    stale.write_text(stale.read_text().replace("# Facts", "# Fakts"))
    gone.unlink()
    left.write_text("old\n")
    finished = offload("docs", "build", "--check", "--root", str(checkout), "--format", "json")
    assert finished.exit_code == 1
    found = {item["code"]: item["message"] for item in finished.document["diagnostics"]}
    assert found == {
        "DOC101": "docs/reference/facts.md is stale",
        "DOC102": "docs/reference/codes.md is missing",
        "DOC103": "docs/reference/old.md is not generated",
    }
    page = next(page for page in finished.document["data"]["pages"] if page["state"] == "stale")
    assert page["diff"].endswith("-# Fakts\n+# Facts")
    assert finished.document["next"] == ["offload docs build"]
    assert gone.exists() is False

    repaired = offload("docs", "build", "--root", str(checkout))
    assert (repaired.exit_code, repaired.stderr) == (0, "")
    assert repaired.stdout.splitlines() == [
        "docs/reference/codes.md: written",
        "docs/reference/facts.md: rewritten",
        "docs/reference/old.md: removed",
    ]
    assert offload("docs", "build", "--check", "--root", str(checkout)).exit_code == 0


def test_a_link_that_leads_nowhere_is_a_finding_at_its_line(offload: Offload, checkout: Path) -> None:
    page = checkout / "docs/tuning.md"
    page.write_text(page.read_text() + "\n[nothing](recipes.md#nothing)\n")
    finished = offload("docs", "build", "--check", "--root", str(checkout), "--format", "json")
    (found,) = finished.document["diagnostics"]
    assert (finished.exit_code, found["code"], found["file"]) == (1, "DOC104", "docs/tuning.md")
    assert found["line"] == len(page.read_text().splitlines())


def test_effects_that_are_missing_are_a_finding(offload: Offload, checkout: Path) -> None:
    (checkout / EFFECTS_FILE).unlink()
    finished = offload("docs", "build", "--check", "--root", str(checkout), "--format", "json")
    assert "DOC105" in {item["code"] for item in finished.document["diagnostics"]}
    assert finished.document["next"] == ["offload docs build --refresh"]


def test_an_installed_package_has_no_documentation_to_build(offload: Offload, tmp_path: Path) -> None:
    finished = offload("docs", "build", "--root", str(tmp_path))
    assert finished.exit_code == 2
    assert "DOC100" in finished.stderr


def test_checking_and_refreshing_exclude_each_other(offload: Offload) -> None:
    finished = offload("docs", "build", "--check", "--refresh")
    assert (finished.exit_code, finished.stdout) == (2, "")
    assert "CLI601" in finished.stderr
