"""What other training systems can move off the device in a run, as far as the facts tell."""

from __future__ import annotations

from offload_runtime.export.target import TargetMechanism
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.predicates import evaluate

__all__ = ["carried_out_by", "system_summary"]


def system_summary(sheet: FactSheet) -> str | None:
    """Say which of its mechanisms the system that trains can use in this run; None where it is none that is known."""
    target = sheet.get("framework")
    if target not in EXPORT_TARGETS:
        return None
    known = load_target(str(target))
    is_on = [mechanism for mechanism in known.mechanisms if mechanism.moves in _offloaded(sheet)]
    usable = [m for m in known.mechanisms if m not in is_on and _usable(m, sheet) is not False]
    refused = [mechanism for mechanism in known.mechanisms if _usable(mechanism, sheet) is False]
    summary = f"{known.title} has for this run: {' or '.join(_named(m, sheet) for m in usable) or 'nothing'}"
    if is_on:
        on, more = " and ".join(mechanism.name for mechanism in is_on), "" if usable else "; nothing more"
        left = f", and besides: {' or '.join(_named(m, sheet) for m in usable)}" if usable else more
        summary = f"{known.title} has on already: {on}{left}"
    if refused:
        summary += f"; not {', nor '.join(_named(m, sheet) for m in refused)}"
    return f"{summary}."


def _offloaded(sheet: FactSheet) -> tuple[str, ...]:
    """Return the mechanisms that a setting of the run has switched on whole."""
    named = ("optimizer_offload", "optimizer_state"), ("parameter_offload", "parameters")
    fraction = sheet.number("offload_fraction")
    whole = fraction is None or fraction >= 1
    return tuple(
        moves
        for fact, moves in (*named, ("gradient_offload", "gradients"))
        if sheet.get(fact) is True and (whole or moves != "optimizer_state")
    )


def _usable(mechanism: TargetMechanism, sheet: FactSheet) -> bool | None:
    return True if mechanism.when is None else evaluate(mechanism.when, sheet.values)


def _named(mechanism: TargetMechanism, sheet: FactSheet) -> str:
    settled = mechanism.when is not None and _usable(mechanism, sheet) is True
    return (
        mechanism.name
        if settled or mechanism.needs is None
        else f"{mechanism.name} (needs {mechanism.needs})"
    )


def carried_out_by(moves: str, sheet: FactSheet, otherwise: str) -> str:
    """Say what moves it in this run: mechanisms of the system that trains, where that is one that is known."""
    target = sheet.get("framework")
    if target not in EXPORT_TARGETS:
        return otherwise
    known = load_target(str(target))
    usable = [m for m in known.mechanisms if m.moves == moves and _usable(m, sheet) is not False]
    if not usable:
        return f"nothing that {known.title} has for this run"
    return f"{known.title}: {' or '.join(_named(mechanism, sheet) for mechanism in usable)} (offload export)"
