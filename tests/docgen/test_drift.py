"""Pages on disk against pages as they should be."""

from pathlib import Path

from offload_runtime.docgen.drift import Drift, find_drift, write_pages

PAGES = {"docs/reference/a.md": "one\ntwo\n", "docs/reference/sub/b.md": "b\n", "llms.txt": "text\n"}


def test_what_is_written_has_no_drift(tmp_path: Path) -> None:
    assert {drift.state for drift in write_pages(tmp_path, PAGES)} == {"missing"}
    assert find_drift(tmp_path, PAGES) == ()
    assert write_pages(tmp_path, PAGES) == ()


def test_a_stale_page_shows_the_lines_that_differ(tmp_path: Path) -> None:
    write_pages(tmp_path, PAGES)
    (tmp_path / "docs/reference/a.md").write_text("one\n2\n")
    assert find_drift(tmp_path, PAGES) == (Drift("docs/reference/a.md", "stale", "@@ -2 +2 @@\n-2\n+two"),)


def test_a_long_difference_is_cut_and_says_so(tmp_path: Path) -> None:
    page = {"docs/reference/a.md": "".join(f"{number}\n" for number in range(100))}
    (tmp_path / "docs/reference").mkdir(parents=True)
    (tmp_path / "docs/reference/a.md").write_text("")
    (drift,) = find_drift(tmp_path, page)
    assert len(drift.diff.splitlines()) == 13
    assert drift.diff.endswith("... and 89 more lines")


def test_files_that_nobody_generates_are_named_and_removed(tmp_path: Path) -> None:
    write_pages(tmp_path, PAGES)
    left = tmp_path / "docs/reference/old.md"
    left.write_text("old")
    (tmp_path / "docs/reference/picture.svg").write_text("<svg/>")
    pictures = ("docs/reference/picture.svg",)
    assert find_drift(tmp_path, PAGES, pictures) == (Drift("docs/reference/old.md", "not generated"),)
    write_pages(tmp_path, PAGES, pictures)
    assert not left.exists()
    assert (tmp_path / "docs/reference/picture.svg").exists()
