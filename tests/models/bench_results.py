"""Results that tests of measurements start from, and sides that follow a script instead of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from offload_runtime.models.bench_result import BenchModel, BenchResult, Environment, Round, Side, Turn
from offload_runtime.models.bench_rounds import WarmUp

GIB = 2**30

ENVIRONMENT = Environment(
    gpu="Some GPU",
    gpu_bytes=80 * GIB,
    driver="1.2.3",
    link_gen=5,
    link_width=16,
    torch="2.13.0",
    python="3.11.7",
    host_cores=16,
    package="0.1.0",
)
MODEL = BenchModel(
    spec="builtin:some",
    description="a model",
    inputs=("int64[1, 8]",),
    num_parameters=1000,
    num_layers=2,
    dtype="bfloat16",
    optimizer="none",
    seed=0,
)


def bench_result(*names: str, num_rounds: int = 3, steps: int = 2) -> BenchResult:
    """Return a result without rounds; the first name is the baseline's, and its control is added."""
    control = f"{names[0]} again"
    sides = [Side(name, "peer") for name in names]
    return BenchResult(
        command="offload bench",
        model=MODEL,
        mode="graph",
        device="cuda",
        environment=ENVIRONMENT,
        steps=steps,
        warmup=1,
        num_rounds=num_rounds,
        hardware=None,
        baseline=names[0],
        control=control,
        sides=(*sides, Side(control, "control")),
    )


def with_rounds(
    result: BenchResult, *rounds: Mapping[str, tuple[Sequence[float] | None, int | None]]
) -> BenchResult:
    """Return ``result`` with rounds of turns given as ``{side: (step_ms, peak_bytes)}``."""
    taken = tuple(
        Round(
            number,
            1,
            tuple(
                Turn(name, None if step_ms is None else tuple(step_ms), peak)
                for name, (step_ms, peak) in turns.items()
            ),
        )
        for number, turns in enumerate(rounds, start=1)
    )
    return replace(result, rounds=taken)


class Clock:
    """A clock that only moves when a scripted side works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedSide:
    """A side whose steps take as long as ``step_ms`` says, and whose warm-up takes ``compile_s``.

    ``warm_error`` is raised by the warm-up, ``turn_error`` by turn number ``fails_at``. What is called is
    written to ``log``.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        log: list[str],
        *,
        step_ms: Callable[[], float] = lambda: 1000.0,
        peak_bytes: int = GIB,
        compile_s: float = 10.0,
        warm_error: Exception | None = None,
        turn_error: Exception | None = None,
        fails_at: int = 1,
    ) -> None:
        self.name, self.clock, self.log = name, clock, log
        self.step_ms, self.peak_bytes, self.compile_s = step_ms, peak_bytes, compile_s
        self.warm_error, self.turn_error, self.fails_at = warm_error, turn_error, fails_at
        self.num_turns = 0

    def _step(self) -> float:
        step_ms = self.step_ms()
        self.clock.now_s += step_ms / 1000
        return step_ms

    def warm_up(self, steps: int) -> WarmUp:
        self.log.append(f"warm {self.name}")
        self.clock.now_s += self.compile_s
        if self.warm_error is not None:
            raise self.warm_error
        last_ms = [self._step() for _ in range(steps)][-1]
        return WarmUp(self.compile_s, last_ms / 1000, planned_bytes=7, moved_bytes=7)

    def take_turn(self, steps: int) -> tuple[tuple[float, ...], int]:
        self.num_turns += 1
        self.log.append(self.name)
        if self.turn_error is not None and self.num_turns == self.fails_at:
            raise self.turn_error
        self._step()
        return tuple(self._step() for _ in range(steps)), self.peak_bytes

    def drop(self) -> None:
        self.log.append(f"drop {self.name}")


def times(*values: float) -> Callable[[], float]:
    """Return a function that gives ``values`` one after the other, and the last of them for ever."""

    def endless() -> Iterator[float]:
        yield from values
        while True:
            yield values[-1]

    return endless().__next__
