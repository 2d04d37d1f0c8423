"""What the shipped policies do to a built-in model, as a plan predicts it: a result file and its pictures.

The simulation takes minutes, so pages read the file; it holds the hash of each policy and of the hardware profile, by
which :func:`stale_effects` finds out that it is of other ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.docgen.sources import EFFECTS_FILE, Sources
from offload_runtime.hardware import HardwareProfile, hardware_document
from offload_runtime.models.plan_result import PlanResult
from offload_runtime.reporting.plots import (
    FateShare,
    Frontier,
    FrontierPoint,
    FrontierSeries,
    draw_fates,
    draw_frontier,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "HARDWARE",
    "MODE",
    "EffectRun",
    "effect_runs",
    "hash_of_profile",
    "picture_file",
    "stale_effects",
    "write_effects",
]

HARDWARE = "h200-pcie5"
MODE = "graph"
_MODEL = "builtin:llama3-8b"
_OTHER_MODELS = {"moe": ("builtin:dsv3-16b", 4)}  # model, batch
_OVERRIDES = {"fit": ("limits.device_peak=40GiB",)}  # by itself it would find that everything fits
PICTURES = "docs/reference/policies"


@dataclass(frozen=True)
class EffectRun:
    """One simulation: a shipped policy, what is overridden in it, and the model; ``batch`` None is the model's own."""

    policy: str
    model: str
    batch: int | None = None
    overrides: tuple[str, ...] = ()

    @property
    def arguments(self) -> str:
        """The model as options of a command ask for it."""
        return f"--model {self.model}" + (f" --batch {self.batch}" if self.batch is not None else "")


def effect_runs(policies: Iterable[str]) -> tuple[EffectRun, ...]:
    """Return one run for each policy; those on one model stand together, so that it is traced once."""
    runs = []
    for name in policies:
        model, batch = _OTHER_MODELS.get(name, (_MODEL, None))
        runs.append(EffectRun(name, model, batch, _OVERRIDES.get(name, ())))
    return tuple(
        sorted(runs, key=lambda run: (run.arguments != f"--model {_MODEL}", run.arguments, run.policy))
    )


def picture_file(policy: str) -> str:
    """Return the picture of one policy's fates, from the root of the repository."""
    return f"{PICTURES}/{policy}.svg"


def write_effects(
    root: Path,
    results: Sequence[tuple[EffectRun, CompiledPolicy, PlanResult]],
    profile: HardwareProfile,
    environment: Mapping[str, str],
) -> tuple[Path, ...]:
    """Write the result file and the pictures of ``results``, the policies without overrides; return the files."""
    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    written = []
    for run, _, result in results:
        written.append(_write_picture(root, picture_file(run.policy), _fates(run, result)))
    shown = [(run, result) for run, _, result in results if run.model == _MODEL]
    points = [(run.policy, result.policy.peak_device_bytes, result.policy.step_ms) for run, result in shown]
    written.append(_write_picture(root, picture_file("frontier"), _frontier(points, shown[0][1])))
    data = {
        "what": "What each shipped policy does to a built-in model, predicted with fake tensors and a hardware "
        "profile; no GPU took part",
        "command": "offload docs build --refresh",
        "environment": dict(environment),
        "hardware": profile.name,
        "hardware_hash": hash_of_profile(profile),
        "mode": MODE,
        "policies": {
            run.policy: {
                "policy_hash": policy.hash,
                "model": run.arguments,
                "overrides": list(run.overrides),
                **_effect(result),
            }
            for run, policy, result in sorted(results, key=lambda item: item[0].policy)
        },
        "pictures": {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in written
        },
    }
    target = root / EFFECTS_FILE
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return (target, *written)


def hash_of_profile(profile: HardwareProfile) -> str:
    """Return the hash of what ``profile`` says, however its file is written."""
    return hashlib.sha256(json.dumps(hardware_document(profile), sort_keys=True).encode()).hexdigest()


def stale_effects(sources: Sources) -> tuple[str, ...]:
    """Say, one sentence each, why the simulated effects are not those of the policies as they are now."""
    effects = sources.effects
    if effects is None:
        return ("the policies have not been simulated yet",)
    found = []
    for name, policy in sources.policies.items():
        known = effects["policies"].get(name)
        if known is None:
            found.append(f"policy {name} has not been simulated yet")
        elif known["policy_hash"] != policy.hash:
            found.append(f"policy {name} has changed since it was simulated")
    found += [
        f"policy {name} was simulated and does not exist"
        for name in effects["policies"]
        if name not in sources.policies
    ]
    profile = next((p for p in sources.profiles if p.name == effects["hardware"]), None)
    if profile is None or hash_of_profile(profile) != effects["hardware_hash"]:
        found.append(f"hardware profile {effects['hardware']} has changed since the policies were simulated")
    for name, digest in effects["pictures"].items():
        path = sources.root / name
        if not path.is_file():
            found.append(f"picture {name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(f"picture {name} is not the one that was drawn")
    return tuple(found)


def _effect(result: PlanResult) -> dict[str, Any]:
    fates: dict[str, int] = {"save": 0, "recompute": 0, "offload": 0}
    for verdict in result.verdicts:
        if verdict.fate in fates:
            fates[verdict.fate] += verdict.activation.num_bytes
    return {
        "baseline": _step(result.baseline.peak_device_bytes, result.baseline.step_ms),
        "policy": _step(result.policy.peak_device_bytes, result.policy.step_ms),
        "num_candidates": result.num_candidates,
        "num_offloaded": result.num_offloaded,
        "offloaded_bytes": result.offloaded_bytes,
        "host_bytes": result.host.pinned_bytes,
        "bytes_by_fate": fates,
        "hidden_fraction": None if result.hidden_fraction is None else round(result.hidden_fraction, 4),
        "stall_ms": round(result.stall_ms, 2),
        "verdict": result.verdict,
    }


def _step(peak_device_bytes: int, step_ms: float) -> dict[str, float]:
    return {"peak_device_bytes": peak_device_bytes, "step_ms": round(step_ms, 2)}


def _write_picture(root: Path, name: str, figure: Figure) -> Path:
    path = root / name
    write_figure(figure, path)
    return path


def _fates(run: EffectRun, result: PlanResult) -> Figure:
    shares = [
        FateShare(verdict.activation.layer, verdict.fate, verdict.activation.num_bytes)
        for verdict in result.verdicts
        if verdict.fate != "skip"
    ]
    changed = f" ({', '.join(run.overrides)})" if run.overrides else ""
    subject = f"{run.policy}{changed} on {result.model}, mode {MODE}, on {HARDWARE}; predicted"
    return draw_fates(shares, num_layers=result.num_layers, subject=subject)


def _frontier(points: Sequence[tuple[str, int, float]], result: PlanResult) -> Figure:
    """Draw every policy as a series of its own: no line leads from one policy to another."""
    series = tuple(
        FrontierSeries(name, (FrontierPoint(peak_bytes, step_ms),)) for name, peak_bytes, step_ms in points
    )
    return draw_frontier(
        Frontier(
            series=series,
            baseline=FrontierPoint(result.baseline.peak_device_bytes, result.baseline.step_ms, "baseline"),
            capacity_bytes=result.capacity_bytes,
            subject=f"{result.model}, mode {MODE}, on {HARDWARE}; predicted",
        )
    )
