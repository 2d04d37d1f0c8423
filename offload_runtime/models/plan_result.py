"""What planning a policy for a model on a hardware profile predicts; no torch, so that reports can read it.

Bytes are those of one rank, times those of one forward and backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from offload_runtime.errors import Diagnostic
from offload_runtime.hardware_profile import PredictionError
from offload_runtime.models.layer_runs import LayerRun
from offload_runtime.offload_plan import TensorVerdict
from offload_runtime.step import Simulation, StepTrace
from offload_runtime.tiers import OffloadArithmetic
from offload_runtime.units import format_size_short

__all__ = [
    "GRADIENTS",
    "OTHERS",
    "TEMPORARIES",
    "Holding",
    "HostForecast",
    "PeakSite",
    "PlanResult",
    "ResidentBytes",
    "SimulatedStep",
    "StepForecast",
    "WindowForecast",
    "largest_holdings",
]

Side = Literal["forward", "backward", "optimizer"]


NUM_HOLDINGS = 5
OTHERS = "others"
GRADIENTS = "gradients"
TEMPORARIES = "temporaries of the optimizer's step"


@dataclass(frozen=True)
class PeakSite:
    """A place in the step: the operator, its module and layer (None: outside of them), and the side.

    ``kernel`` is the name of the graph's node. At the optimizer's step, ``side`` says so and the rest is empty.
    """

    side: Side
    kernel: str = ""
    op: str = ""
    module: str = ""
    layer: int | None = None

    def __str__(self) -> str:
        if self.side == "optimizer":
            return "the optimizer's step"
        layer = "outside the layers" if self.layer is None else f"layer {self.layer}"
        return f"{self.side}, {layer}, {self.op or self.kernel} in {self.module or 'the root module'}"


@dataclass(frozen=True)
class Holding:
    """Storages of one kind that are alive at one place of the step: how many, and their bytes."""

    what: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True)
class ResidentBytes:
    """What training holds beside activations, by kind.

    ``gradients`` are those of all trainable parameters, as the end of backward has them; the others are there
    throughout the step. ``workspace`` is what libraries hold. ``accumulated_gradients`` are those of earlier batches
    of the step, where it has several. ``master_weights`` are float32 copies of 16-bit parameters, and part of
    ``optimizer_state``.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    batch: int
    workspace: int
    accumulated_gradients: int = 0
    master_weights: int = 0

    @property
    def optimizer_parts(self) -> dict[str, int]:
        """The optimizer's state by what it is: with master weights these, and the moments beside them."""
        moments = self.optimizer_state - self.master_weights
        return {
            "float32 master weights": self.master_weights,
            "moments" if self.master_weights else "optimizer state": moments,
        }

    @property
    def stepped(self) -> int:
        """What the optimizer's step updates: trained parameters, or their float32 copies in place of 16-bit ones."""
        return self.gradients + self.master_weights // 2

    @property
    def throughout(self) -> int:
        """What is there from the first kernel to the last."""
        state = self.parameters + self.buffers + self.optimizer_state
        return state + self.accumulated_gradients + self.batch + self.workspace


@dataclass(frozen=True)
class StepForecast:
    """What is predicted of one way to run the step; ``holdings`` are all at its peak, the largest first.

    What is resident throughout is not among them.
    """

    fits: bool
    peak_device_bytes: int
    step_ms: float
    peak_at: PeakSite
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True)
class WindowForecast:
    """What the link carries from the first saved byte to the peak of the baseline: what can leave for free.

    Nothing waits for it; kernels that run beside a copy take longer by ``contention_share``.
    """

    num_bytes: int
    duration_ms: float
    d2h_bytes_per_ms: float
    contention_share: float = 0.0


@dataclass(frozen=True)
class HostForecast:
    """Pinned host memory of one rank, rounding included, and what may be pinned (None: nobody knows).

    ``num_ranks`` share a host of ``memory_bytes``.
    """

    pinned_bytes: int
    rounding_bytes: int
    limit_bytes: int | None
    num_ranks: int
    memory_bytes: int | None


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """A step and how it runs: what pictures and traces of it are drawn from."""

    trace: StepTrace
    simulation: Simulation


