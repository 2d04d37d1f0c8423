"""What must be the same for two measurements to be one, or to be compared: each fact by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.models.bench_result import BenchResult

__all__ = ["continued", "differences", "setting_facts", "shape_facts"]

Facts = Mapping[str, object]


def shape_facts(result: BenchResult) -> dict[str, object]:
    """Return what was measured: the model and its shape, the front end, the kind of device, the baseline."""
    model = result.model
    return {
        "model": model.spec,
        "inputs": ", ".join(model.inputs),
        "layers": model.num_layers,
        "parameters": model.num_parameters,
        "dtype": model.dtype,
        "optimizer": model.optimizer,
        "mode": result.mode,
        "device": result.device,
        "baseline": result.baseline,
    }


def setting_facts(result: BenchResult) -> dict[str, object]:
    """Return what it was measured with: machine, software, seed, and the policy behind each side."""
    environment = result.environment
    return {
        "seed": result.model.seed,
        "gpu": environment.gpu,
        "device memory": environment.device_memory_bytes,
        "torch": environment.torch,
        "package": environment.package,
        "hardware": result.hardware,
        **{
            f"policy of {side.name}": side.policy_hash
            for side in result.sides
            if side.policy_hash is not None
        },
    }


def differences(ours: Facts, theirs: Facts, where: tuple[str, str] = ("here", "there")) -> list[str]:
    """Say for each fact of both that is not the same: its name, and both values, and ``where`` each stands."""
    return [
        f"{name} is {_shown(ours[name])} {where[0]} and {_shown(theirs[name])} {where[1]}"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]


def continued(result: BenchResult, before: BenchResult, path: Path) -> BenchResult:
    """Return ``result`` with the rounds and sides that ``before``, from the file at ``path``, has already.

    Raises RefusedError (BEN912), naming what is not the same.
    """
    changed = differences(_identity(result), _identity(before), ("now", "there"))
    if changed:
        message = f"{path} holds another measurement: {'; '.join(changed)}"
        hint = "measure the same again, or leave out --resume, which replaces the file"
        raise RefusedError(Diagnostic("BEN912", "error", message, hint=hint))
    return replace(result, sides=before.sides, rounds=before.rounds)


def _identity(result: BenchResult) -> dict[str, object]:
    return {
        **shape_facts(result),
        "sides": ", ".join(side.name for side in result.sides),
        **setting_facts(result),
        "steps": result.steps,
        "warmup": result.warmup,
    }


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    # A hash is known by its beginning.
    return text[:12] if len(text) == 64 and " " not in text else text
