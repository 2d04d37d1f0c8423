"""The paired measurement, with sides and a clock that follow a script."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.errors import Diagnostic, PolicyError, RefusedError, RunError
from offload_runtime.models.bench_result import BenchResult, Side
from offload_runtime.models.bench_rounds import Deadline, Measured, OutOfDeviceMemory, measure
from offload_runtime.models.bench_statistics import summarise
from tests.models.bench_results import Clock, ScriptedSide, bench_result, times

PLENTY_S = 1e9


class Rig:
    """A measurement of scripted sides: what was called in which order, what was saved."""

    def __init__(self, *names: str, num_rounds: int = 3, steps: int = 2, **sides: dict[str, Any]) -> None:
        self.clock = Clock()
        self.log: list[str] = []
        self.saved: list[BenchResult] = []
        self.result = bench_result(*names, num_rounds=num_rounds, steps=steps)
        self.sides = {name: ScriptedSide(name, self.clock, self.log, **sides.get(name, {})) for name in names}

    def measure(self, limit_s: float = PLENTY_S) -> Measured:
        deadline = Deadline(limit_s, self.clock(), self.clock)
        measured = measure(self.result, self.sides, deadline, save=self.saved.append)
        self.result = measured.result
        return measured


def refused() -> RefusedError:
    return RefusedError(
        Diagnostic("PLN401", "error", "a must rule cannot hold", "p.yaml", 3, 5, hint="drop it")
    )


def test_all_sides_are_warmed_before_the_first_round_and_then_alternate() -> None:
    rig = Rig("base", "one", "two")
    measured = rig.measure()
    assert rig.log[:3] == ["warm base", "warm one", "warm two"]
    forth, back = ["base", "one", "two", "base"], ["base", "two", "one", "base"]
    assert rig.log[3:] == [*forth, *back, *forth]
    # The baseline stands at both ends; which end is the control alternates.
    ends = [(taken.turns[0].side, taken.turns[-1].side) for taken in measured.result.rounds]
    assert ends == [("base", "base again"), ("base again", "base"), ("base", "base again")]
    assert measured.result.complete
    assert not measured.out_of_time


def test_a_turn_keeps_the_times_of_its_timed_steps_alone() -> None:
    # One step in the warm-up, then an untimed one before the two that count.
    rig = Rig("base", "one", num_rounds=1, one={"step_ms": times(900, 800, 21, 22), "peak_bytes": 5})
    (taken,) = rig.measure().result.rounds
    turn = taken.turn_of("one")
    assert turn is not None
    assert turn.step_ms == (21, 22)
    assert turn.peak_device_bytes == 5


def test_the_file_is_saved_after_each_round_with_that_round_in_it() -> None:
    rig = Rig("base", "one")
    rig.measure()
    assert [len(saved.rounds) for saved in rig.saved] == [1, 2, 3]


def test_what_the_warm_up_showed_is_recorded_with_the_side_and_the_control() -> None:
    result = Rig("base", "one", one={"compile_s": 42.0}).measure().result
    assert result.side("one").compile_s == (42.0,)
    assert (result.side("one").planned_bytes, result.side("one").moved_bytes) == (7, 7)
    assert result.side("base again") == Side(
        "base again", "control", fits=True, planned_bytes=7, moved_bytes=7
    )


def test_a_ratio_is_taken_within_a_round_so_that_drift_cancels() -> None:
    # The machine slows down threefold over the rounds; the side is 10 % slower than the baseline in each of them.
    base = [100, *(t for ms in (100, 200, 300) for t in (ms,) * 6)]
    one = [110, *(t for ms in (110, 220, 330) for t in (ms,) * 3)]
    rig = Rig("base", "one", base={"step_ms": times(*base)}, one={"step_ms": times(*one)})
    summary = summarise(rig.measure().result, "one")
    assert summary.ratio_by_round == pytest.approx((1.1, 1.1, 1.1))
    assert summary.ratio == pytest.approx(1.1)
    assert summary.median_ms == 220


def test_a_side_that_runs_out_of_memory_in_its_warm_up_is_dropped_and_the_others_go_on() -> None:
    rig = Rig("base", "big", "one", big={"warm_error": OutOfDeviceMemory("big")})
    measured = rig.measure()
    assert rig.log[:4] == ["warm base", "warm big", "drop big", "warm one"]
    assert "big" not in rig.log[4:]
    assert measured.result.side("big").fits is False
    assert measured.result.complete
    assert [found.code for found in measured.diagnostics] == ["BEN923"]
    assert summarise(measured.result, "big").peak_device_bytes is None


def test_a_side_that_runs_out_of_memory_in_a_later_round_keeps_its_turns_and_has_no_summary() -> None:
    rig = Rig("base", "big", "one", big={"turn_error": OutOfDeviceMemory("big"), "fails_at": 2})
    result = rig.measure().result
    assert [taken.turn_of("big") is not None for taken in result.rounds] == [True, False, False]
    assert all(taken.turn_of("one") is not None for taken in result.rounds)
    assert rig.log.count("drop big") == 1
    assert result.side("big").fits is False
    assert summarise(result, "big").median_ms is None


def test_without_a_baseline_that_fits_the_others_are_measured_and_have_no_ratio() -> None:
    result = Rig("base", "one", base={"warm_error": OutOfDeviceMemory("base")}).measure().result
    assert [side.fits for side in result.sides] == [False, True, False]
    assert [[turn.side for turn in taken.turns] for taken in result.rounds] == [["one"]] * 3
    summary = summarise(result, "one")
    assert summary.median_ms == 1000
    assert summary.ratio is None


def test_a_baseline_that_runs_out_as_its_own_control_is_dropped_once() -> None:
    rig = Rig("base", "one", base={"turn_error": OutOfDeviceMemory("base"), "fails_at": 2})
    result = rig.measure().result
    assert rig.log.count("drop base") == 1
    assert [turn.side for turn in result.rounds[0].turns] == ["base", "one"]
    assert [turn.side for turn in result.rounds[1].turns] == ["one"]


def test_where_no_side_fits_there_is_no_round_and_no_wish_for_more_time() -> None:
    error = {"warm_error": OutOfDeviceMemory("all")}
    rig = Rig("base", "one", base=error, one=error)
    measured = rig.measure()
    assert measured.result.rounds == ()
    assert not measured.out_of_time
    assert rig.saved == []


def test_a_refused_policy_is_an_error_at_its_own_place_and_a_refused_peer_a_warning() -> None:
    rig = Rig("base", "mine", "peer", mine={"warm_error": refused()}, peer={"warm_error": refused()})
    rig.result = rig.result.with_side(Side("mine", "policy", "hash"))
    measured = rig.measure()
    ours, theirs = measured.diagnostics
    assert (ours.code, ours.severity, ours.file, ours.line, ours.hint) == (
        "BEN924",
        "error",
        "p.yaml",
        3,
        "drop it",
    )
    assert (theirs.code, theirs.severity, theirs.hint) == ("BEN925", "warning", "drop it")
    assert measured.result.side("mine").refused == "PLN401 a must rule cannot hold"
    assert measured.result.side("mine").fits is None
    assert measured.result.complete


def test_a_baseline_that_is_refused_ends_the_measurement() -> None:
    with pytest.raises(RefusedError, match="a must rule cannot hold"):
        Rig("base", "one", base={"warm_error": refused()}).measure()


def test_what_breaks_in_a_round_is_raised_and_the_rounds_before_it_are_saved() -> None:
    broken = RunError(Diagnostic("MOD733", "error", "the device is gone"))
    rig = Rig("base", "one", one={"turn_error": broken, "fails_at": 3})
    with pytest.raises(RunError, match="the device is gone"):
        rig.measure()
    assert len(rig.saved[-1].rounds) == 2


def test_no_round_begins_that_would_end_after_the_time_limit() -> None:
    # Warm: 2 x 11 s. A round: 3 turns of 3 steps of 1 s.
    rig = Rig("base", "one", num_rounds=10)
    measured = rig.measure(limit_s=22 + 2 * 9 + 8.5)
    assert len(measured.result.rounds) == 2
    assert rig.clock() == 22 + 18
    assert measured.out_of_time
    assert not measured.result.complete


def test_the_first_round_is_estimated_from_the_warm_steps() -> None:
    rig = Rig("base", "one")
    assert rig.measure(limit_s=22 + 8).result.rounds == ()
    assert rig.log == ["warm base", "warm one"]


def test_a_round_that_took_longer_than_expected_is_what_the_next_one_is_expected_to_take() -> None:
    slow = times(1000, 5000)  # every step after the warm-up takes five times as long
    rig = Rig("base", "one", num_rounds=10, base={"step_ms": slow}, one={"step_ms": times(1000, 5000)})
    # The first round was expected to take 9 s, and takes 45: after it no other fits, though 30 s are left.
    assert len(rig.measure(limit_s=22 + 45 + 30).result.rounds) == 1


def test_sides_for_whose_compilation_no_time_is_left_are_named() -> None:
    rig = Rig("base", "one", "two", "three")
    measured = rig.measure(limit_s=25)
    assert measured.not_warmed == ("two", "three")
    assert measured.result.rounds == ()
    assert measured.out_of_time


def test_a_second_run_takes_the_missing_rounds_and_says_that_it_was_another_process() -> None:
    rig = Rig("base", "one", num_rounds=3)
    rig.measure(limit_s=22 + 9 + 5)
    assert len(rig.result.rounds) == 1
    rig.sides = {name: ScriptedSide(name, rig.clock, rig.log) for name in ("base", "one")}
    rig.measure()
    assert [(taken.number, taken.run) for taken in rig.result.rounds] == [(1, 1), (2, 2), (3, 2)]
    # The order goes on alternating where the first run left it.
    assert [taken.turns[0].side for taken in rig.result.rounds] == ["base", "base again", "base"]
    assert rig.result.side("one").compile_s == (10.0, 10.0)


def test_a_finding_of_a_policy_keeps_its_first_cause_only() -> None:
    causes = (Diagnostic("POL180", "error", "rule a matches nothing"), Diagnostic("POL180", "error", "nor b"))
    measured = Rig("base", "one", one={"warm_error": PolicyError(*causes)}).measure()
    assert measured.result.side("one").refused == "POL180 rule a matches nothing"
