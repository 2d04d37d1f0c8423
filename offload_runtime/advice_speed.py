"""A run that offloads and may be slow by that: what is asked first, and whether enough was checked."""

from __future__ import annotations

from offload_runtime.advice_systems import system_summary
from offload_runtime.diagnosed_run import step_that_does_not_count
from offload_runtime.fact_sheet import FactSheet

__all__ = ["asks_of_speed", "or_slow"]

_RATIO = "--fact slowdown=3, the step time with over that without"


def or_slow(sheet: FactSheet, summary: str, missing: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Add the question of who asks about a slow run; it comes first where a run is known to offload."""
    is_unnamed = sheet.get("offload_mechanism") in (None, "unknown")
    named = ", and --fact offload_mechanism=, what offloads" if is_unnamed else ""
    if not asks_of_speed(sheet):
        return f"{summary} If offloading made training slow, say how much: {_RATIO}{named}.", missing
    question = "Say how the two times compare"
    if sheet.get("paired_baseline") is not True:
        question = "Time the same step with and without offloading first, warm and in a pair"
    parts = [
        f"{question}: {_RATIO}{named}.",
        step_that_does_not_count(sheet),
        system_summary(sheet),
        "If it is memory that is short instead: --fact out_of_memory=true.",
    ]
    asked = [name for name in ("slowdown", "paired_baseline", "out_of_memory") if sheet.get(name) is None]
    return " ".join(part for part in parts if part), tuple(asked)


def asks_of_speed(sheet: FactSheet) -> bool:
    """Tell whether all that is said of a run is that it offloads, or by what: nothing of memory, no slowdown yet.

    Switches of a system alone, which say that too, may as well be asked about for what they do.
    """
    if "given" not in (sheet.origin("offload_mechanism"), sheet.origin("offload_enabled")):
        return False
    known = ("out_of_memory", "peak_bytes", "resident_bytes", "num_parameters", "fits", "slowdown")
    return sheet.get("offload_enabled") is True and all(sheet.get(name) is None for name in known)
