"""Facts about the run that an export is for: combinations that no run can have, and facts that are checked only."""

from __future__ import annotations

import math
from collections.abc import Mapping

from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.target import ExportedSetting
from offload_runtime.facts import FACTS
from offload_runtime.policy import Policy
from offload_runtime.predicates import Scalar
from offload_runtime.targets import EXPORT_TARGETS

__all__ = ["check_run_facts", "note_checked_facts"]

_DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "world_size")
# Products that the number of processes is a multiple of: experts are spread over ranks of tensor and data parallelism.
_PRODUCTS = (
    ("tensor_parallel", "pipeline_parallel", "data_parallel"),
    ("expert_parallel", "pipeline_parallel"),
)
_WITHOUT_STATE = ("sgd", "none")
# torchtitan trains with FSDP2 itself.
_ALSO = {("torchtitan", "fsdp2")}


def check_run_facts(policy: Policy, facts: Mapping[str, Scalar], findings: ExportFindings) -> None:
    """Refuse facts that contradict each other, the target or what the policy offloads."""
    target, framework = findings.target.name, facts.get("framework")
    if framework in EXPORT_TARGETS and framework != target and (framework, target) not in _ALSO:
        message = f"--fact framework={framework} says that another system runs the training"
        findings.refuse(None, "EXP908", message, f"--to {framework}, or leave the fact out")
    degrees = {name: int(facts[name]) for name in _DEGREES if isinstance(facts.get(name), int)}
    for name, degree in degrees.items():
        if degree < 1:
            findings.refuse(None, "EXP908", f"{name} is 1 or more, not {degree}", f"--fact {name}=1 is none")
    _check_world_size({name: degree for name, degree in degrees.items() if degree > 0}, findings)
    state, optimizer = policy.optimizer_state, facts.get("optimizer")
    if state is not None and state.offload_fraction > 0 and optimizer in _WITHOUT_STATE:
        span, path = findings.span_of(("optimizer_state.offload_fraction", "optimizer_state"))
        message = f"the optimizer {optimizer} keeps no state: there is nothing to offload"
        findings.refuse(span, "EXP908", message, "drop optimizer_state, or correct --fact optimizer", path)


def _check_world_size(degrees: Mapping[str, int], findings: ExportFindings) -> None:
    world = degrees.get("world_size")
    for names in _PRODUCTS:
        known = {name: degrees[name] for name in names if name in degrees}
        product = math.prod(known.values())
        if world is not None and world % product:
            spelled = " x ".join(f"{name} {degree}" for name, degree in known.items())
            message = f"world_size {world} is no multiple of {product} ({spelled})"
            findings.refuse(None, "EXP908", message, "correct the degrees, or world_size")


def note_checked_facts(
    facts: Mapping[str, Scalar], emitted: Mapping[str, ExportedSetting], findings: ExportFindings
) -> None:
    """Note which facts about the configuration were compared and are not written as settings."""
    written = {
        emission.taken_from
        for emission in findings.target.emits
        if emission.key in emitted and emission.taken_from in facts
    }
    stated = {
        setting.fact
        for setting in findings.target.settings
        if setting.fact is not None and setting.key in emitted
    }
    checked = [
        name
        for name in facts
        if FACTS[name].source == "configuration" and name not in written | stated | {"framework"}
    ]
    if checked:
        message = f"checked, and not written as a setting: {', '.join(checked)}"
        hint = f"set it where the run is configured or launched: {findings.target.title} has no setting here for it"
        findings.note(None, "EXP914", message, hint=hint)
