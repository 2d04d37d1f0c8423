"""Model specifications: text that names a model, and the model under test that it resolves to.

spec = "builtin:" NAME | "hf:" PATH | MODULE ":" FUNCTION
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from offload_runtime.errors import Diagnostic, RefusedError, UsageError
from offload_runtime.models.catalog import BUILTINS, DTYPES, OPTIMIZERS
from offload_runtime.models.devices import choose_device
from offload_runtime.models.under_test import ModelUnderTest


@dataclass(frozen=True)
class ModelRequest:
    """A model specification and the shape asked for; None leaves a value to the model's own default.

    ``device`` is a torch device such as ``cpu``, ``cuda:0`` or ``meta``. A step of the optimizer takes the gradients of
    ``gradient_accumulation_steps`` batches.
    """

    spec: str
    batch: int | None = None
    seq: int | None = None
    layers: int | None = None
    dtype: str | None = None
    optimizer: str | None = None
    device: str = "cpu"
    seed: int = 0
    gradient_accumulation_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "layers", "gradient_accumulation_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={self.optimizer!r} must be one of {', '.join(OPTIMIZERS)}")

    def resolve(self) -> ModelUnderTest:
        """Build the model; equal requests give equal weights and data.

        Torch's random state is left as it was. Raises as `resolve_model` does.
        """
        builder = _builder(self.spec)
        device = torch.device(self.device)
        if device.type == "cuda":
            choose_device("cuda")
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(self.seed)
            model = builder(self)
        return replace(model, gradient_accumulation_steps=self.gradient_accumulation_steps)

    def with_layers(self, layers: int) -> ModelRequest:
        """Return the same request for another number of layers."""
        return replace(self, layers=layers)


def resolve_model(
    spec: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    layers: int | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> ModelUnderTest:
    """Build the model that ``spec`` names, without network and without weights from elsewhere.

    Under ``FakeTensorMode``, or on device ``meta``, nothing is allocated. Raises RefusedError for a model
    that does not exist or cannot be used, UsageError for an option that this kind of model does not have,
    and UnreadableError for a configuration that cannot be read.
    """
    return ModelRequest(spec, batch, seq, layers, dtype, optimizer, device, seed).resolve()


def _builder(spec: str) -> Callable[[ModelRequest], ModelUnderTest]:
    kind, colon, rest = spec.partition(":")
    if colon and kind == "builtin":
        from offload_runtime.models.builtin import build_builtin

        return build_builtin
    if colon and kind == "hf":
        from offload_runtime.models.huggingface import build_huggingface

        return build_huggingface
    if colon and rest:
        from offload_runtime.models.function import build_from_function

        return build_from_function
    raise unknown_model(spec)


def unknown_model(spec: str) -> RefusedError:
    """Say that ``spec`` names no model, with the nearest name that does."""
    name = spec.rpartition(":")[2]
    close = difflib.get_close_matches(name.lower(), BUILTINS, n=1, cutoff=0.5)
    if close:
        hint = f"did you mean builtin:{close[0]}?"
    else:
        hint = (
            f"the built-in models are {', '.join(BUILTINS)}; your own is hf:PATH of a config.json or "
            "package.module:function"
        )
    return RefusedError(Diagnostic("MOD701", "error", f"{spec!r} is no model", hint=hint))


def refuse_options(request: ModelRequest, names: tuple[str, ...], reason: str, hint: str) -> None:
    """Raise UsageError if any of the options ``names`` was given, because ``reason``."""
    given = [f"--{name}" for name in names if getattr(request, name) is not None]
    if given:
        message = f"{' and '.join(given)} cannot shape {request.spec}: {reason}"
        raise UsageError(Diagnostic("MOD702", "error", message, hint=hint))
