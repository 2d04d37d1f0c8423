"""What in a comparison fails the command: each finding says what was promised and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

from offload_runtime.errors import Diagnostic
from offload_runtime.judgement import judge_moved
from offload_runtime.models.result import ApplyResult
from offload_runtime.policy import Policy
from offload_runtime.units import format_size


def findings(result: ApplyResult, policy: Policy) -> tuple[Diagnostic, ...]:
    """Judge the numbers and the bytes of ``result`` against what ``policy`` promises."""
    return (
        *_numbers(result),
        *_bytes(result),
        *judge_moved(policy, result.moved_bytes),
        *_idle(result, policy),
    )


def _numbers(result: ApplyResult) -> Iterator[Diagnostic]:
    if result.bitwise_identical is None:
        yield Diagnostic(
            "MOD742",
            "warning",
            "the numbers could not be compared: the run whose offloads are saves does not fit the device",
            hint="give fewer --layers, a smaller --batch or --seq to compare them there",
        )
    elif not result.bitwise_identical:
        yield Diagnostic(
            "MOD751",
            "error",
            f"the policy changed the numbers, first in the {result.first_difference}",
            hint="offloading must never do that; run again, and report it with the policy if it stays",
        )
    elif (step := _first_step_not_finite(result)) is not None:
        yield Diagnostic(
            "MOD743",
            "warning",
            f"the loss is not finite from step {step} on, with every offload a save: equal numbers prove little there",
            hint="choose a model, data and a --dtype whose loss stays finite, or fewer --steps",
        )


def _first_step_not_finite(result: ApplyResult) -> int | None:
    losses = enumerate(result.losses.reference, start=1)
    return next((step for step, loss in losses if not math.isfinite(loss)), None)


def _bytes(result: ApplyResult) -> Iterator[Diagnostic]:
    if result.moved_bytes != result.planned_bytes:
        yield Diagnostic(
            "MOD752",
            "error",
            f"{format_size(result.planned_bytes)} were planned and {format_size(result.moved_bytes)} moved",
            hint="some compiled graph did not run, or ran more than once, in the last step",
        )


def _idle(result: ApplyResult, policy: Policy) -> Iterator[Diagnostic]:
    """Find a policy that asks for offloading and moved nothing, where no limit of its own forbids it."""
    activations = policy.activations
    if activations is None or result.moved_bytes or result.planned_bytes or policy.limits.budget == 0:
        return
    actions = {activations.default, activations.layer_outputs, *(rule.action for rule in activations.rules)}
    if "offload" in actions and policy.schedule.select == "largest_first":
        yield Diagnostic.at(
            activations.span,
            "MOD754",
            f"policy {result.policy_name} offloads, and nothing was offloaded",
            path="activations",
            hint=f"see what became of each tensor with `offload explain` and --model {result.model}",
        )
