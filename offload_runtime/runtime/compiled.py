"""What ``torch.compile`` was given, found in what it returned.

The only module that names ``OptimizedModule.dynamo_ctx``, the chain of ``_torchdynamo_orig_backend``, torch's wrapper
of a back end (``compiler_fn`` and ``kwargs``) and ``nn.Module._compiled_call_impl``; all are present in torch 2.11 and
2.13. Where they are missing, nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["given_within", "is_container_compiled_in_place"]


def given_within(model: torch.nn.Module) -> Iterator[Mapping[str, Any] | None]:
    """Yield the ``options`` of every module in ``model`` that was compiled with this back end, ``model`` itself first.

    They are the very objects; None stands for a call without options.
    """
    for module in model.modules():
        backend: Any = getattr(vars(module).get("dynamo_ctx"), "callback", None)
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        kwargs = getattr(backend, "kwargs", None)
        if isinstance(kwargs, Mapping) and _is_ours(getattr(backend, "compiler_fn", None)):
            yield kwargs.get("options")


def is_container_compiled_in_place(model: torch.nn.Module) -> bool:
    """Whether ``model.compile()`` was called on a class whose ``forward`` is torch's own.

    torch wraps ``_call_impl`` then, and its tracer skips that frame and every frame of torch itself, of which such a
    model consists. ``torch.compile(model)`` adds a frame that is traced.
    """
    module = getattr(type(model).forward, "__module__", None) or ""
    return getattr(model, "_compiled_call_impl", None) is not None and module.split(".")[0] == "torch"


def _is_ours(backend: object) -> bool:
    return str(getattr(backend, "__module__", "")).startswith(f"{__package__}.")
