"""What a paired measurement saw, as one value; no torch, so that reports and files can read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["BenchModel", "BenchResult", "Environment", "Prediction", "Round", "Side", "SideKind", "Turn"]

SideKind = Literal["policy", "peer", "control"]


@dataclass(frozen=True)
class Environment:
    """Where it was measured; None where there is no accelerator, or nobody could tell.

    ``device_memory_bytes`` is the device memory that was given for the run, None for all that there is: on an
    accelerator the process was kept to it, without one plans were.
    """

    gpu: str | None
    gpu_bytes: int | None
    driver: str | None
    link_gen: int | None
    link_width: int | None
    torch: str
    python: str
    host_cores: int | None
    package: str
    device_memory_bytes: int | None = None


@dataclass(frozen=True)
class BenchModel:
    """The model that all sides share.

    ``inputs`` are the types and shapes of a batch, such as ``int64[1, 8192]``: with the parameters they say
    which shape was measured, whether it was asked for or the model's own.
    """

    spec: str
    description: str
    inputs: tuple[str, ...]
    num_parameters: int
    num_layers: int | None
    dtype: str
    optimizer: str
    seed: int


@dataclass(frozen=True)
class Prediction:
    """What the simulator said of a side when it was compiled.

    ``window_bytes`` is what the link carries between the first saved byte and the peak; ``gap`` how far the predicted
    step is above a time that no plan can beat, as a share of it, None where nothing was planned.
    """

    hardware: str
    step_ms: float
    peak_device_bytes: int
    stall_ms: float
    window_bytes: int
    gap: float | None


@dataclass(frozen=True)
class Side:
    """One way to run the step, and what is known of it beside its turns.

    ``fits`` is False where the device ran out of memory, None where the side has not run. ``refused`` says
    why it cannot run at all. ``compile_s`` holds the seconds of its first step, compilation included, for
    each run of the command; none without an accelerator. Bytes are those of one step, None where the side
    does not go through the offload back end, as is ``predicted``. ``policy_hash`` is that of the policy that the
    side runs.
    """

    name: str
    kind: SideKind
    policy_hash: str | None = None
    fits: bool | None = None
    refused: str | None = None
    compile_s: tuple[float, ...] = ()
    planned_bytes: int | None = None
    moved_bytes: int | None = None
    predicted: Prediction | None = None

    @property
    def runs(self) -> bool:
        """Tell whether this side takes turns, as far as is known."""
        return self.fits is not False and self.refused is None


@dataclass(frozen=True)
class Turn:
    """Consecutive steps of one side.

    ``step_ms`` has the time of each, None where there is no accelerator. ``peak_device_bytes`` is measured on
    an accelerator; without one it is the simulator's, None for a side that does not go through the back end.
    """

    side: str
    step_ms: tuple[float, ...] | None
    peak_device_bytes: int | None


@dataclass(frozen=True)
class Round:
    """One turn of each side, in the order they were taken; ``run`` counts the processes that measured."""

    number: int
    run: int
    turns: tuple[Turn, ...]

    def turn_of(self, side: str) -> Turn | None:
        """Return the turn of ``side``, None where it took none."""
        return next((turn for turn in self.turns if turn.side == side), None)


@dataclass(frozen=True)
class BenchResult:
    """A measurement, whole or under way.

    ``baseline`` is the side that the others are compared with, ``control`` the name under which it takes a
    second turn in each round. ``command`` is what was typed. ``hardware`` names the profile that policies plan for;
    None is that of the device.
    """

    command: str
    model: BenchModel
    mode: str
    device: str
    environment: Environment
    steps: int
    warmup: int
    num_rounds: int
    hardware: str | None
    baseline: str
    control: str
    sides: tuple[Side, ...]
    rounds: tuple[Round, ...] = ()

    @property
    def complete(self) -> bool:
        """Tell whether every round that was asked for is there."""
        return len(self.rounds) >= self.num_rounds

    @property
    def timed(self) -> bool:
        """Tell whether steps were timed: on an accelerator only."""
        return any(turn.step_ms is not None for taken in self.rounds for turn in taken.turns)

    @property
    def num_runs(self) -> int:
        """Return how many processes measured."""
        return max((taken.run for taken in self.rounds), default=0)

    def side(self, name: str) -> Side:
        """Return the side called ``name``. Raises KeyError where there is none."""
        found = next((side for side in self.sides if side.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    def with_side(self, changed: Side) -> BenchResult:
        """Return this result with the side of the same name replaced."""
        sides = tuple(changed if side.name == changed.name else side for side in self.sides)
        return replace(self, sides=sides)

    def with_round(self, taken: Round) -> BenchResult:
        """Return this result with one more round."""
        return replace(self, rounds=(*self.rounds, taken))
