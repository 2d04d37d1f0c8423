"""Links between pages: files and headings that are not there are named with their line."""

from pathlib import Path

import pytest

from offload_runtime.docgen.link_check import BrokenLink, broken_links, linked_pages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs/evidence").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# Top\n\n[guide](docs/guide.md#part-one) [files](docs/evidence)\n")
    (tmp_path / "docs/guide.md").write_text(
        "# Guide\n\n## Part one\n\n[top](../README.md#top) [here](#guide)\n"
    )
    return tmp_path


def broken(root: Path) -> list[BrokenLink]:
    pages = linked_pages(root, {})
    return list(broken_links(root, pages, sorted(pages)))


def test_links_that_lead_somewhere_are_no_finding(root: Path) -> None:
    (root / "docs/more.md").write_text("[a](https://example.org/x#y) [b](mailto:a@b.c) `[c](none.md)`\n")
    assert broken(root) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("none.md", "there is no docs/none.md"),
        ("../none.md#x", "there is no none.md"),
        ("guide.md#part-two", "docs/guide.md has no heading #part-two"),
        ("#nothing", "docs/more.md has no heading #nothing"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(root: Path, link: str, reason: str) -> None:
    (root / "docs/more.md").write_text(f"# More\n\ntext\n[x]({link})\n")
    assert broken(root) == [BrokenLink("docs/more.md", 4, link, reason)]


def test_pages_that_are_about_to_be_written_count_as_they_will_be(root: Path) -> None:
    (root / "docs/more.md").write_text("[x](reference/new.md#new)\n")
    pages = linked_pages(root, {"docs/reference/new.md": "# New\n"})
    assert list(broken_links(root, pages, ["docs/more.md"])) == []
