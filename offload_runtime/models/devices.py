"""The device that a model is put on, where the user leaves it open."""

from __future__ import annotations

import torch

from offload_runtime.errors import Diagnostic, RefusedError


def choose_device(wanted: str) -> str:
    """Return `cpu` or `cuda` for `auto`: the accelerator where there is one; anything else as it is.

    Raises RefusedError for CUDA where this machine or this torch has none.
    """
    available = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if available else "cpu"
    if wanted == "cuda" and not available:
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU is visible"
        hint = "use --device cpu, where the simulated engine runs"
        raise RefusedError(Diagnostic("MOD707", "error", f"--device cuda: {reason}", hint=hint))
    return wanted
