"""Graders of eval assertions that need more than the text layer: export to a target, and training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from offload_runtime.card_checks import Assertion, OutsideGrader
from offload_runtime.errors import OffloadError
from offload_runtime.strict_yaml import read_yaml
from offload_runtime.units import parse_size

__all__ = ["grade_apply_saves", "grade_export_refuses", "graders"]

DEFAULT_MODEL = "builtin:llama-tiny"
DEFAULT_STEPS = 2


def graders(*, train: bool) -> Mapping[str, OutsideGrader]:
    """Return the graders by their kinds; those that train a model only with ``train``."""
    own: dict[str, OutsideGrader] = {"export_refuses": grade_export_refuses}
    return own | {"apply_saves": grade_apply_saves} if train else own


def grade_export_refuses(policy: str, assertion: Assertion) -> str | None:
    """Say that the export was not refused, or not for the reason given; None where it was."""
    from offload_runtime.compiler import load_policy
    from offload_runtime.export.exporter import export_policy
    from offload_runtime.export.target_reading import EXPORT_TARGETS

    target = assertion["target"]
    if target not in EXPORT_TARGETS:
        return f"target is one of {', '.join(EXPORT_TARGETS)}, not {target!r}"
    try:
        refusals = export_policy(
            load_policy(_data(policy)), target, facts=assertion.get("facts", {})
        ).refusals
    except OffloadError as error:
        return str(error)
    wanted = {key: assertion[key] for key in ("code", "path") if key in assertion}
    if any(all(getattr(refusal, key) == value for key, value in wanted.items()) for refusal in refusals):
        return None
    listed = "; ".join(f"{refusal.code} {refusal.path}" for refusal in refusals)
    return f"{target} refuses {listed}" if refusals else f"{target} takes the policy"


def grade_apply_saves(policy: str, assertion: Assertion) -> str | None:
    """Say by how much the peak was not lowered enough; None where it was. Trains a built-in model for a few steps."""
    from offload_runtime.models.comparison import compare_training
    from offload_runtime.models.resolve import ModelRequest

    request = ModelRequest(spec=assertion.get("model", DEFAULT_MODEL), device="cpu")
    try:
        result = compare_training(request, _data(policy), steps=assertion.get("steps", DEFAULT_STEPS))
    except OffloadError as error:
        return str(error)
    data = result.to_data()
    saved = data["baseline"]["peak_device_bytes"] - data["policy"]["peak_device_bytes"]
    wanted = parse_size(assertion["min_bytes"])
    return None if saved >= wanted else f"the peak is {saved} bytes lower, not {wanted}"


def _data(policy: str) -> Mapping[str, Any]:
    """Return the data of a policy's text, which a grader is only given when it could be read."""
    return cast(Mapping[str, Any], read_yaml(policy, None).data)
