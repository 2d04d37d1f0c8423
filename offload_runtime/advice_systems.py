"""What other training systems can move off the device in a run, as far as the facts tell."""

from __future__ import annotations

from collections.abc import Sequence

from offload_runtime.errors import Diagnostic
from offload_runtime.export.fact_refusals import fact_refusals
from offload_runtime.export.target import TargetMechanism
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.offload_mechanisms import MECHANISMS
from offload_runtime.predicates import comparisons, evaluate

__all__ = ["OWN_MECHANISM", "carried_out_by", "refusal_summary", "refused_by_system", "system_summary"]

OWN_MECHANISM = ("accelerate", "deepspeed", "fsdp2", "megatron-bridge")
"""Systems that offload by mechanisms of their own, and do not compile with this package's back end."""


def system_summary(sheet: FactSheet) -> str | None:
    """Say which of its mechanisms the system that trains can use in this run; None where it is none that is known."""
    target = sheet.get("framework")
    if target not in EXPORT_TARGETS:
        return None
    known = load_target(str(target))
    is_on = [mechanism for mechanism in known.mechanisms if _is_on(mechanism, sheet)]
    # What comes along with another mechanism is no choice beside it.
    others = [
        mechanism for mechanism in known.mechanisms if mechanism not in is_on and mechanism.part_of is None
    ]
    # What the run has on and cannot have stands in the way of nothing: it has to go.
    sheet = _without_impossible(is_on, sheet)
    chosen = {mechanism.name for mechanism in is_on if mechanism.part_of is None}
    is_on = [mechanism for mechanism in is_on if mechanism.part_of not in chosen]
    refused = [mechanism for mechanism in others if _usable(mechanism, sheet) is False]
    usable = " or ".join(_named(mechanism, sheet) for mechanism in others if mechanism not in refused)
    if is_on:
        on = " and ".join(_named_on(mechanism, sheet) for mechanism in is_on)
        summary = f"{known.title} has on already: {on}."
        summary += (
            f" Besides it has for this run: {usable}." if usable else " It has nothing more for this run."
        )
    else:
        summary = f"{known.title} has for this run: {usable or 'nothing'}."
    if refused:
        summary += f" Not {', nor '.join(_named(m, sheet) for m in refused)}."
    return summary


def _without_impossible(is_on: Sequence[TargetMechanism], sheet: FactSheet) -> FactSheet:
    """Return the facts as if the mechanisms that are on and cannot be were off."""
    switches = {
        each.fact: False
        for mechanism in is_on
        if mechanism.enabled_when is not None and _usable(mechanism, sheet) is False
        for each in comparisons(mechanism.enabled_when)
    }
    return sheet.with_facts(switches, "given") if switches else sheet


def refused_by_system(sheet: FactSheet) -> tuple[Diagnostic, ...]:
    """Return what the system that offloads refuses of this run, as an export for it would; else nothing."""
    target = _refusing(sheet)
    return () if target is None else fact_refusals(target, sheet.values)


def _refusing(sheet: FactSheet) -> str | None:
    """Return the target whose rules the run has to keep: the system that trains, or that of the mechanism."""
    framework = sheet.get("framework")
    if framework in EXPORT_TARGETS:
        return str(framework)
    mechanism = MECHANISMS.get(str(sheet.get("offload_mechanism")))
    return None if mechanism is None else mechanism.system


def refusal_summary(sheet: FactSheet, refused: Sequence[Diagnostic]) -> str:
    """Say that the system refuses this configuration, and why."""
    system = str(_refusing(sheet))
    # What the system itself would print stands in the finding, after the name of the rule.
    reasons = [each.message.removeprefix(f"{system}: ").partition(" [")[0] for each in refused]
    return f"{load_target(system).title} refuses this configuration: {'; '.join(reasons)}."


def _is_on(mechanism: TargetMechanism, sheet: FactSheet) -> bool:
    if mechanism.enabled_when is not None:
        return evaluate(mechanism.enabled_when, sheet.values) is True
    return mechanism.moves in _offloaded(sheet)


def _offloaded(sheet: FactSheet) -> tuple[str, ...]:
    """Return what a setting of the run offloads whole: ``optimizer_state``, ``parameters``, ``gradients``."""
    fraction = sheet.number("offload_fraction")
    is_whole = fraction is None or fraction >= 1  # a share of the optimizer's state alone can be offloaded
    settings = {
        "optimizer_state": sheet.get("optimizer_offload") is True and is_whole,
        "parameters": sheet.get("parameter_offload") is True,
        "gradients": sheet.get("gradient_offload") is True,
    }
    return tuple(moves for moves, is_set in settings.items() if is_set)


def _usable(mechanism: TargetMechanism, sheet: FactSheet) -> bool | None:
    """Whether the run meets the mechanism's condition; None where a fact is missing."""
    return True if mechanism.when is None else evaluate(mechanism.when, sheet.values)


def _named(mechanism: TargetMechanism, sheet: FactSheet) -> str:
    """Name a mechanism, and what it needs unless the facts settle all of that."""
    settled = mechanism.when is not None and mechanism.chosen_by is None and _usable(mechanism, sheet) is True
    if settled or mechanism.needs is None:
        return mechanism.name
    return f"{mechanism.name} (needs {mechanism.needs})"


def _named_on(mechanism: TargetMechanism, sheet: FactSheet) -> str:
    """Name a mechanism that the run has on, and what it lacks where it cannot work there."""
    if _usable(mechanism, sheet) is not False:
        return _named(mechanism, sheet)
    return f"{mechanism.name} (which cannot be: it needs {mechanism.needs})"


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
