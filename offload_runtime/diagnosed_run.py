"""The run that a diagnosis is about: what of the facts counts for it, what offloads there, what that moves."""

from __future__ import annotations

from offload_runtime.diagnosis_fixes import LARGE
from offload_runtime.diagnosis_table import NO_DISK
from offload_runtime.fact_sheet import FactSheet, format_fact
from offload_runtime.facts import FACTS
from offload_runtime.offload_mechanisms import mechanisms_on, mechanisms_possible
from offload_runtime.predicates import Scalar, evaluate

__all__ = [
    "is_named",
    "is_unnamed",
    "known_fact",
    "may_move_two",
    "may_use_disk",
    "moves_activations_alone",
    "of_the_run",
    "step_that_does_not_count",
    "with_mechanism",
]

# What a plan was asked for, and what a probe says of a link that may be idle: of the run that is slow they are known
# where they are given.
_OF_THE_RUN = ("mode", "pcie_generation", "pcie_link_width")


def of_the_run(sheet: FactSheet) -> FactSheet:
    """Return the sheet without what may be otherwise in the run that is slow.

    That is what was predicted or probed. Where the optimizer steps on the GPU, its step takes none of the CPU.
    """
    known = tuple(known for known in sheet.known if known.name not in _OF_THE_RUN or known.origin == "given")
    run = FactSheet(known)
    return run.with_facts({"cpu_step_fraction": 0.0}, "follows") if _steps_on_gpu(sheet) else run


def with_mechanism(sheet: FactSheet) -> dict[str, Scalar]:
    """Return the facts, with the mechanism where the framework has only one.

    Where that moves activations alone, no state is off the device unless something says so.
    """
    possible = mechanisms_possible(sheet.values)
    facts = sheet.values
    if not is_named(sheet) and len(possible) == 1:
        facts["offload_mechanism"] = possible[0].name
    if moves_activations_alone(sheet) and sheet.get("optimizer_offload") is not True:
        facts = {"optimizer_offload": False, "parameter_offload": False, **facts}
    return facts


def step_that_does_not_count(sheet: FactSheet) -> str | None:
    """Say why a long step of the optimizer on the CPU is none of this run; None where none is known or it may be."""
    share = sheet.number("cpu_step_fraction")
    if share is None or share < LARGE or not _steps_on_gpu(sheet):
        return None
    said = known_fact(sheet, "cpu_step_fraction")
    if sheet.get("optimizer_offload") is False:
        why = "optimizer_offload no says that the optimizer steps on the GPU, so one of the two is wrong."
        return f"{said} does not count: {why}"
    names = " and ".join(each.name for each in mechanisms_possible(sheet.values))
    return (
        f"{said} does not count: {names} moves activations alone, and the optimizer steps on the GPU. If something "
        "else has its state off the device, say --fact optimizer_offload=true."
    )


def is_named(sheet: FactSheet) -> bool:
    """Tell whether it is known what offloads."""
    return sheet.get("offload_mechanism") not in (None, "unknown")


def is_unnamed(sheet: FactSheet) -> bool:
    """Tell whether neither the mechanism is known nor a framework that has one."""
    return (
        not is_named(sheet)
        and len(mechanisms_possible(sheet.values)) != 1
        and not mechanisms_on(sheet.values)
    )


def may_use_disk(sheet: FactSheet) -> bool:
    """Tell whether a disk may be what is offloaded to, as nothing that is known says which device is."""
    return sheet.get("offload_device") is None and evaluate(NO_DISK, sheet.values) is not True


def may_move_two(sheet: FactSheet) -> bool:
    """Tell whether two things may be off the device of which one can come back without the other."""
    possible = mechanisms_possible(sheet.values)
    return len(possible) != 1 or possible[0].moves == ("optimizer_state", "parameters")


def moves_activations_alone(sheet: FactSheet) -> bool:
    """Tell whether all that may offload leaves the state on the device."""
    possible = mechanisms_possible(sheet.values)
    return bool(possible) and all(mechanism.moves_activations_alone for mechanism in possible)


def known_fact(sheet: FactSheet, name: str) -> str:
    """Return a fact with its value; its name alone where that is not known."""
    value = sheet.get(name)
    return name if value is None else f"{name} {format_fact(FACTS[name], value)}"


def _steps_on_gpu(sheet: FactSheet) -> bool:
    """Tell whether the optimizer is known to step on the GPU."""
    is_off = sheet.get("optimizer_offload")
    return moves_activations_alone(sheet) if is_off is None else is_off is False
