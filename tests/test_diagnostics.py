from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.diagnostics import MAX_SOURCE_COLUMNS, render_diagnostic, render_diagnostics
from offload_runtime.errors import (
    Diagnostic,
    OffloadError,
    PolicyError,
    RefusedError,
    RunError,
    Span,
    UnreadableError,
    UsageError,
    sorted_diagnostics,
)

SOURCES = {"p.yaml": "limits:\n  budget: 5\n"}


def at(
    line: int | None, column: int | None, file: str | None = "p.yaml", hint: str | None = None
) -> Diagnostic:
    return Diagnostic.at(Span(file, line, column), "POL104", "5 is not a size", hint=hint)


def test_the_text_form_has_place_line_caret_and_hint() -> None:
    assert render_diagnostic(at(2, 11, hint="write 5GiB"), SOURCES) == (
        "p.yaml:2:11: POL104 5 is not a size\n"
        "    2 |   budget: 5\n"
        "      |           ^\n"
        "      hint: write 5GiB"
    )


@pytest.mark.parametrize(
    ("diagnostic", "text"),
    [
        (at(None, None), "p.yaml: POL104 5 is not a size"),
        (at(None, None, file=None), "POL104 5 is not a size"),
        (at(99, 1), "p.yaml:99:1: POL104 5 is not a size"),
        (at(2, None), "p.yaml:2: POL104 5 is not a size\n    2 |   budget: 5"),
        (at(1, 1, file="not/there.yaml"), "not/there.yaml:1:1: POL104 5 is not a size"),
    ],
)
def test_what_is_not_known_is_left_out(diagnostic: Diagnostic, text: str) -> None:
    assert render_diagnostic(diagnostic, SOURCES) == text


def test_a_warning_says_so() -> None:
    warning = Diagnostic.at(Span("p.yaml", 1, 1), "POL161", "no effect", severity="warning")
    assert render_diagnostic(warning, SOURCES).startswith("p.yaml:1:1: POL161 warning: no effect\n")


def test_the_source_is_read_from_disk_where_it_was_not_given(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: yes\r\n")
    assert render_diagnostic(at(1, 4, file=str(path))).splitlines()[1:] == ["    1 | a: yes", "      |    ^"]


def test_the_source_of_a_shipped_policy_is_found_wherever_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/")
    text = render_diagnostic(at(2, 1, file="policies/balanced/policy.yaml"))
    assert "apiVersion: offload/v1" in text
    assert text.startswith("policy balanced:2:1: ")


def test_the_caret_stands_under_wide_and_combining_characters() -> None:
    sources = {"p.yaml": "a: 東京e\u0301x"}
    lines = render_diagnostic(at(1, 8), sources).splitlines()
    assert lines[2] == "      | " + " " * 8 + "^"


def test_a_long_line_is_cut_around_the_caret() -> None:
    sources = {"p.yaml": "x" * 500 + "!" + "y" * 500}
    _, line, caret = render_diagnostic(at(1, 501), sources).splitlines()
    assert len(line) <= MAX_SOURCE_COLUMNS + 8
    assert line[caret.index("^")] == "!"


def test_a_file_cannot_write_to_the_terminal() -> None:
    sources = {"p.yaml": "a: \x1b[31mred\u202e"}
    text = render_diagnostic(Diagnostic.at(Span("p.yaml", 1, 4), "YAML012", "bad \x1b[0m"), sources)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<U+001B>[31mred<U+202E>" in text


def test_findings_are_shown_in_the_order_of_their_places_without_repeats() -> None:
    later, earlier = at(2, 1), at(1, 5)
    text = render_diagnostics([later, earlier, later], SOURCES)
    assert text.index("p.yaml:1:5") < text.index("p.yaml:2:1")
    assert text.count("p.yaml:2:1") == 1
    assert sorted_diagnostics([later, earlier, later]) == (earlier, later)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(PolicyError, 1), (UsageError, 2), (UnreadableError, 3), (RefusedError, 4), (RunError, 5)],
)
def test_each_kind_of_error_is_one_exit_code(error: type[OffloadError], exit_code: int) -> None:
    raised = error(at(2, 11, hint="write 5GiB"), at(1, 1))
    assert raised.exit_code == exit_code
    assert (
        str(raised) == "p.yaml:2:11: POL104 5 is not a size (write 5GiB)\np.yaml:1:1: POL104 5 is not a size"
    )
    with pytest.raises(ValueError, match="at least one"):
        error()


def test_the_source_line_is_the_files_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diagnostic = Diagnostic("POL104", "error", "no size", "policy.yaml", 1, 1)
    monkeypatch.chdir(tmp_path)
    for text in ("budget: 12", "budget: 13"):
        Path("policy.yaml").write_text(text)
        assert f"    1 | {text}" in render_diagnostic(diagnostic)


def test_half_a_character_is_written_as_the_streams_write_it() -> None:
    written = render_diagnostic(Diagnostic("YAML001", "error", "a\udcff\x07 cannot be read"))
    assert written == "YAML001 a\\udcff<U+0007> cannot be read"
