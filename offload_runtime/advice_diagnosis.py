"""A run that offloads and became slow: what of the diagnosis is open, in the order in which it is done.

A later check means nothing before an earlier one is done, so that the order is part of the advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload_runtime.fact_sheet import FactSheet

__all__ = ["CHECKS", "DIAGNOSIS_CARD", "Check", "diagnosis_summary", "is_slow", "open_checks"]

DIAGNOSIS_CARD = "diagnose-offload-overhead"
SLOW = 1.2
"""From here on a step is longer than offloading normally makes it, as the card has it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the diagnosis, and the facts that it leads to; done where all are known."""

    name: str
    facts: tuple[str, ...]


CHECKS = (
    Check("a paired baseline", ("paired_baseline",)),
    Check("warm steps only", ("warm_steps_only",)),
    Check("the share of copies", ("copy_fraction", "exposed_copy_fraction")),
    Check("utilization with headroom", ("gpu_utilization", "memory_headroom_fraction")),
    Check("NUMA binding of each rank", ("numa_local",)),
    Check("pinned memory", ("pageable_fraction",)),
    Check("the width of the link", ("pcie_link_width",)),
    Check("the host and the optimizer's step on it", ("host_cpu_fraction", "cpu_step_fraction")),
)


def is_slow(sheet: FactSheet) -> bool:
    """Tell whether offloading is on and the step is known to take longer by more than offloading normally costs."""
    slowdown = sheet.number("slowdown")
    return sheet.get("offload_enabled") is True and slowdown is not None and slowdown >= SLOW


def open_checks(sheet: FactSheet) -> tuple[Check, ...]:
    """Return the checks that are still to do, in order; one that was answered with no is still to do."""
    return tuple(
        check
        for check in CHECKS
        if any(sheet.get(name) is None for name in check.facts)
        or (check.facts[0] in ("paired_baseline", "warm_steps_only") and sheet.get(check.facts[0]) is False)
    )


def diagnosis_summary(sheet: FactSheet) -> str:
    """Say what to diagnose, and in which order."""
    slowdown = sheet.number("slowdown")
    assert slowdown is not None
    todo = "; then ".join(check.name for check in open_checks(sheet))
    order = (
        f"In this order: {todo}."
        if todo
        else "Every check is done: apply the fix that belongs to the finding."
    )
    return f"Diagnose why a step takes {slowdown:g} times as long as without offloading ({DIAGNOSIS_CARD}). {order}"
