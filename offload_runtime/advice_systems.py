"""What other training systems can move off the device in a run, as far as the facts tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from offload_runtime.errors import Diagnostic
from offload_runtime.export.fact_refusals import fact_refusals
from offload_runtime.export.target import TargetMechanism
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.offload_mechanisms import MECHANISMS
from offload_runtime.predicates import comparisons, evaluate

__all__ = [
    "OWN_MECHANISM",
    "SystemMechanism",
    "carried_out_by",
    "refusal_summary",
    "refused_by_system",
    "system_mechanisms",
    "system_summary",
]

OWN_MECHANISM = ("accelerate", "deepspeed", "fsdp2", "megatron-bridge")
"""Systems that offload by mechanisms of their own, and do not compile with this package's back end."""


MechanismState = Literal["on", "on, in part", "on, which cannot be", "can be used", "cannot be used"]
# What a run says that it offloads, by the fact that says so.
_SWITCHES = {
    "optimizer_state": "optimizer_offload",
    "parameters": "parameter_offload",
    "gradients": "gradient_offload",
}


_QUALIFIED = {"on, in part": " (in part)", "on, which cannot be": " (which cannot be)"}


@dataclass(frozen=True, slots=True)
class SystemMechanism:
    """One way in which the system that trains offloads, and what becomes of it in this run.

    ``needs`` is what the run has to meet for it, in words; None where what is known of the run meets all of that.
    """

    name: str
    state: MechanismState
    needs: str | None

    @property
    def is_on(self) -> bool:
        """Tell whether the run has it on."""
        return self.state.startswith("on")


def system_mechanisms(sheet: FactSheet) -> tuple[SystemMechanism, ...]:
    """Return what the system that trains has for this run; nothing where it is none that is known.

    What comes along with another mechanism is no choice beside it, and is left out. What the run has on and cannot have
    whatever else is on stands in the way of nothing: it has to go. Of two that exclude each other neither can be.
    """
    target = sheet.get("framework")
    if target not in EXPORT_TARGETS:
        return ()
    mechanisms = load_target(str(target)).mechanisms
    is_on = [mechanism for mechanism in mechanisms if _is_on(mechanism, sheet)]
    chosen = {mechanism.name for mechanism in is_on if mechanism.part_of is None}
    alone = [
        m for m in is_on if _usable(m, _without([other for other in is_on if other is not m], sheet)) is False
    ]
    kept = _without(alone, sheet)
    rows = [
        _row(mechanism, sheet if mechanism in alone else kept, "on", "on, which cannot be")
        for mechanism in is_on
        if mechanism.part_of not in chosen
    ]
    possible = _without([mechanism for mechanism in is_on if _usable(mechanism, kept) is False], kept)
    rows += [
        _row(mechanism, possible, "can be used", "cannot be used")
        for mechanism in mechanisms
        if mechanism not in is_on and mechanism.part_of is None
    ]
    return tuple(rows)


def system_summary(sheet: FactSheet) -> str | None:
    """Say which of its mechanisms the system that trains can use in this run; None where it is none that is known."""
    rows = system_mechanisms(sheet)
    if not rows:
        return None
    title = load_target(str(sheet.get("framework"))).title
    usable = " or ".join(row.name for row in rows if row.state == "can be used")
    on = [f"{row.name}{_QUALIFIED.get(row.state, '')}" for row in rows if row.is_on]
    if on:
        summary = f"{title} has on already: {' and '.join(on)}."
        summary += (
            f" Besides it has for this run: {usable}." if usable else " It has nothing more for this run."
        )
    else:
        summary = f"{title} has for this run: {usable or 'nothing'}."
    refused = [row.name for row in rows if row.state == "cannot be used"]
    return f"{summary} Not {', nor '.join(refused)}." if refused else summary


def _row(
    mechanism: TargetMechanism, sheet: FactSheet, able: MechanismState, unable: MechanismState
) -> SystemMechanism:
    fraction = sheet.number("offload_fraction")
    if able == "on" and mechanism.moves == "optimizer_state" and fraction is not None and fraction < 1:
        able = "on, in part"
    state = unable if _usable(mechanism, sheet) is False else able
    return SystemMechanism(mechanism.name, state, _needs(mechanism, sheet))


def _without(mechanisms: Sequence[TargetMechanism], sheet: FactSheet) -> FactSheet:
    """Return the facts as if ``mechanisms`` were off."""
    switches = {
        name: False
        for mechanism in mechanisms
        for name in (
            [_SWITCHES[mechanism.moves]]
            if mechanism.enabled_when is None
            else [each.fact for each in comparisons(mechanism.enabled_when)]
        )
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
    switch = _SWITCHES.get(mechanism.moves)
    return switch is not None and sheet.get(switch) is True


def _usable(mechanism: TargetMechanism, sheet: FactSheet) -> bool | None:
    """Whether the run meets the mechanism's condition; None where a fact is missing."""
    return True if mechanism.when is None else evaluate(mechanism.when, sheet.values)


def _needs(mechanism: TargetMechanism, sheet: FactSheet) -> str | None:
    """Return what a mechanism needs, unless the facts settle all of that."""
    is_settled = mechanism.when is not None and mechanism.chosen_by is None
    return None if is_settled and _usable(mechanism, sheet) is True else mechanism.needs


def _named(mechanism: TargetMechanism, sheet: FactSheet) -> str:
    needs = _needs(mechanism, sheet)
    return mechanism.name if needs is None else f"{mechanism.name} (needs {needs})"


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
