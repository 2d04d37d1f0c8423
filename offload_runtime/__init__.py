"""CPU offloading for PyTorch training, driven by declarative policies.

``torch.compile(model, backend="offload", options={"policy": ...})`` applies a policy; the names below are the public
Python surface. They are imported on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "CompiledPolicy": "offload_runtime.compiler",
    "Decision": "offload_runtime.compiler",
    "SavedActivation": "offload_runtime.compiler",
    "load_policy": "offload_runtime.compiler",
    "Diagnostic": "offload_runtime.errors",
    "OffloadError": "offload_runtime.errors",
    "PolicyError": "offload_runtime.errors",
    "RefusedError": "offload_runtime.errors",
    "Report": "offload_runtime.record",
    "report": "offload_runtime.runtime.model_report",
    "capture": "offload_runtime.models.traced_model",
    "plan": "offload_runtime.models.planning",
    "offload_backend": "offload_runtime.runtime.backend",
}

__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
