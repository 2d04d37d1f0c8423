"""What comparing two captures of one model found; no torch, so that reports can read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from offload_runtime.compiler import Fate

__all__ = ["CaptureCheck", "CaptureDifference"]


@dataclass(frozen=True)
class CaptureDifference:
    """A kind of tensor that two captures hold in different numbers; ``fate`` is None where none was compared."""

    module: str
    op: str
    num_bytes: int
    fate: Fate | None
    num_in_compile: int
    num_in_step: int


@dataclass(frozen=True)
class CaptureCheck:
    """The tensors of a compilation's graphs beside those of the whole step, told by module, operator and bytes.

    ``reason`` says why there is nothing to compare: the step could not be captured; it is empty otherwise.
    """

    num_in_compile: int
    num_in_step: int
    differences: tuple[CaptureDifference, ...] = ()
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether both captures were made and hold the same tensors."""
        return not self.reason and not self.differences

    def to_data(self) -> dict[str, Any]:
        """Return the plain values that ``offload plan --format json`` puts under ``data.capture_check``."""
        differences = [
            {key: value for key, value in asdict(difference).items() if key != "fate"}
            for difference in self.differences
        ]
        return {**asdict(self), "agrees": self.agrees, "differences": differences}
