"""Graders of eval assertions that need more than the text layer: export to a target, and training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload_runtime.card_checks import Assertion, OutsideGrader
from offload_runtime.errors import OffloadError
from offload_runtime.strict_yaml import read_yaml
from offload_runtime.units import parse_size

__all__ = ["graders"]

DEFAULT_MODEL = "builtin:llama-tiny"
DEFAULT_STEPS = 2


def graders(*, train: bool) -> Mapping[str, OutsideGrader]:
    """Return the graders by their kinds; those that train a model only with ``train``."""
    return {"apply_saves": grade_apply_saves} if train else {}


def grade_apply_saves(policy: str, assertion: Assertion) -> str | None:
    """Say by how much the peak was not lowered enough; None where it was. Trains a built-in model for a few steps."""
    from offload_runtime.models.comparison import compare_training
    from offload_runtime.models.resolve import ModelRequest

    request = ModelRequest(spec=assertion.get("model", DEFAULT_MODEL), device="cpu")
    try:
        result = compare_training(
            request, cast(Any, read_yaml(policy, None).data), steps=assertion.get("steps", DEFAULT_STEPS)
        )
    except OffloadError as error:
        return str(error)
    data = result.to_data()
    saved = data["baseline"]["peak_device_bytes"] - data["policy"]["peak_device_bytes"]
    wanted = parse_size(assertion["min_bytes"])
    return None if saved >= wanted else f"the peak is {saved} bytes lower, not {wanted}"
