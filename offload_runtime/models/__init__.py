"""Models to try a policy on, and the comparison that ``offload apply`` runs.

Importing this package imports no torch: names that need it, or much else, are fetched when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offload_runtime.models.catalog import BUILTINS, BuiltinModel, list_models

if TYPE_CHECKING:
    from offload_runtime.models.comparison import Progress, compare_training
    from offload_runtime.models.resolve import resolve_model
    from offload_runtime.models.result import ApplyResult
    from offload_runtime.models.under_test import ModelUnderTest

__all__ = [
    "BUILTINS",
    "ApplyResult",
    "BuiltinModel",
    "ModelUnderTest",
    "Progress",
    "compare_training",
    "list_models",
    "resolve_model",
]

_LAZY = {
    "ApplyResult": "offload_runtime.models.result",
    "ModelUnderTest": "offload_runtime.models.under_test",
    "Progress": "offload_runtime.models.comparison",
    "compare_training": "offload_runtime.models.comparison",
    "resolve_model": "offload_runtime.models.resolve",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
