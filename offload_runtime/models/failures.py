"""What an exception out of a training step means: our own error, device memory that ran out, or a broken model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from offload_runtime.errors import Diagnostic, OffloadError, RefusedError, RunError, named_error
from offload_runtime.runtime.session import unwrap_error

__all__ = ["explain_failure", "is_out_of_memory"]

_MAX_DETAIL_CHARACTERS = 400


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether device memory ran out somewhere behind ``error``."""
    return any(isinstance(cause, torch.OutOfMemoryError) for cause in _causes(error))


def explain_failure(error: Exception, what: str) -> OffloadError:
    """Return the error to raise for ``error`` out of ``what``: our own as it is, torch's with a cure."""
    own = unwrap_error(error)
    if own is not None:
        return own
    detail = named_error(error)[:_MAX_DETAIL_CHARACTERS]
    if type(error).__module__.startswith("torch._dynamo"):
        message, hint = f"{what} cannot be traced by torch.compile: {detail}", _TRACE
        return RefusedError(Diagnostic("MOD732", "error", message, hint=hint))
    return RunError(Diagnostic("MOD733", "error", f"{what} failed: {detail}", hint=_TRAIN))


_TRACE = "make torch.compile(module)(*example_args) work first"
_TRAIN = "make loss_fn(module(*example_args)).backward() work first"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = getattr(current, "inner_exception", None) or current.__cause__ or current.__context__
