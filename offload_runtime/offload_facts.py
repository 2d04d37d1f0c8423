"""Facts about a run that offloads that follow from other facts about it, and facts that exclude each other.

slowdown, offload_mechanism -> offload_enabled      stall_ms, offload_step_ms -> exposed_copy_fraction
"""

from __future__ import annotations

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.predicates import Scalar

__all__ = ["of_offloading", "refuse_contradictions"]

_ORIGIN = "follows"
_STEPS_ON_GPU = ("activation_hooks", "offload_runtime")


def of_offloading(sheet: FactSheet) -> FactSheet:
    """Return the sheet with what follows about offloading; what was given or measured is left as it is."""
    found: dict[str, Scalar] = {}
    mechanism = sheet.get("offload_mechanism")
    if mechanism is not None:
        found["offload_enabled"] = mechanism != "none"
    elif sheet.get("slowdown") is not None:
        found["offload_enabled"] = True  # it is the step with offloading over that without
    if mechanism in _STEPS_ON_GPU and sheet.get("optimizer_offload") is not True:
        found["cpu_step_fraction"] = 0.0
    if mechanism == "offload_runtime":
        found["pageable_fraction"] = 0.0  # the host buffers of this package are pinned
        exposed = _exposed(sheet)
        if exposed is not None:
            found["exposed_copy_fraction"] = exposed
    return sheet.beneath(found, _ORIGIN)


def _exposed(sheet: FactSheet) -> float | None:
    """Return the share of the step with offloading in which compute waits for copies; None where it is not known.

    The step is the measured one, or else that without a policy times the slowdown.
    """
    stall_ms, step_ms = sheet.number("stall_ms"), sheet.number("offload_step_ms")
    if stall_ms == 0 or sheet.number("hidden_fraction") == 1:
        return 0.0
    if step_ms is None:
        without_ms, slowdown = sheet.number("step_ms"), sheet.number("slowdown")
        step_ms = None if without_ms is None or slowdown is None else without_ms * slowdown
    if stall_ms is None or not step_ms:
        return None
    return min(1.0, stall_ms / step_ms)


def refuse_contradictions(sheet: FactSheet) -> None:
    """Raise UsageError (CLI614) for facts of which one is a part of the other, and larger."""
    copies, exposed = sheet.number("copy_fraction"), sheet.number("exposed_copy_fraction")
    if copies is not None and exposed is not None and exposed > copies:
        message = (
            f"exposed_copy_fraction is {exposed:g} and copy_fraction {copies:g}: the exposed copies are a part of all "
            "copies, so that they cannot take more of the step"
        )
        hint = "both are shares of one warm step; the references of diagnose-offload-overhead say how to measure them"
        raise UsageError(Diagnostic("CLI614", "error", message, hint=hint))
    stall_ms, step_ms = sheet.number("stall_ms"), sheet.number("offload_step_ms")
    if stall_ms is not None and step_ms is not None and stall_ms > step_ms:
        message = f"stall_ms is {stall_ms:g} and offload_step_ms {step_ms:g}: a step waits for no longer than it takes"
        hint = "offload apply --format json has both: stall_ms, and policy.step_ms"
        raise UsageError(Diagnostic("CLI614", "error", message, hint=hint))