@dataclass(frozen=True)
class PlanResult:
    """Everything that ``offload plan`` found out.

    ``target_bytes`` is ``limits.device_peak`` in bytes, None where the policy has none. ``capacity_is_given``: the
    device's memory is not that of the profile, but what was given instead. Without ``view_replay`` a
    tensor that backward reads through views stays. ``num_candidates`` are saved tensors that the policy lets leave and
    that can; ``num_recomputed`` counts those that the baseline saves, and so do ``verdicts`` and ``layer_runs``.
    ``optimizer_ms`` is what the optimizer's step takes on top of ``gradient_accumulation_steps`` times ``step_ms``, the
    adding up of gradients included.
    ``assumes_no_state``: nobody named the optimizer, and that of the model keeps no state.
    ``bound_ms`` is a step time that no plan can beat under the same limits, ``optimality_gap`` how far this one is
    above it; None where nothing was decided by the planner. ``prediction_error`` is how far times predicted with this
    profile were off in mode ``inductor``; None where no run was compared. ``eager_peak_bytes`` is the peak of a loop
    that is not compiled; None where it is not known.
    """

    model: str
    policy_name: str
    policy_hash: str
    mode: str
    hardware: str
    dtype: str
    optimizer: str
    view_replay: bool
    num_parameters: int
    num_graphs: int
    num_layers: int | None
    resident_bytes: ResidentBytes
    capacity_bytes: int
    capacity_is_given: bool
    target_bytes: int | None
    window: WindowForecast
    baseline: StepForecast
    policy: StepForecast
    num_candidates: int
    num_offloaded: int
    offloaded_bytes: int
    num_recomputed: int
    host: HostForecast
    hidden_fraction: float | None
    stall_ms: float
    stalls: tuple[tuple[str, float], ...]
    optimizer_ms: float
    gradient_accumulation_steps: int
    assumes_no_state: bool
    bound_ms: float | None
    optimality_gap: float | None
    layer_runs: tuple[LayerRun, ...]
    verdicts: tuple[TensorVerdict, ...]
    baseline_step: SimulatedStep
    policy_step: SimulatedStep
    arithmetic: OffloadArithmetic | None
    diagnostics: tuple[Diagnostic, ...]
    prediction_error: PredictionError | None = None
    eager_peak_bytes: int | None = None

    @property
    def exit_code(self) -> int:
        """Return 0, or 1 where something was found that fails the command."""
        return 1 if any(diagnostic.is_error for diagnostic in self.diagnostics) else 0

    @property
    def changes_nothing(self) -> bool:
        """Tell whether the plan is empty: nothing leaves, and nothing is computed again that was not before."""
        return not self.num_offloaded and self.policy.peak_device_bytes == self.baseline.peak_device_bytes

    @property
    def verdict(self) -> str:
        """Say in one sentence what the plan comes to."""
        return _verdict(self)

    def to_data(self) -> dict[str, Any]:
        """Return the plain values that ``offload plan --format json`` puts under ``data``."""
        return {
            "model": self.model,
            "policy_name": self.policy_name,
            "policy_hash": self.policy_hash,
            "mode": self.mode,
            "hardware": self.hardware,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "view_replay": self.view_replay,
            "num_parameters": self.num_parameters,
            "num_graphs": self.num_graphs,
            "num_layers": self.num_layers,
            "window_bytes": self.window.num_bytes,
            "window_ms": self.window.duration_ms,
            "num_candidates": self.num_candidates,
            "num_offloaded": self.num_offloaded,
            "offloaded_bytes": self.offloaded_bytes,
            "num_recomputed": self.num_recomputed,
            "baseline": forecast_data(self.baseline),
            "policy": forecast_data(self.policy),
            "capacity_bytes": self.capacity_bytes,
            "capacity_is_given": self.capacity_is_given,
            "target_bytes": self.target_bytes,
            "resident_bytes": asdict(self.resident_bytes),
            "peak_at": site_data(self.policy.peak_at),
            "host_bytes": self.host.pinned_bytes,
            "host_rounding_bytes": self.host.rounding_bytes,
            "host_limit_bytes": self.host.limit_bytes,
            "hidden_fraction": self.hidden_fraction,
            "stall_ms": self.stall_ms,
            "stalls": [{"tensor": name, "stall_ms": stall_ms} for name, stall_ms in self.stalls],
            "optimizer_ms": self.optimizer_ms,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "assumes_no_state": self.assumes_no_state,
            "bound_ms": self.bound_ms,
            "optimality_gap": self.optimality_gap,
            "layer_runs": [asdict(run) for run in self.layer_runs],
            "eager_peak_device_bytes": self.eager_peak_bytes,
            "prediction_error": None if self.prediction_error is None else asdict(self.prediction_error),
            "verdict": self.verdict,
        }


