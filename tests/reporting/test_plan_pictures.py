from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.errors import UsageError
from offload_runtime.reporting.plan_pictures import frontier_picture, picture_path, write_pictures
from tests.reporting.plan_results import BASELINE_SITE, forecast, frontier_result, plan_result
from tests.reporting.plots.drawn import GIB

pytest.importorskip("matplotlib")
NAMES = ("frontier", "memory", "timeline", "fates")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plan_has_four_pictures(tmp_path: Path, suffix: str) -> None:
    written = write_pictures(plan_result(), None, tmp_path / f"plan{suffix}")
    assert [path.name for path in written] == [f"plan-{name}{suffix}" for name in NAMES]
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_names_of_pictures_stand_between_prefix_and_suffix() -> None:
    assert picture_path(Path("out/my.plan.svg"), "memory") == Path("out/my.plan-memory.svg")


def test_a_sweep_without_a_plan_of_its_own_has_the_frontier_alone(tmp_path: Path) -> None:
    written = write_pictures(None, frontier_result(current=None), tmp_path / "f.svg")
    assert [path.name for path in written] == ["f-frontier.svg"]


def test_a_frontier_shows_ours_first_and_where_it_ends() -> None:
    drawn = frontier_picture(frontier_result())
    assert [(series.name, len(series.points)) for series in drawn.series] == [
        ("planned (fit)", 1),
        ("largest first (balanced)", 1),
    ]
    assert drawn.infeasible_bytes == (5 * GIB,)
    assert drawn.floor is not None
    assert (drawn.floor.num_bytes, drawn.floor.cause) == (8 * GIB, "6 GiB what stays throughout")
    assert drawn.current is not None
    assert drawn.current.label == "wide"


def test_a_policy_that_changes_nothing_is_not_marked_on_the_baseline() -> None:
    idle = plan_result(num_offloaded=0, policy=forecast(12, 20.0, BASELINE_SITE))
    assert frontier_picture(frontier_result(current=idle)).current is None


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CLI622"):
        write_pictures(plan_result(), None, tmp_path / "nowhere" / "plan.png")
