"""What a target refuses of a run by its facts alone, without a policy.

The rules are those of an export, from the same file. What no fact states is open here, where an export writes or
assumes a default.
"""

from __future__ import annotations

from collections.abc import Mapping

from offload_runtime.errors import Diagnostic
from offload_runtime.export.export_findings import ExportFindings
from offload_runtime.export.fact_settings import settings_of_facts
from offload_runtime.export.run_facts import check_offloaded_state, check_run_facts
from offload_runtime.export.target_reading import load_target
from offload_runtime.export.target_rules import (
    check_constraints,
    check_ranges,
    emitted_settings,
    known_values,
)
from offload_runtime.policy import Policy
from offload_runtime.predicates import Scalar, evaluate

__all__ = ["chosen_settings", "fact_refusals"]


def fact_refusals(target: str, facts: Mapping[str, Scalar]) -> tuple[Diagnostic, ...]:
    """Return the refusals of ``target`` that ``facts`` are enough for; ValueError for an unknown target."""
    known, nothing = load_target(target), Policy("facts")
    findings = ExportFindings(known, nothing)
    check_run_facts(facts, findings)
    stated = settings_of_facts(known, facts) | emitted_settings(known, facts, findings)
    values = known_values(known, stated, facts, facts)
    check_offloaded_state(nothing, values, findings)
    check_ranges(known, stated, values, findings)
    check_constraints(known, stated, values, findings)
    return tuple(findings.refusals)


def chosen_settings(target: str, facts: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the settings without which nothing moves of what ``facts`` switch on, and that no fact states."""
    return tuple(
        mechanism.chosen_by
        for mechanism in load_target(target).mechanisms
        if mechanism.chosen_by is not None
        and mechanism.enabled_when is not None
        and evaluate(mechanism.enabled_when, facts) is True
    )