def forecast_data(forecast: StepForecast) -> dict[str, Any]:
    """Return a forecast as plain values."""
    return {
        "fits": forecast.fits,
        "peak_device_bytes": forecast.peak_device_bytes,
        "step_ms": forecast.step_ms,
        "peak_at": site_data(forecast.peak_at),
        "holdings": [asdict(holding) for holding in largest_holdings(forecast.holdings)],
    }


def largest_holdings(
    holdings: Sequence[Holding], names: Collection[str] | None = None
) -> tuple[Holding, ...]:
    """Return the holdings called ``names``, by default the largest, and the others in one."""
    kept = {held.what for held in holdings[:NUM_HOLDINGS]} if names is None else names
    rest = [held for held in holdings if held.what not in kept]
    found = tuple(held for held in holdings if held.what in kept)
    if not rest:
        return found
    others = Holding(OTHERS, sum(h.num_tensors for h in rest), sum(h.num_bytes for h in rest))
    return (*found, others)


def site_data(site: PeakSite) -> dict[str, Any]:
    """Return a place as plain values, in words among them."""
    return {**asdict(site), "words": str(site)}


def _verdict(result: PlanResult) -> str:
    clauses = [_action(result), _memory(result), _time(result), _fit(result), _state(result)]
    sentence = "; ".join(clause for clause in clauses if clause)
    return sentence[:1].upper() + sentence[1:] + "."


def _action(result: PlanResult) -> str:
    target = result.target_bytes
    peak = result.baseline.peak_device_bytes
    if not result.num_offloaded and target is not None and peak <= target:
        met = f"the peak of {format_size_short(peak)} is under the target of {format_size_short(target)} already"
        return f"nothing to do: {met}"
    if result.changes_nothing:
        return "nothing leaves the device"
    if not result.num_offloaded:
        return "nothing is offloaded, what changes is what is recomputed"
    return f"{_count(result.num_offloaded, 'tensor')}, {format_size_short(result.offloaded_bytes)}, leave in each step"


def _memory(result: PlanResult) -> str:
    before, after = result.baseline.peak_device_bytes, result.policy.peak_device_bytes
    if result.changes_nothing:
        return "" if result.target_bytes is not None else f"the peak stays at {format_size_short(after)}"
    if before == after:
        return f"the peak stays at {format_size_short(after)}: it sits in {result.policy.peak_at}"
    verb = "falls" if after < before else "rises"
    by = f"{100 * abs(after - before) / before:.1f} %"
    return f"the peak {verb} from {format_size_short(before)} to {format_size_short(after)} ({by})"


def _time(result: PlanResult) -> str:
    if result.changes_nothing or not result.baseline.step_ms:
        return ""
    before, after, optimizer_ms = result.baseline.step_ms, result.policy.step_ms, result.optimizer_ms
    clause = f"forward and backward take {after / before:.3f}x the baseline's time"
    if optimizer_ms:
        number = result.gradient_accumulation_steps
        whole = (number * after + optimizer_ms) / (number * before + optimizer_ms)
        clause += f", a step with {result.optimizer} {whole:.3f}x"
    return clause


def _fit(result: PlanResult) -> str:
    capacity = format_size_short(result.capacity_bytes)
    if not result.policy.fits:
        return f"it does not fit the {capacity} of {result.hardware}"
    if not result.baseline.fits:
        return f"it fits the {capacity} of {result.hardware}, and the baseline does not"
    return ""


def _state(result: PlanResult) -> str:
    """Say that a limit was planned without the state of an optimizer that nobody named."""
    if result.target_bytes is None or not result.assumes_no_state:
        return ""
    return f"no state of an optimizer is counted, since {result.optimizer} keeps none: name yours with --optimizer"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
