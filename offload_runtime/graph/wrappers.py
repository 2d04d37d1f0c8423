"""Tensors that wrap others, such as nested ones: what they hold.

Only this module names ``is_traceable_wrapper_subclass`` of ``torch.utils._python_dispatch``, in torch 2.11 and 2.13.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["inner_tensors"]


def inner_tensors(value: object) -> dict[str, Tensor]:
    """Return the tensors that a wrapper holds, by the attribute that holds each; none of what wraps nothing."""
    if not is_traceable_wrapper_subclass(value):
        return {}
    names, _ = value.__tensor_flatten__()
    return {name: getattr(value, name) for name in names}
