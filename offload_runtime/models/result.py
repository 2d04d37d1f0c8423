"""What training with and without a policy showed, as one value; no torch, so that reports can read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from offload_runtime.errors import Diagnostic
from offload_runtime.models.bench_result import Environment
from offload_runtime.models.layer_runs import LayerRun
from offload_runtime.units import format_size_short

BitwiseScope = Literal["full", "reduced"]
TensorKind = Literal["loss", "gradient", "parameter", "buffer"]


@dataclass(frozen=True)
class RunResult:
    """Memory and time of one way to train.

    ``fits`` is False where the device ran out of memory. ``peak_device_bytes`` is measured on an
    accelerator and simulated without one. ``step_ms`` is the median of the warm steps, None where there is
    no accelerator.
    """

    fits: bool
    peak_device_bytes: int | None
    step_ms: float | None


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one way to train; None where nothing is.

    The peak counts the optimizer's state and its step, ``step_ms`` the optimizer's step. A relative error is
    predicted / measured - 1, None where nothing was measured: a simulated peak is no measurement.
    """

    peak_device_bytes: int | None = None
    step_ms: float | None = None
    peak_relative_error: float | None = None
    step_relative_error: float | None = None

    def beside(self, measured: RunResult) -> Prediction:
        """Return the prediction with its errors against what was measured."""
        return replace(
            self,
            peak_relative_error=_relative_error(self.peak_device_bytes, measured.peak_device_bytes),
            step_relative_error=_relative_error(self.step_ms, measured.step_ms),
        )


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else predicted / measured - 1


@dataclass(frozen=True)
class PredictedRuns:
    """What is predicted without the policy and with it; ``hardware`` None: it is unknown, and so is all else."""

    hardware: str | None = None
    baseline: Prediction = Prediction()
    policy: Prediction = Prediction()


@dataclass(frozen=True)
class Losses:
    """The loss of every step: without the policy and with it as measured, and of the two runs compared bitwise.

    ``compared`` is the policy again and ``reference`` has its offloads replaced by saves. On an accelerator both run
    on deterministic kernels, whose rounding differs from that of the measured runs; without one ``compared`` is the
    run that was measured. Both are of fewer layers where the scope is reduced, and empty where nothing was compared.
    """

    baseline: tuple[float, ...]
    policy: tuple[float, ...]
    compared: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """The first value, in training order, that the policy changed; ``step`` counts from 1.

    ``max_abs_difference`` is None where only a fingerprint of the values was kept, or where they cannot be
    subtracted (NaN on one side, another shape).
    """

    kind: TensorKind
    name: str
    step: int
    max_abs_difference: float | None = None

    def __str__(self) -> str:
        by = "" if self.max_abs_difference is None else f", by up to {self.max_abs_difference:.3g}"
        return f"{self.kind} {self.name} at step {self.step}{by}"


