"""The paired measurement itself: warm every side, then let them take turns, in alternating order.

    round 1:  baseline, side, ..., side, control
    round 2:  control, side, ..., side, baseline

The control is the baseline under a second name, at the far end of each round: what the two differ by is noise. No
torch here: a side is whatever can warm up, take a turn and be dropped, and the clock is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from offload_runtime.errors import Diagnostic, OffloadError
from offload_runtime.models.bench_result import BenchResult, Prediction, Round, Side, Turn

__all__ = ["Deadline", "LiveSide", "Measured", "OutOfDeviceMemory", "WarmUp", "measure"]

Advance = Callable[[str, int, int], None]
Save = Callable[[BenchResult], None]


class OutOfDeviceMemory(Exception):
    """A side ran out of device memory; everything of the step is freed when this is caught."""


@dataclass(frozen=True)
class WarmUp:
    """What warming a side showed: seconds of its first step (None without an accelerator), bytes of one step.

    ``step_s`` is the wall time of its last step, by which the length of a round is estimated.
    """

    compile_s: float | None
    step_s: float
    planned_bytes: int | None = None
    moved_bytes: int | None = None
    predicted: Prediction | None = None


class LiveSide(Protocol):
    """A side that can run. It raises OutOfDeviceMemory, or an OffloadError where it cannot run at all."""

    def warm_up(self, steps: int) -> WarmUp:
        """Compile, run the first step and ``steps`` more."""

    def take_turn(self, steps: int) -> tuple[tuple[float, ...] | None, int | None]:
        """Run one step untimed and ``steps`` timed; return the milliseconds of each and the peak in bytes."""

    def drop(self) -> None:
        """Free what belongs to this side alone; it runs no more."""


@dataclass(frozen=True)
class Deadline:
    """The time that the command may take: ``limit_s`` seconds from ``started_s`` on ``clock``."""

    limit_s: float
    started_s: float
    clock: Callable[[], float]

    def has_room_for(self, seconds: float) -> bool:
        """Tell whether something that takes ``seconds`` would end in time."""
        return self.clock() - self.started_s + seconds <= self.limit_s


@dataclass(frozen=True)
class Measured:
    """The result so far, whether the time limit ended it, and what was found on the way.

    ``not_warmed`` names the sides for whose compilation no time was left.
    """

    result: BenchResult
    out_of_time: bool
    not_warmed: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def measure(
    result: BenchResult,
    sides: Mapping[str, LiveSide],
    deadline: Deadline,
    *,
    save: Save = lambda result: None,
    advance: Advance = lambda phase, done, total: None,
) -> Measured:
    """Warm ``sides`` and take the rounds that ``result`` lacks, as far as the time limit lets them.

    ``sides`` holds every side of ``result`` that runs, except the control. A side that runs out of memory, or
    refuses to run, is dropped and noted, and the others go on; a baseline that refuses ends it all. ``save`` gets
    the result after each round.
    """
    bench = _Bench(result, dict(sides), deadline, save, advance, result.num_runs + 1)
    not_warmed = bench.warm_up()
    if not not_warmed:
        bench.take_rounds()
    # Where no side is left, more time would not help.
    out_of_time = bool(bench.sides) and not bench.result.complete
    return Measured(bench.result, out_of_time, not_warmed, tuple(bench.diagnostics))


class _Bench:
    def __init__(
        self,
        result: BenchResult,
        sides: dict[str, LiveSide],
        deadline: Deadline,
        save: Save,
        advance: Advance,
        run: int,
    ) -> None:
        self.result = result
        self.sides = sides
        self.deadline = deadline
        self.save = save
        self.advance = advance
        self.run = run
        self.round_s = 0.0
        self.diagnostics: list[Diagnostic] = []

    def warm_up(self) -> tuple[str, ...]:
        """Compile and warm each side; return the names of those that there was no time for."""
        longest_s = 0.0
        names = tuple(self.sides)
        for done, name in enumerate(names):
            self.advance("warm up", done, len(names))
            started_s = self.deadline.clock()
            if not self.deadline.has_room_for(longest_s):
                return names[done:]
            self._warm_up(name)
            longest_s = max(longest_s, self.deadline.clock() - started_s)
        self.advance("warm up", len(names), len(names))
        return ()

    def _warm_up(self, name: str) -> None:
        try:
            warm = self.sides[name].warm_up(self.result.warmup)
        except OutOfDeviceMemory:
            self._out_of_memory(name)
        except OffloadError as error:
            if name == self.result.baseline:
                raise
            self._refuse(name, error)
        else:
            self._note(name, warm)

    def _note(self, name: str, warm: WarmUp) -> None:
        seconds = () if warm.compile_s is None else (warm.compile_s,)
        for side in self._sides_run_by(name):
            warmed = replace(
                side,
                fits=True,
                planned_bytes=warm.planned_bytes,
                moved_bytes=warm.moved_bytes,
                predicted=warm.predicted,
            )
            if side.name == name:
                warmed = replace(warmed, compile_s=(*side.compile_s, *seconds))
            self.result = self.result.with_side(warmed)
            self.round_s += (self.result.steps + 1) * warm.step_s

    def take_rounds(self) -> None:
        """Take the rounds that are missing, until none is, no side is left, or the next would end too late."""
        while self.sides and not self.result.complete and self.deadline.has_room_for(self.round_s):
            self.advance("rounds", len(self.result.rounds), self.result.num_rounds)
            started_s = self.deadline.clock()
            self._take_round(len(self.result.rounds) + 1)
            self.round_s = max(self.round_s, self.deadline.clock() - started_s)
        self.advance("rounds", len(self.result.rounds), self.result.num_rounds)

    def _take_round(self, number: int) -> None:
        turns: list[Turn] = []
        for name in self._order(number):
            runner = self.result.baseline if name == self.result.control else name
            if runner not in self.sides:
                continue  # it ran out of memory earlier in this round
            try:
                step_ms, peak_bytes = self.sides[runner].take_turn(self.result.steps)
            except OutOfDeviceMemory:
                self._out_of_memory(runner)
            else:
                turns.append(Turn(name, step_ms, peak_bytes))
        if turns:
            self.result = self.result.with_round(Round(number, self.run, tuple(turns)))
            self.save(self.result)

    def _order(self, number: int) -> Sequence[str]:
        baseline, control = self.result.baseline, self.result.control
        others = [name for name in self.sides if name != baseline]
        order = [baseline, *others, control] if baseline in self.sides else others
        return order if number % 2 else order[::-1]

    def _sides_run_by(self, name: str) -> list[Side]:
        """Return the side called ``name``, and with the baseline its control."""
        names = (name, self.result.control) if name == self.result.baseline else (name,)
        return [self.result.side(each) for each in names]

    def _out_of_memory(self, name: str) -> None:
        self._drop(name)
        for side in self._sides_run_by(name):
            self.result = self.result.with_side(replace(side, fits=False))
        hint = "it is recorded as not fitting; give fewer --layers, a smaller --batch or --seq to measure it"
        message = f"side {name} runs out of device memory"
        self.diagnostics.append(Diagnostic("BEN923", "warning", message, hint=hint))

    def _refuse(self, name: str, error: OffloadError) -> None:
        self._drop(name)
        cause = error.diagnostics[0]
        side = replace(self.result.side(name), refused=f"{cause.code} {cause.message}")
        self.result = self.result.with_side(side)
        self.diagnostics.append(_refusal(side, cause))

    def _drop(self, name: str) -> None:
        self.sides.pop(name).drop()


def _refusal(side: Side, cause: Diagnostic) -> Diagnostic:
    """Say that a side cannot run: a policy is the user's to mend, a peer only lacks from the comparison."""
    message = f"side {side.name} cannot run here: {cause.message}"
    if side.kind == "policy":
        return replace(cause, code="BEN924", message=message)
    return Diagnostic("BEN925", "warning", message, hint=cause.hint)
