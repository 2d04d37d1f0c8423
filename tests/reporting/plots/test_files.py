"""Pictures as files, and what holds for all of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from offload_runtime.codes import CODES
from offload_runtime.errors import RefusedError, UsageError
from offload_runtime.reporting.plots import (
    Floor,
    Frontier,
    FrontierPoint,
    draw_fates,
    draw_frontier,
    draw_memory,
    draw_timeline,
    write_figure,
)
from offload_runtime.step import Kernel, Simulation, StepTrace
from tests.reporting.plots.drawn import (
    BASELINE,
    FRONTIER,
    GIB,
    SHARES,
    copies_of,
    simulation,
    step,
    title,
)

pytest.importorskip("matplotlib")


LONG_NAMED = FrontierPoint(43 * GIB, 707.0, "dense-balanced-with-a-long-name-of-many-words")
EMPTY = StepTrace((), 0, 0, ())
NOTHING = Simulation((), (), (), (), ())
ONE = StepTrace((Kernel("mm", 1.0, 0), Kernel("mm_backward", 2.0, 0)), 1, 0, ())
ONE_SIMULATED = Simulation((0.0, 1.0), (1.0, 3.0), (), (100, 300), (0, 0))
DRAWN = {
    "frontier": lambda: draw_frontier(FRONTIER),
    "memory": lambda: draw_memory(step(3), simulation(step(3)), simulation(step(3), stalls_ms={4: 1.0})),
    "timeline": lambda: draw_timeline(step(3), simulation(step(3), copies=copies_of(step(3), "d2h", [1.0]))),
    "fates": lambda: draw_fates(SHARES),
}
DEGENERATE = {
    "frontier of nothing": (lambda: draw_frontier(Frontier(())), "Nothing to compare"),
    "frontier of a floor": (lambda: draw_frontier(Frontier((), floor=Floor(GIB, "x"))), "Nothing to compare"),
    "frontier of one point": (
        lambda: draw_frontier(Frontier((), BASELINE, BASELINE)),
        "torch.compile: the peak stays at 55.0 GiB; the step takes 1.000 of the time",
    ),
    "memory of nothing": (lambda: draw_memory(EMPTY, NOTHING, NOTHING), "The step is empty"),
    "memory of one layer": (
        lambda: draw_memory(ONE, ONE_SIMULATED, ONE_SIMULATED),
        "The peak stays at 0.29 KiB; the step takes 1.000 of the time",
    ),
    "timeline of nothing": (lambda: draw_timeline(EMPTY, NOTHING), "The step is empty"),
    "timeline without copies": (
        lambda: draw_timeline(ONE, ONE_SIMULATED),
        "Nothing is copied: the step computes for 3.00 ms",
    ),
    "fates of nothing": (lambda: draw_fates([]), "No activation is saved for backward"),
}


@pytest.mark.parametrize(("draw", "finding"), DEGENERATE.values(), ids=DEGENERATE)
def test_a_step_with_little_or_nothing_in_it_is_drawn_all_the_same(
    draw, finding: str, tmp_path: Path
) -> None:
    figure = draw()
    assert title(figure) == finding
    write_figure(figure, tmp_path / "picture.png")


@pytest.mark.parametrize("draw", [draw_memory, draw_timeline])
def test_a_simulation_of_another_step_is_refused(draw) -> None:
    simulations = [simulation(step(2))] * (2 if draw is draw_memory else 1)
    with pytest.raises(ValueError, match="20 kernels, but 14 simulated"):
        draw(step(3), *simulations)


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_an_svg_is_the_same_bytes_each_time_and_bears_no_date(draw, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(draw(), tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in first
    assert b"dc:date" not in first
    assert f"<dc:title>{title(draw())}</dc:title>".encode() in first


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_legend_covers_no_axes(draw) -> None:
    figure = draw()
    figure.draw_without_rendering()
    (box,) = [legend.get_window_extent() for legend in figure.legends]
    assert not [axes for axes in figure.axes if axes.get_tightbbox().overlaps(box)]


@pytest.mark.parametrize(
    "draw",
    [*DRAWN.values(), lambda: draw_frontier(replace(FRONTIER, current=LONG_NAMED))],
    ids=[*DRAWN, "long"],
)
def test_no_title_runs_out_of_the_picture(draw) -> None:
    figure = draw()
    figure.draw_without_rendering()
    wanted = figure.axes[0].get_title(loc="left")
    (heading,) = [
        child for child in figure.axes[0].get_children() if getattr(child, "get_text", str)() == wanted
    ]
    assert heading.get_window_extent().x1 <= figure.bbox.x1


def test_a_png_is_written_by_its_suffix(tmp_path: Path) -> None:
    write_figure(draw_fates(SHARES), tmp_path / "fates.PNG")
    assert (tmp_path / "fates.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_settings_of_the_users_own_change_no_picture_and_are_kept(tmp_path: Path) -> None:
    import matplotlib

    write_figure(draw_fates(SHARES), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine", "axes.facecolor": "red"}):
        write_figure(draw_fates(SHARES), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("picture.jpg", "CLI621", "picture.jpg is no picture that can be written: pictures are .png or .svg"),
        ("picture", "CLI621", "picture is no picture"),
        ("no/such/folder/picture.svg", "CLI622", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(
    name: str, code: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        write_figure(draw_fates([]), tmp_path / name)
    assert [finding.code for finding in raised.value.diagnostics] == [code]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_without_matplotlib_the_extra_to_install_is_named(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RefusedError) as raised:
        draw()
    (finding,) = raised.value.diagnostics
    assert finding.code == "CLI620"
    assert finding.hint == "install the extra: pip install 'offload-runtime[plot]'"
    assert CODES["CLI620"].cure in finding.hint


def test_a_broken_installation_of_matplotlib_is_not_called_missing() -> None:
    code = """
import sys
from offload_runtime.reporting import plots
sys.modules["cycler"] = None
try:
    plots.draw_fates([])
except ModuleNotFoundError as error:
    assert error.name == "cycler"
else:
    raise SystemExit("drawn without cycler")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_matplotlib_is_imported_when_a_picture_is_drawn_and_pyplot_never() -> None:
    code = """
import sys
from offload_runtime.reporting import plots
assert not [name for name in sys.modules if name.startswith("matplotlib")]
plots.draw_fates([plots.FateShare(0, "save", 1)])
plots.draw_frontier(plots.Frontier((), plots.FrontierPoint(1, 1.0, "baseline")))
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