@dataclass(frozen=True)
class ApplyResult:
    """Everything that ``offload apply`` found out.

    ``bitwise_identical`` compares the policy run with the reference, in which each offload is a save: the
    loss and all gradients of every step, all parameters and buffers at the end. It is None where that could
    not be run, and a diagnostic says why. ``bitwise_layers`` is the number of layers compared, where the
    model has layers to count. ``deterministic`` tells whether deterministic kernels were on for the
    comparison. Bytes are those of one step.

    ``reference`` is never timed, and its peak is that of ``bitwise_layers`` layers: on an accelerator it runs
    only to be compared, with the kernels of the comparison, and under Inductor its saves are copies.

    ``inputs`` are types and shapes of a batch, such as ``int64[2, 8192]``.
    """

    model: str
    inputs: tuple[str, ...]
    environment: Environment
    policy_name: str
    policy_hash: str
    mode: str
    device: str
    engine: str
    dtype: str
    optimizer: str
    num_parameters: int
    steps: int
    seed: int
    bitwise_identical: bool | None
    bitwise_scope: BitwiseScope
    bitwise_layers: int | None
    deterministic: bool
    first_difference: Difference | None
    losses: Losses
    baseline: RunResult
    policy: RunResult
    reference: RunResult
    predicted: PredictedRuns
    planned_bytes: int
    moved_bytes: int
    host_bytes: int
    host_waste_bytes: int
    hidden_fraction: float | None
    stall_ms: float | None
    stalls: tuple[tuple[str, float], ...]
    num_pins: int
    numa: str
    num_graphs: int
    layer_runs: tuple[LayerRun, ...]
    diagnostics: tuple[Diagnostic, ...]
    gradient_accumulation_steps: int = 1

    @property
    def ok(self) -> bool:
        """Tell whether nothing was found that fails the command."""
        return not any(diagnostic.is_error for diagnostic in self.diagnostics)

    @property
    def exit_code(self) -> int:
        """Return 0, or 1 where numbers differ or a measured limit was missed."""
        return 0 if self.ok else 1

    @property
    def saved_bytes(self) -> int | None:
        """Return by how many bytes the policy lowers the peak (negative: raises), None if not comparable."""
        if self.baseline.peak_device_bytes is None or self.policy.peak_device_bytes is None:
            return None
        return self.baseline.peak_device_bytes - self.policy.peak_device_bytes

    @property
    def verdict(self) -> str:
        """Say in one sentence what the policy did to numbers, memory and time."""
        return _verdict(self)

    def to_data(self) -> dict[str, Any]:
        """Return the plain values that ``offload apply --format json`` puts under ``data``."""
        data = asdict(self)
        del data["diagnostics"]
        return {**data, "verdict": self.verdict}


def _verdict(result: ApplyResult) -> str:
    """Say in one sentence what the policy of ``result`` did to numbers, memory and time."""
    clauses = [_numbers(result), _movement(result), _memory(result), _time(result)]
    sentence = "; ".join(clause for clause in clauses if clause)
    return sentence[:1].upper() + sentence[1:] + "."


def _numbers(result: ApplyResult) -> str:
    if result.bitwise_identical is None:
        return "the numbers could not be compared"
    if not result.bitwise_identical:
        return f"the numbers differ, first in the {result.first_difference}"
    if result.bitwise_scope == "reduced":
        return f"bitwise identical at {result.bitwise_layers} layers, the most that fit without offloading"
    return f"bitwise identical over {result.steps} step{'s' if result.steps != 1 else ''}"


def _movement(result: ApplyResult) -> str:
    if not result.planned_bytes and not result.moved_bytes:
        return "nothing was offloaded, so that no transfer was tried"
    moved = f"{format_size_short(result.moved_bytes)} offloaded a step"
    if result.moved_bytes != result.planned_bytes:
        moved += f" where {format_size_short(result.planned_bytes)} were planned"
    return moved


def _memory(result: ApplyResult) -> str:
    peak, base = result.policy.peak_device_bytes, result.baseline.peak_device_bytes
    simulated, predicted = "", result.predicted
    if result.engine == "simulated":
        simulated = " (simulated)"
        if (
            predicted.policy.peak_device_bytes is not None
            and predicted.baseline.peak_device_bytes is not None
        ):
            simulated = f" (predicted for {predicted.hardware})"
            peak, base = predicted.policy.peak_device_bytes, predicted.baseline.peak_device_bytes
    if not result.baseline.fits:
        return f"trains where the baseline runs out of memory, at a peak of {format_size_short(peak or 0)}"
    if peak is None or base is None or base == 0:
        return ""
    if peak == base:
        return f"peak device memory{simulated} unchanged at {format_size_short(peak)}"
    word = "lower" if peak < base else "higher"
    share = 100 * abs(base - peak) / base
    by = format_size_short(abs(base - peak))
    against = f"{format_size_short(peak)} against {format_size_short(base)}"
    return f"peak device memory{simulated} {by} {word}, {against} ({share:.1f} %)"


def _time(result: ApplyResult) -> str:
    step, base = result.policy.step_ms, result.baseline.step_ms
    if step is None or base is None or base == 0:
        return ""
    return f"step time {step / base:.3f}x the baseline, {step:.1f} against {base:.1f} ms"
