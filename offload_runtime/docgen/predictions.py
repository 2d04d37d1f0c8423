"""Predictions that pages and skills quote: each plan once, in a result file, because planning takes minutes.

The file holds the hashes of each policy and hardware profile, by which :func:`stale_predictions` finds out that it is
of other ones. A changed planner it does not notice; the tests of the planner do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.docgen.effects import hash_of_profile
from offload_runtime.docgen.sources import PREDICTIONS_FILE, Sources
from offload_runtime.errors import Diagnostic
from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.plan_result import PlanResult

__all__ = ["PREDICTED", "PredictedRun", "stale_predictions", "write_predictions"]


@dataclass(frozen=True)
class PredictedRun:
    """One plan that is quoted: the shipped policy ``fit`` with ``overrides``, in mode ``inductor``.

    None leaves a value to the model's own default.
    """

    name: str
    model: str
    hardware: str
    overrides: tuple[str, ...] = ()
    optimizer: str | None = None
    batch: int | None = None
    layers: int | None = None

    @property
    def command(self) -> str:
        """The command that predicts the same."""
        words = [
            "offload plan fit",
            f"--model {self.model}",
            f"--hardware {self.hardware}",
            "--mode inductor",
        ]
        words += [
            f"--{option} {value}"
            for option, value in (
                ("optimizer", self.optimizer),
                ("batch", self.batch),
                ("layers", self.layers),
            )
            if value is not None
        ]
        return " ".join([*words, *(f"--set {override}" for override in self.overrides)])

    def policy(self) -> CompiledPolicy:
        """Return the policy that is planned."""
        return load_policy("fit", overrides=self.overrides)

    @property
    def baseline_key(self) -> tuple[object, ...]:
        """What two plans share that can be made of one traced model."""
        return (self.model, self.hardware, self.optimizer, self.batch, self.layers)


def _adamw(
    name: str, model: str, *overrides: str, optimizer: str = "adamw", batch: int | None = None
) -> PredictedRun:
    return PredictedRun(name, model, "h100-sxm", overrides, optimizer=optimizer, batch=batch)


def _experts(name: str, device_peak: str) -> PredictedRun:
    """Return a plan of the mixture of experts as docs/evidence/frontier-qwen3-30b-a3b-h200.json has it."""
    return PredictedRun(
        name, "builtin:qwen3-30b-a3b", "h200-pcie5", (f"limits.device_peak={device_peak}",), batch=4, layers=8
    )


_AT_MOST = "limits.step_overhead=5%"

PREDICTED: tuple[PredictedRun, ...] = (
    _adamw("lora", "builtin:llama3-8b-lora", _AT_MOST),
    _adamw("lora-60gib", "builtin:llama3-8b-lora", _AT_MOST, "limits.device_peak=60GiB"),
    _adamw("adamw", "builtin:llama3-8b"),
    _adamw("adamw-77gib", "builtin:llama3-8b", "limits.device_peak=77GiB"),
    _adamw("adamw-fused", "builtin:llama3-8b", optimizer="adamw-fused"),
    _adamw("adamw-fused-two", "builtin:llama3-8b", optimizer="adamw-fused", batch=2),
    _experts("experts-23gib", "23GiB"),
    _experts("experts-floor", "22646MiB"),
)


def write_predictions(
    root: Path,
    results: Sequence[tuple[PredictedRun, PlanResult | Diagnostic]],
    profiles: Mapping[str, HardwareProfile],
    environment: Mapping[str, str],
) -> Path:
    """Write what was predicted, or why a plan was refused, for each run; return the file."""
    data = {
        "what": "Plans that pages and skills quote, predicted with fake tensors and a hardware profile; no GPU "
        "took part",
        "command": "offload docs build --refresh",
        "environment": dict(environment),
        "hardware_hashes": {name: hash_of_profile(profile) for name, profile in sorted(profiles.items())},
        "plans": {
            run.name: {"command": run.command, "policy_hash": run.policy().hash, **_outcome(result)}
            for run, result in results
        },
    }
    target = root / PREDICTIONS_FILE
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return target


def stale_predictions(sources: Sources) -> tuple[str, ...]:
    """Say, one sentence each, why the file is not of the runs, policies and profiles as they are now."""
    data = sources.evidence.get(PREDICTIONS_FILE)
    if data is None:
        return ("the quoted plans have not been predicted yet",)
    known = {name: (plan["command"], plan["policy_hash"]) for name, plan in data["plans"].items()}
    found = [
        f"plan {run.name} has changed since it was predicted"
        for run in PREDICTED
        if known.pop(run.name, None) != (run.command, run.policy().hash)
    ]
    found += [f"plan {name} was predicted and is not quoted" for name in known]
    profiles = {profile.name: profile for profile in sources.profiles}
    for name, digest in data["hardware_hashes"].items():
        if name not in profiles or hash_of_profile(profiles[name]) != digest:
            found.append(f"hardware profile {name} has changed since the quoted plans were predicted")
    return tuple(found)


def _outcome(result: PlanResult | Diagnostic) -> dict[str, Any]:
    if isinstance(result, Diagnostic):
        return {"refused": {"code": result.code, "message": result.message, "hint": result.hint}}
    base, policy = result.baseline, result.policy
    return {
        "refused": None,
        "window_bytes": result.window.num_bytes,
        "capacity_bytes": result.capacity_bytes,
        "target_bytes": result.target_bytes,
        "baseline": {"peak_device_bytes": base.peak_device_bytes, "step_ms": round(base.step_ms, 2)},
        "policy": {"peak_device_bytes": policy.peak_device_bytes, "step_ms": round(policy.step_ms, 2)},
        "ratio": round(policy.step_ms / base.step_ms, 4),
        "offloaded_bytes": result.offloaded_bytes,
        "stall_ms": round(result.stall_ms, 2),
        "optimizer_state_bytes": result.resident_bytes.optimizer_state,
        "parameter_bytes": result.resident_bytes.parameters,
        "verdict": result.verdict,
    }
