"""What ``torch.compile`` was given, found in what it returned.

The only module that names ``OptimizedModule.dynamo_ctx`` and the chain of ``_torchdynamo_orig_backend``; both are
present in torch 2.11 and 2.13. Where they are missing, nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["options_within"]


def options_within(model: torch.nn.Module) -> Iterator[Mapping[str, Any]]:
    """Yield the ``options`` of every compiled module in ``model``, the very objects; ``model`` itself comes first."""
    for module in model.modules():
        backend: Any = getattr(vars(module).get("dynamo_ctx"), "callback", None)
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        options = (getattr(backend, "kwargs", None) or {}).get("options")
        if isinstance(options, Mapping):
            yield options
