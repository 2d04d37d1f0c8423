"""Advice from facts: whether anything has to leave the device, which mechanism comes first and why, what to do next.

    facts -> does it fit? -> does what stays fit? -> does the floor fit? -> conclusion, order, arithmetic

A conclusion that hangs on a fact that is not known says so, and which fact that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from offload_runtime.advice_arithmetic import AdamForms, adam_forms, arithmetic_sections
from offload_runtime.advice_diagnosis import Diagnosis, Found, diagnose
from offload_runtime.advice_floor import NO_CURES, Cures, find_cures, find_floor
from offload_runtime.advice_speed import or_slow
from offload_runtime.advice_systems import (
    OWN_MECHANISM,
    SystemMechanism,
    carried_out_by,
    refusal_summary,
    refused_by_system,
    system_mechanisms,
    system_summary,
)
from offload_runtime.card import Mechanism
from offload_runtime.errors import Diagnostic
from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.state_facts import (
    MIB,
    is_state_elsewhere,
    limit_bytes,
    offloaded_shares,
    planned_limit,
    raised_limit,
)
from offload_runtime.tier_lines import ArithmeticSection
from offload_runtime.units import format_size_short

__all__ = ["Advice", "Conclusion", "Step", "advise"]

_COMPILE_FIRST = (
    "An eager loop holds more than the compiled one, which was predicted: compile first, "
    "model = torch.compile(model)."
)
Conclusion = Literal["nothing", "activations", "refused", "unknown", "diagnose", "not_slow", "ask"]


@dataclass(frozen=True)
class Step:
    """One mechanism in the order in which they are tried, what it takes off the device (None: not known), and why."""

    mechanism: Mechanism
    num_bytes: int | None
    why: str
    carried_out_by: str


@dataclass(frozen=True)
class Advice:
    """What the facts say.

    ``missing`` are facts that the conclusion hangs on. ``cures`` would make the training fit where no policy does, or
    only one under a raised limit; ``refusal`` says the former as a finding, ``warnings`` the latter. ``order`` is empty
    where nothing has to leave or nothing is known. ``device_peak_bytes`` is the limit to plan under where that is not
    what ``auto`` leaves of the device.
    ``findings`` are what makes a run slow that offloads, with the fixes.
    ``compile_first``: the step fits when it is compiled, ran out of memory, and is not known to be compiled.
    ``impossible``: what the system that trains refuses of the configuration, whatever is advised; ``mechanisms`` are
    what it has of its own for this run.
    """

    conclusion: Conclusion
    summary: str
    order: tuple[Step, ...]
    sections: tuple[ArithmeticSection, ...]
    cures: Cures = NO_CURES
    missing: tuple[str, ...] = ()
    refusal: Diagnostic | None = None
    device_peak_bytes: int | None = None
    findings: tuple[Found, ...] = ()
    compile_first: bool = False
    impossible: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    mechanisms: tuple[SystemMechanism, ...] = ()

    @property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """Return every reason for which nothing that is advised makes this run as it is."""
        return (*self.impossible, *(() if self.refusal is None else (self.refusal,)))


def advise(result: FactsResult) -> Advice:
    """Return what to do about a slow run that offloads, and about memory, given what is known."""
    found, diagnosis = _about_memory(result), diagnose(result.sheet)
    if diagnosis is not None:
        found = _diagnosed(found, diagnosis, result.sheet)
    found = replace(found, mechanisms=system_mechanisms(result.sheet))
    impossible = refused_by_system(result.sheet)
    if not impossible:
        return found
    summary = f"{refusal_summary(result.sheet, impossible)} {found.summary}"
    return replace(found, summary=summary, impossible=impossible)


def _diagnosed(found: Advice, diagnosis: Diagnosis, sheet: FactSheet) -> Advice:
    """Put what is said of a slowdown before what was ``found`` about memory.

    What became slow by offloading is running: whether it fits is not the question, and offloading more is no answer.
    """
    known = tuple(
        section for section in found.sections if any(line.value is not None for line in section.lines)
    )
    slow = replace(found, findings=diagnosis.findings, sections=known)
    if found.conclusion == "unknown" and diagnosis.verdict != "unknown":
        return replace(
            slow, conclusion=diagnosis.verdict, summary=diagnosis.summary, missing=diagnosis.missing
        )
    if (
        diagnosis.verdict == "diagnose"
        and found.conclusion == "activations"
        and sheet.get("out_of_memory") is not True
    ):
        stays = "Without offloading the step does not fit, so that it may move less or recompute more, and not nothing."
        return replace(
            slow,
            conclusion=diagnosis.verdict,
            summary=f"{diagnosis.summary} {stays}",
            order=(),
            missing=diagnosis.missing,
        )
    missing = tuple(dict.fromkeys((*diagnosis.missing, *found.missing)))
    return replace(slow, summary=f"{diagnosis.summary} {found.summary}", missing=missing)


def _about_memory(result: FactsResult) -> Advice:
    sheet = result.sheet
    sections = arithmetic_sections(result)
    fits, ran_out = sheet.get("fits"), sheet.get("out_of_memory")
    if sheet.get("resident_fits") is False or (sheet.get("floor_fits") is False and fits is not True):
        return _refused(result, sections)
    forms = adam_forms(sheet)
    if forms is not None and forms.hangs_on_master_weights:
        return _for_each_form(result, forms, sections)
    if fits is True and ran_out is not True:
        return _fitting(result, sections)
    if fits is False or ran_out is True:
        return _overflow(result, sections)
    missing = (*_missing(result), *_open_compilation(sheet))
    hangs = f"hether a step fits hangs on {', '.join(missing)}."
    system = system_summary(sheet)
    summary = f"{system} W{hangs}" if system is not None else f"Nothing can be said yet: w{hangs}"
    if sheet.get("slowdown") is None and sheet.get("offload_enabled") is not False and ran_out is None:
        summary, missing = or_slow(sheet, summary, missing)
    return Advice("unknown", summary, (), sections, missing=missing)


def _for_each_form(result: FactsResult, forms: AdamForms, sections: tuple[ArithmeticSection, ...]) -> Advice:
    """Answer for both ways to keep Adam's state, of which one fits: what was simulated is all in the weights' type."""
    plain, mixed = (state.per_parameter.total for state in (forms.plain_state, forms.mixed_state))
    sheet = result.sheet
    no = f"With {mixed} B (float32 master weights and moments) no: the state alone is {forms.mixed}."
    yes = f"With {plain} B a parameter, all in {sheet.get('dtype')}"
    if result.estimate is None:
        summary = f"It hangs on master_weights. {yes}, {forms.plain} of state fit. {no}"
        return Advice("unknown", summary, (), sections, missing=("master_weights",))
    if sheet.get("fits") is True and sheet.get("out_of_memory") is not True:
        found = _fitting(result, sections)
    else:
        found = _overflow(result, sections)
    summary = f"{yes} as plan and apply train, yes: {found.summary} {no} It hangs on master_weights."
    return replace(found, summary=summary, missing=("master_weights", *found.missing))


def _fitting(result: FactsResult, sections: tuple[ArithmeticSection, ...]) -> Advice:
    sheet = result.sheet
    peak, capacity = sheet.size("peak_bytes"), sheet.size("gpu_total_bytes")
    numbers = ""
    warnings: tuple[Diagnostic, ...] = ()
    if peak is not None and capacity is not None:
        numbers = f": its peak is {format_size_short(peak)} of {format_size_short(capacity)}"
        warnings = _tight_fit(peak, capacity) if peak > limit_bytes(capacity) else ()
    summary = f"Nothing has to leave the device, the step fits{numbers}. Offloading would only cost time."
    return Advice("nothing", summary, (), sections, warnings=warnings)


def _tight_fit(peak: int, capacity: int) -> tuple[Diagnostic, ...]:
    usual, device = format_size_short(limit_bytes(capacity)), format_size_short(capacity)
    message = (
        f"the peak of {format_size_short(peak)} is over the {usual} that a plan takes of {device} by itself: "
        f"{format_size_short(capacity - peak)} are left for what no plan counts (CUDA context, fragmentation)"
    )
    hint = "try the step; if it runs out of memory, --fact out_of_memory=true leads to a plan that takes less"
    return (Diagnostic("ADV914", "warning", message, hint=hint),)


def _overflow(result: FactsResult, sections: tuple[ArithmeticSection, ...]) -> Advice:
    """What stays fits, or nobody knows; the step does not."""
    sheet = result.sheet
    if sheet.get("resident_fits") is None and sheet.get("fits") is not True:
        missing = (*_missing(result, "resident_bytes", "gpu_total_bytes"), *_open_compilation(sheet))
        system = system_summary(sheet)
        summary = (
            f"The step does not fit. {f'{system} ' if system else ''}Whether activations or the optimizer's state "
            f"have to leave first hangs on {', '.join(missing)}."
        )
        return Advice("unknown", summary, (), sections, missing=missing)
    if sheet.get("fits") is True:
        return _unpredicted(result, sections)
    if raised_limit(sheet) is not None:
        return _under_a_raised_limit(result, sections)
    peak, resident, floor = (sheet.size(f"{name}_bytes") for name in ("peak", "resident", "floor"))
    capacity = sheet.size("gpu_total_bytes")
    parts = ["Offload and recompute activations"]
    if resident is not None and capacity is not None:
        parts.append(f"what is resident, {format_size_short(resident)}, fits {format_size_short(capacity)}")
    if peak is not None:
        parts.append(f"the peak of {format_size_short(peak)} is made by activations")
    if floor is not None:
        parts.append(f"and can be brought down to {format_size_short(floor)}")
    if is_state_elsewhere(sheet):
        parts.append(
            "all of that without the optimizer's state, which is off the device (plan: --optimizer none)"
        )
    head, *rest = parts
    summary = f"{head}: {', '.join(rest)}." if rest else f"{head}."
    return _about_activations(result, summary + _of_mode_graph(sheet), sections)


def _of_mode_graph(sheet: FactSheet) -> str:
    if sheet.size("peak_bytes") is None or sheet.get("mode") != "graph":
        return ""
    return " That is the peak of mode graph, which saves all; mode inductor tells what torch.compile needs."


def _under_a_raised_limit(result: FactsResult, sections: tuple[ArithmeticSection, ...]) -> Advice:
    """The floor is over what a plan takes of the device by itself, and within the device."""
    sheet, floor, limit = result.sheet, find_floor(result), raised_limit(result.sheet)
    capacity = sheet.size("gpu_total_bytes")
    assert floor is not None, "a raised limit is that of a floor"
    assert limit is not None
    assert capacity is not None
    usual, device = format_size_short(limit_bytes(capacity)), format_size_short(capacity)
    key = f"limits.device_peak={limit // MIB}MiB"
    summary = (
        f"Offload and recompute activations, under a raised limit: {floor.sentence}; a plan takes {usual} (94 %) of "
        f"the device's {device} by itself, so set {key} or more."
    )
    free = format_size_short(max(0, capacity - limit))
    cures = find_cures(result, floor, limit_bytes(capacity))
    warning = Diagnostic(
        "ADV913",
        "warning",
        f"the floor of {format_size_short(floor.num_bytes)} is over the {usual} that a plan takes of {device} by itself"
        f": {key} leaves {free} for what no plan counts (CUDA context, fragmentation)",
        hint="; ".join(cures.enough) or None,
    )
    found = _about_activations(result, summary + _of_mode_graph(sheet), sections, limit)
    return replace(found, cures=cures, warnings=(warning,))


def _about_activations(
    result: FactsResult, summary: str, sections: tuple[ArithmeticSection, ...], limit: int | None = None
) -> Advice:
    system = system_summary(result.sheet)
    summary += f" {system}" if system is not None else ""
    unsure = () if result.sheet.get("floor_fits") is not None else ("floor_bytes",)
    order = (_activations(result), *_state_steps(result))
    return Advice("activations", summary, order, sections, missing=unsure, device_peak_bytes=limit)


def _unpredicted(result: FactsResult, sections: tuple[ArithmeticSection, ...]) -> Advice:
    """The step was predicted to fit, and ran out of memory: say what to look for, and how far to plan below that."""
    sheet = result.sheet
    peak, capacity, limit = sheet.size("peak_bytes"), sheet.size("gpu_total_bytes"), planned_limit(sheet)
    numbers = ""
    if peak is not None and capacity is not None:
        numbers = f", {format_size_short(peak)} of {format_size_short(capacity)},"
    summary = (
        f"The step was predicted to fit{numbers} and ran out of memory: look for other processes on the device, "
        "fragmentation, or another shape than the one that was predicted."
    )
    is_eager = _open_compilation(sheet) != () or sheet.get("compiled") is False
    if is_eager:
        summary = f"{_COMPILE_FIRST} {summary}"
    if peak is None or limit is None:
        found = _about_activations(result, summary, sections)
    elif limit >= peak:
        summary += (
            f" The peak of {format_size_short(peak)} is also the floor: no policy on activations lowers it."
        )
        found = Advice("unknown", summary, (), sections)
    else:
        summary += (
            f" If it stays, offload and recompute activations under limits.device_peak={limit // MIB}MiB: the run took "
            f"{_more_than_predicted(sheet)}more than was predicted, and a plan leaves that room and the usual 6 %."
        )
        found = _about_activations(result, summary, sections, limit)
    missing = (*_open_compilation(sheet), *found.missing)
    return replace(found, missing=missing, compile_first=is_eager)


def _more_than_predicted(sheet: FactSheet) -> str:
    peak, capacity = sheet.size("peak_bytes"), sheet.size("gpu_total_bytes")
    return "" if peak is None or capacity is None else f"at least {format_size_short(capacity - peak)} "


def _open_compilation(sheet: FactSheet) -> tuple[str, ...]:
    """Return the fact that an overflow hangs on where nobody said whether the loop compiles, as most systems let it."""
    is_open = sheet.get("out_of_memory") is True and sheet.get("compiled") is None
    return ("compiled",) if is_open and sheet.get("framework") not in OWN_MECHANISM else ()


def _activations(result: FactsResult) -> Step:
    sheet = result.sheet
    by = carried_out_by(
        "activations", sheet, "this package: the policy fit, planned under limits.device_peak"
    )
    if sheet.get("floor_fits") is False or sheet.get("resident_fits") is False:
        why = "they come on top of the state; offloading and recomputing them is not enough by itself"
        return Step("activations", sheet.size("activation_bytes"), why, by)
    needed = None
    peak, limit = sheet.size("peak_bytes"), planned_limit(sheet)
    if peak is not None and limit is not None:
        needed = max(0, peak - limit)
    window = sheet.size("window_bytes")
    why = "they are what does not fit, and the state beside them does"
    if needed is not None and window is not None:
        relation = "within" if needed <= window else "more than"
        why += (
            f"; {format_size_short(needed)} have to go, {relation} the {format_size_short(window)} that the link "
            "carries before the peak while compute hides it"
        )
        if needed > window:
            why += ": recompute the rest"
    saved = sheet.size("activation_bytes")
    return Step("activations", saved, why, by)


def _state_steps(result: FactsResult) -> tuple[Step, ...]:
    """State in the order of size by use: what is large and rarely touched goes first."""
    sheet = result.sheet
    elsewhere = "another system (offload export); this package checks the section and refuses to apply it"

    def by_whom(moves: str) -> str:
        return carried_out_by(moves, sheet, elsewhere)

    steps = (
        Step(
            "optimizer_state",
            sheet.size("optimizer_state_bytes"),
            "touched once in a step, which frees most for what is moved: gradients down, updated parameters up",
            by_whom("optimizer_state"),
        ),
        Step(
            "gradients",
            sheet.size("gradient_bytes"),
            "born layer by layer in backward, they leave as they come",
            by_whom("gradients"),
        ),
        Step(
            "parameters",
            sheet.size("parameter_bytes"),
            "needed in forward and again in backward: most traffic for what is freed",
            by_whom("parameters"),
        ),
    )
    is_off = {kind for kind, share in offloaded_shares(sheet).items() if share >= 1}
    kinds = {"optimizer_state": "optimizer_state", "gradients": "gradient", "parameters": "parameter"}
    return tuple(step for step in steps if kinds[step.mechanism] not in is_off)


def _refused(result: FactsResult, sections: tuple[ArithmeticSection, ...]) -> Advice:
    sheet, floor = result.sheet, find_floor(result)
    capacity = sheet.size("gpu_total_bytes")
    cures = find_cures(result, floor, capacity)
    sentence = "no policy on activations makes this fit"
    if floor is not None:
        sentence += f": {floor.sentence}"
        sentence += "" if capacity is None else f"; the device has {format_size_short(capacity)}"
    forms = adam_forms(sheet)
    if forms is not None and forms.mixed_state.device_bytes > forms.plain_state.device_bytes:
        sentence += f"; with float32 master weights and moments the state alone is {forms.mixed}"
    hint = "; ".join(cures.enough) or "; ".join(f"lowers the floor: {text}" for text in cures.too_little)
    refusal = Diagnostic("ADV910", "error", sentence, hint=hint or None)
    activations, state = (_activations(result),), _state_steps(result)
    order = activations + state if floor is not None and floor.is_of_activations else state + activations
    summary = f"{sentence[0].upper()}{sentence[1:]}."
    return Advice("refused", summary, order, sections, cures=cures, refusal=refusal)


def _missing(result: FactsResult, *wanted: str) -> tuple[str, ...]:
    wanted = wanted or ("out_of_memory", "peak_bytes", "gpu_total_bytes")
    values = result.sheet.values
    return tuple(name for name in wanted if name not in values)
