"""What tests of plans ask for: a policy, a profile, a traced model, the refusal that came."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.errors import RefusedError
from offload_runtime.hardware import HardwareProfile, hardware_document, load_hardware
from offload_runtime.models.plan_baseline import Baseline
from offload_runtime.models.planning import baseline_of
from offload_runtime.models.resolve import ModelRequest
from tests.models.planned_models import LAYER_PARAMETERS, NUM_LAYERS

MODELS = "tests.models.planned_models"
PARAMETER_BYTES = 4 * NUM_LAYERS * LAYER_PARAMETERS
WORKSPACE = load_hardware("h200-pcie5").workspace_bytes


def policy(
    *,
    select: str = "largest_first",
    action: str = "offload",
    limits: Mapping[str, Any] | None = None,
    **schedule: Any,
) -> CompiledPolicy:
    """Return a policy for the wide products of each block."""
    rule = {"name": "wide", "match": {"op": "matmul", "bytes": {"min": "1MiB"}}, "action": action}
    return load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "wide",
            "limits": dict(limits or {}),
            "schedule": {"select": select, **schedule},
            "activations": {"default": "auto", "rules": [rule]},
        }
    )


def hardware(**changes: tuple[float, str]) -> HardwareProfile:
    """Return the H200's profile with other figures, such as ``device_memory=(8, "MiB")``."""
    document = hardware_document(load_hardware("h200-pcie5"))
    for key, (value, unit) in changes.items():
        section, _, name = key.partition("_")
        given = {"value": value, "source": "the test"} | ({"unit": unit} if unit else {})
        document[section][name] = given
    return load_hardware(document)


@cache
def baseline(
    model: str = "stack", mode: str = "graph", optimizer: str = "none", profile: HardwareProfile | None = None
) -> Baseline:
    """Trace a model of `planned_models` once for all tests."""
    return baseline_of(
        ModelRequest(f"{MODELS}:{model}", optimizer=optimizer),
        policy(),
        mode=mode,
        hardware=profile or load_hardware("h200-pcie5"),
    )


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> tuple[str, str]:
    (found,) = error.value.diagnostics
    assert found.hint
    return found.code, found.message
