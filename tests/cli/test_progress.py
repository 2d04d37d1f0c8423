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


def test_without_a_terminal_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_progress() as advance:
        advance("policy", 1, 2)
    assert stream.getvalue() == ""
