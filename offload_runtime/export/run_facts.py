"""Facts about the run that an export is for: combinations that no run can have, and facts that are checked only."""

from __future__ import annotations

import math
from collections.abc import Mapping

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.fact_settings import open_settings
from offload_runtime.export.target import Emission, ExportedSetting
from offload_runtime.facts import FACTS
from offload_runtime.policy import Policy
from offload_runtime.predicates import Scalar, comparisons
from offload_runtime.targets import EXPORT_TARGETS

__all__ = ["check_offloaded_state", "check_run_facts", "note_checked_facts"]

_DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "world_size")
# Products that the number of processes is a multiple of: experts are spread over ranks of tensor and data parallelism.
_PRODUCTS = (
    ("tensor_parallel", "pipeline_parallel", "data_parallel"),
    ("expert_parallel", "pipeline_parallel"),
)
# What this module compares itself.
_COMPARED = frozenset({*_DEGREES, "framework", "optimizer"})
_WITHOUT_STATE = ("sgd", "none")
# torchtitan trains with FSDP2 itself.
_ALSO = {("torchtitan", "fsdp2")}


def check_run_facts(facts: Mapping[str, Scalar], findings: ExportFindings) -> None:
    """Refuse facts that contradict each other or the target."""
    target, framework = findings.target.name, facts.get("framework")
    if framework in EXPORT_TARGETS and framework != target and (framework, target) not in _ALSO:
        message = f"--fact framework={framework} says that another system runs the training"
        findings.refuse(None, "EXP908", message, f"--to {framework}, or leave the fact out")
    degrees = {name: int(facts[name]) for name in _DEGREES if isinstance(facts.get(name), int)}
    for name, degree in degrees.items():
        if degree < 1:
            findings.refuse(None, "EXP908", f"{name} is 1 or more, not {degree}", f"--fact {name}=1 is none")
    _check_world_size({name: degree for name, degree in degrees.items() if degree > 0}, findings)


def check_offloaded_state(policy: Policy, values: Mapping[str, Scalar], findings: ExportFindings) -> None:
    """Refuse to offload what the optimizer does not keep; ``values`` are facts, those that settings state too."""
    state, optimizer = policy.optimizer_state, values.get("optimizer")
    is_offloaded = state is not None and state.offload_fraction > 0
    if (is_offloaded or values.get("optimizer_offload") is True) and optimizer in _WITHOUT_STATE:
        span, path = findings.span_of(("optimizer_state.offload_fraction", "optimizer_state"))
        message = f"the optimizer {optimizer} keeps no state: there is nothing to offload"
        hint = "offload no optimizer state, or correct --fact optimizer: with momentum SGD is sgd-momentum"
        findings.refuse(span, "EXP908", message, hint, path)


def _check_world_size(degrees: Mapping[str, int], findings: ExportFindings) -> None:
    world = degrees.get("world_size")
    products = [{name: degrees[name] for name in names if name in degrees} for names in _PRODUCTS]
    # Where nothing tells two products apart they are one.
    for known in (known for index, known in enumerate(products) if known not in products[:index]):
        product = math.prod(known.values())
        if world is not None and world % product:
            spelled = " x ".join(f"{name} {degree}" for name, degree in known.items())
            message = f"world_size {world} is no multiple of {product} ({spelled})"
            findings.refuse(None, "EXP908", message, "correct the degrees, or world_size")


def note_checked_facts(
    facts: Mapping[str, Scalar], emitted: Mapping[str, ExportedSetting], findings: ExportFindings
) -> None:
    """Note which facts about the configuration are not written as settings, compared or not, and how to set them."""
    target = findings.target
    written = {setting.fact for setting in target.settings if setting.key in emitted}
    written |= {fact for emission in target.emits if emission.key in emitted for fact in _facts_of(emission)}
    undecided = open_settings(target, facts, emitted)
    for setting in undecided:
        values = ", ".join(choice for choice in setting.choices if choice != setting.stands_for_no)
        message = f"not written as a setting: {setting.fact}, which leaves the value open"
        one_of = f", one of {values}" if values else ""
        findings.note(None, "EXP914", message, hint=f"--setting {setting.key}=VALUE{one_of}")
    written |= {setting.fact for setting in undecided}
    rest = [name for name in facts if FACTS[name].source == "configuration" and name not in written]
    compared = _COMPARED | _named_in_conditions(findings)
    for names, fate in (
        ([name for name in rest if name in compared - {"framework"}], "checked, and not"),
        ([name for name in rest if name not in compared], "neither checked nor"),
    ):
        if names:
            message = f"{fate} written as a setting: {', '.join(names)}"
            hint = (
                "set it where the run is configured or launched: an export for this target does not write it"
            )
            findings.note(None, "EXP914", message, hint=hint)


def _facts_of(emission: Emission) -> set[str]:
    """Return what an emission takes its value from, and what decides that it is written."""
    named = set() if emission.when is None else {each.fact for each in comparisons(emission.when)}
    return named if emission.taken_from is None else {*named, emission.taken_from}


def _named_in_conditions(findings: ExportFindings) -> set[str]:
    """Return the facts that conditions of the target, or what the policy requires, compare."""
    target, requires = findings.target, findings.policy.requires
    conditions = [
        *(
            predicate
            for constraint in target.constraints
            for predicate in (constraint.when, constraint.holds)
        ),
        *(when for when, _ in target.notes),
        *((requires,) if requires is not None else ()),
    ]
    return {comparison.fact for predicate in conditions for comparison in comparisons(predicate)}
