"""What training a model holds in memory: bytes per parameter by optimizer and precision, and what one rank has of it.

Mixed-precision Adam keeps 16 bytes for each parameter: 2 weight + 2 gradient + 4 master weight + 4 + 4 moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

__all__ = [
    "BytesPerParameter",
    "RankState",
    "Sharding",
    "StepDevice",
    "TrainingShape",
    "bytes_per_parameter",
    "rank_state",
]

Sharding = Literal["none", "optimizer", "gradients", "full"]
StepDevice = Literal["cpu", "gpu"]

MASTER_BYTES = 4
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
# Values that the optimizer keeps for each parameter between steps.
NUM_MOMENTS: Mapping[str, int] = MappingProxyType(
    {"adamw": 2, "adam": 2, "sgd-momentum": 1, "sgd": 0, "none": 0}
)


@dataclass(frozen=True)
class TrainingShape:
    """The run that the arithmetic is about, as one rank sees it.

    ``num_parameters`` are those of the whole model, ``num_trained`` (None: all) those that have gradients and
    optimizer's state. ``master_weights``: 16-bit parameters have a float32 copy and float32 moments, as mixed precision
    has; without, everything is in ``parameter_dtype``. ``step_ms`` is the compute time of one forward-backward; where
    it is None it is estimated from ``num_tokens``, the tokens of one rank and step. ``activation_bytes`` are saved for
    backward at the peak. ``sharding`` is what ``num_ranks`` ranks divide among them: ``optimizer`` state, ``gradients``
    too, or parameters too (``full``). ``step_device`` is where the optimizer steps once its state is offloaded. Raises
    ValueError for what cannot be.
    """

    num_parameters: int
    num_trained: int | None = None
    parameter_dtype: str = "bfloat16"
    optimizer: str = "adamw"
    master_weights: bool = True
    step_ms: float | None = None
    num_tokens: int | None = None
    activation_bytes: int | None = None
    num_ranks: int = 1
    sharding: Sharding = "none"
    step_device: StepDevice = "cpu"

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("parameter_dtype", self.parameter_dtype, tuple(DTYPE_BYTES)),
            ("optimizer", self.optimizer, tuple(NUM_MOMENTS)),
            ("sharding", self.sharding, get_args(Sharding)),
            ("step_device", self.step_device, get_args(StepDevice)),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}, not one of {', '.join(allowed)}")
        for name in ("num_parameters", "step_ms", "num_tokens", "num_ranks"):
            given = getattr(self, name)
            if given is not None and given <= 0:
                raise ValueError(f"{name} is {given}, not greater than 0")
        if self.num_trained is not None and not 0 <= self.num_trained <= self.num_parameters:
            raise ValueError(f"num_trained is {self.num_trained}, not from 0 to {self.num_parameters}")
        if self.activation_bytes is not None and self.activation_bytes < 0:
            raise ValueError(f"activation_bytes is {self.activation_bytes}, less than 0")

    @property
    def trained_parameters(self) -> int:
        """How many parameters have gradients and optimizer's state."""
        return self.num_parameters if self.num_trained is None else self.num_trained


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes that persist for each parameter, by kind of state."""

    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def optimizer_state(self) -> int:
        """Master weights and moments: what only the optimizer's step touches."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer_state


@dataclass(frozen=True)
class RankState:
    """Bytes that one rank holds, shards rounded up.

    ``stepped_parameters`` is the number of parameters whose optimizer step is this rank's.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    stepped_parameters: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer_state


def bytes_per_parameter(shape: TrainingShape) -> BytesPerParameter:
    """Return what each parameter costs under the shape's optimizer and precision."""
    width = DTYPE_BYTES[shape.parameter_dtype]
    has_master = shape.master_weights and width < MASTER_BYTES and shape.optimizer != "none"
    moment_width = MASTER_BYTES if shape.master_weights else width
    return BytesPerParameter(
        parameters=width,
        gradients=width,
        master=MASTER_BYTES if has_master else 0,
        moments=NUM_MOMENTS[shape.optimizer] * moment_width,
    )


def rank_state(shape: TrainingShape) -> RankState:
    """Return what one rank holds of the model state after sharding."""
    per_parameter = bytes_per_parameter(shape)
    level = get_args(Sharding).index(shape.sharding)
    counted = ((shape.num_parameters, 3), (shape.trained_parameters, 2), (shape.trained_parameters, 1))
    held = [-(-number // shape.num_ranks) if level >= needed else number for number, needed in counted]
    return RankState(
        parameters=held[0] * per_parameter.parameters,
        gradients=held[1] * per_parameter.gradients,
        optimizer_state=held[2] * per_parameter.optimizer_state,
        stepped_parameters=held[2],
    )
