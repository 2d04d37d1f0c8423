import io
import sys

import pytest

from offload_runtime.cli.progress import shown_progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_bar_for_each_phase_and_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with shown_progress() as advance:
        for phase in ("baseline", "policy"):
            for done in range(4):
                advance(phase, done, 3)
    shown = terminal.getvalue()
    assert "baseline" in shown
    assert "policy" in shown
    assert "3/3" in shown
    assert shown.endswith("\x1b[2K")  # the last thing written erases the last line


def test_without_a_terminal_what_takes_long_says_every_ten_seconds_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    now = iter([100.0, 104.0, 111.0, 113.0, 121.5])
    monkeypatch.setattr("offload_runtime.cli.progress.time.monotonic", lambda: next(now))
    with shown_progress() as advance:
        for done in range(1, 5):
            advance("policy", done, 9)
    assert stream.getvalue() == "policy: 2 of 9, 11 s\npolicy: 4 of 9, 22 s\n"


def test_without_a_terminal_what_is_quick_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_progress() as advance:
        advance("policy", 1, 2)
    assert stream.getvalue() == ""
