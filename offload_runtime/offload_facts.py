"""Facts about a run that offloads that follow from other facts about it, and facts that exclude each other.

slowdown, offload_mechanism, what is off the device -> offload_enabled
stall_ms, offload_step_ms -> exposed_copy_fraction
budget_bytes, window_bytes -> budget_in_window
nvme_read_gbps, nvme_rated_gbps -> nvme_rated_fraction
host_cpu_fraction, cpu_step_fraction -> cpu_step_cores_fraction
offload_enabled, out_of_memory -> fits
offload_mechanism <-> switches of Megatron
"""

from __future__ import annotations

from collections.abc import Iterator

from offload_runtime.errors import Diagnostic, UsageError
from offload_runtime.fact_sheet import FactSheet, typed_value
from offload_runtime.offload_mechanisms import mechanisms_on
from offload_runtime.predicates import Scalar

__all__ = ["of_offloading", "refuse_contradictions"]

_ORIGIN = "follows"


def of_offloading(sheet: FactSheet) -> FactSheet:
    """Return the sheet with what follows about offloading; what was given or measured is left as it is."""
    sheet = sheet.beneath(_named(sheet), _ORIGIN)
    found: dict[str, Scalar] = {}
    mechanism = sheet.get("offload_mechanism")
    if mechanism is not None:
        found["offload_enabled"] = mechanism != "none"
    elif sheet.get("slowdown") is not None or mechanisms_on(sheet.values) or _is_anything_off(sheet):
        found["offload_enabled"] = True  # a slowdown is the step with offloading over that without
    stage = sheet.number("zero_stage")
    if mechanism == "zero_offload" and stage is not None and stage < 3:
        found["optimizer_offload"] = True  # parameters are offloaded under stage 3 only
    on = mechanisms_on(sheet.values)
    if on and all(each.moves_activations_alone for each in on) and sheet.get("optimizer_offload") is not True:
        found["cpu_step_fraction"] = 0.0
        found["offload_device"] = "cpu"  # each of them moves to host memory
    if mechanism == "offload_runtime":
        found["pageable_fraction"] = 0.0  # the host buffers of this package are pinned
        exposed = _exposed(sheet)
        if exposed is not None:
            found["exposed_copy_fraction"] = exposed
    is_on = (found | sheet.values).get("offload_enabled")
    if is_on is False and sheet.get("out_of_memory") is False:
        found["fits"] = True  # as it ran
    found |= _shares(sheet)
    budget, window = sheet.size("budget_bytes"), sheet.size("window_bytes")
    if budget is not None and window is not None:
        found["budget_in_window"] = budget <= window
    return sheet.beneath(found, _ORIGIN)


def _shares(sheet: FactSheet) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    read, rated = sheet.number("nvme_read_gbps"), sheet.number("nvme_rated_gbps")
    if read is not None and rated:
        found["nvme_rated_fraction"] = min(1.0, read / rated)
    busy, step = sheet.number("host_cpu_fraction"), sheet.number("cpu_step_fraction")
    if busy is not None and step:
        # The host's cores are busy in the rest of the step too, so that no more of them work on the optimizer's.
        found["cpu_step_cores_fraction"] = min(1.0, busy / step)
    return found


def _is_anything_off(sheet: FactSheet) -> bool:
    kinds = ("activation", "gradient", "optimizer", "parameter")
    return any(sheet.get(f"{kind}_offload") is True for kind in kinds)


def _named(sheet: FactSheet) -> dict[str, Scalar]:
    """Return the mechanism, where the facts say that one is on and nobody named it, and what that implies."""
    on = mechanisms_on(sheet.values)
    if len(on) != 1:
        return {}
    (mechanism,) = on
    return {"offload_mechanism": mechanism.name, **mechanism.implies}


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
    """Raise UsageError (CLI614) for facts that exclude each other.

    These are a part that is larger than the whole, and a mechanism beside a framework or a switch that it does not go
    with.
    """
    problems = [
        Diagnostic("CLI614", "error", message, hint=hint)
        for message, hint in (*_parts_and_wholes(sheet), *_mechanisms(sheet))
    ]
    if problems:
        raise UsageError(*problems)


def _parts_and_wholes(sheet: FactSheet) -> Iterator[tuple[str, str]]:
    copies, exposed = sheet.number("copy_fraction"), sheet.number("exposed_copy_fraction")
    if copies is not None and exposed is not None and exposed > copies:
        yield (
            f"exposed_copy_fraction is {exposed:g} and copy_fraction {copies:g}: the exposed copies are a part of all "
            "copies, so that they cannot take more of the step",
            "both are shares of one warm step; the references of diagnose-offload-overhead say how to measure them",
        )
    stall_ms, step_ms = sheet.number("stall_ms"), sheet.number("offload_step_ms")
    if stall_ms is not None and step_ms is not None and stall_ms > step_ms:
        yield (
            f"stall_ms is {stall_ms:g} and offload_step_ms {step_ms:g}: a step waits for no longer than it takes",
            "offload apply --format json has both: stall_ms, and policy.step_ms",
        )


def _mechanisms(sheet: FactSheet) -> Iterator[tuple[str, str]]:
    framework = sheet.get("framework")
    for mechanism in mechanisms_on(sheet.values):
        is_named = sheet.get("offload_mechanism") == mechanism.name
        named = f"offload_mechanism is {mechanism.name}" if is_named else f"{mechanism.name} is on"
        if sheet.get("offload_mechanism") == "none":
            yield f"offload_mechanism is none and {named}", "name what offloads now, or leave its switch out"
        if framework is not None and mechanism.frameworks and framework not in mechanism.frameworks:
            yield (
                f"{named} and framework {framework}: that is no mechanism of it",
                f"{mechanism.name} goes with framework {', '.join(mechanism.frameworks)}; name what offloads now, and "
                "what runs the training loop",
            )
            continue
        for name, value in mechanism.implies.items():
            known = sheet.get(name)
            if name != "framework" and known is not None and known != value:
                yield (
                    f"{named} and {name} {typed_value(known)}: with that mechanism {name} is "
                    f"{typed_value(value)}",
                    "leave the one out that is wrong",
                )
