"""Hugging Face models from a local configuration: random weights, no network, the loss inside the module.

``hf:PATH`` names a ``config.json`` or the folder that holds it, of a causal language model, a
sequence-to-sequence model, an image classifier (extra ``hf``: transformers) or a conditional U-Net
(diffusers).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from offload_runtime.errors import Diagnostic, OffloadError, RefusedError, UnreadableError, named_error
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.under_test import ModelUnderTest

KINDS = "a causal language model, a sequence-to-sequence model, an image classifier or a UNet2DConditionModel"


def build_huggingface(request: ModelRequest) -> ModelUnderTest:
    """Build the model whose configuration ``request.spec``, ``hf:PATH``, names.

    Raises UnreadableError for what is no configuration, RefusedError for one that no model can be built of.
    """
    path = _config_path(request.spec)
    config = _read_config(request.spec, path)
    try:
        if "_class_name" in config:
            from offload_runtime.models.diffusion import build_diffusion

            return build_diffusion(request, config)
        if "model_type" in config:
            from offload_runtime.models.transformer import build_transformer

            return build_transformer(request, config)
    except (OffloadError, torch.OutOfMemoryError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("transformers", "diffusers"):
            raise
        raise RefusedError(
            Diagnostic(
                "MOD705",
                "error",
                f"{request.spec} needs the package {package}, and {error.name} is not installed",
                hint="install the extra: pip install 'offload-runtime[hf]'",
            )
        ) from error
    except Exception as error:  # transformers and diffusers raise whatever their layers come upon
        detail = named_error(error)
        hint = "correct the value that it names; the package that wrote the configuration must be able to build it"
        raise unsupported(request.spec, f"its configuration cannot be built: {detail}", hint) from error
    raise unsupported(
        request.spec, "its configuration names no model_type", f"use the config.json of {KINDS}"
    )


def _config_path(spec: str) -> Path:
    path = Path(
        os.path.expanduser(spec.partition(":")[2])
    )  # unlike Path's own, bears a user who is not there
    if os.path.isdir(path):
        path = path / "config.json"
    if not os.path.isfile(path):
        raise UnreadableError(
            Diagnostic(
                "MOD704",
                "error",
                f"there is no file {path} for {spec}",
                hint="hf: takes the path of a local config.json or of its folder; nothing is downloaded",
            )
        )
    return path


def _read_config(spec: str, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        line, column = (
            (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        )
        raise UnreadableError(
            Diagnostic(
                "MOD704",
                "error",
                f"the configuration of {spec} cannot be read: {error}",
                file=str(path),
                line=line,
                column=column,
                hint="it must be a JSON object, as save_pretrained writes it",
            )
        ) from error
    if not isinstance(config, dict):
        raise UnreadableError(
            Diagnostic(
                "MOD704",
                "error",
                f"the configuration of {spec} is a JSON {type(config).__name__}, not an object",
                file=str(path),
                hint="it must be a JSON object, as save_pretrained writes it",
            )
        )
    return config


def unsupported(spec: str, reason: str, hint: str) -> RefusedError:
    """Say that the model of ``spec`` is of a kind that cannot be built here."""
    return RefusedError(Diagnostic("MOD706", "error", f"{spec} is not supported: {reason}", hint=hint))


def configured_dtype(config: Mapping[str, Any]) -> str:
    """Return the type that the configuration asks for, ``float32`` where it asks for no usable one."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return name if name in ("float32", "bfloat16", "float16") else "float32"
