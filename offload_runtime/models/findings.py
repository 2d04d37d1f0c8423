"""What in a comparison fails the command: each finding says what was promised and what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

from offload_runtime.errors import Diagnostic
from offload_runtime.judgement import judge_moved
from offload_runtime.models.result import ApplyResult
from offload_runtime.policy import Policy
from offload_runtime.units import format_size, format_size_short


def findings(result: ApplyResult, policy: Policy) -> tuple[Diagnostic, ...]:
    """Judge the numbers and the bytes of ``result`` against what ``policy`` promises."""
    return (
        *_numbers(result),
        *_bytes(result),
        *judge_moved(policy, result.moved_bytes),
        *_limits(result, policy),
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


def _limits(result: ApplyResult, policy: Policy) -> Iterator[Diagnostic]:
    """Find a limit that the run with the policy was over; without an accelerator what is predicted is judged.

    A limit on time is of forward and backward, and whole steps are measured: more than the limit's share of a
    whole step is more than its share of a part, so that what is found was missed for certain.
    """
    if result.engine == "simulated":
        yield from _predicted_limits(result, policy)
        return
    limits, peak_bytes = policy.limits, result.policy.peak_device_bytes
    if isinstance(limits.device_peak, int) and peak_bytes is not None and peak_bytes > limits.device_peak:
        path = "limits.device_peak"
        limit, peak = format_size_short(limits.device_peak), format_size_short(peak_bytes)
        message = f"{path} is {limit}, and a peak of {peak} was measured"
        hint = "set it lower by what is over; offload plan says what it counts, and what of it is the optimizer's"
        yield Diagnostic.at(policy.span_of(path), "MOD755", message, path=path, hint=hint)
    if limits.step_overhead is None:
        return
    path = "limits.step_overhead"
    base_ms, step_ms = result.baseline.step_ms, result.policy.step_ms
    if base_ms is None or step_ms is None:
        message = f"{path} is not judged: the baseline does not fit, and no step of it is timed"
        hint = "compare at fewer layers, or with what does fit: offload bench --baseline eager-checkpoint"
        yield Diagnostic("MOD744", "warning", message, hint=hint)
    elif step_ms > base_ms * (1 + limits.step_overhead):
        allowed, took = f"{100 * limits.step_overhead:.1f} %", f"{100 * (step_ms / base_ms - 1):.1f} %"
        message = f"{path} is {allowed}, and the step took {took} longer than the baseline's"
        hint = "measure in turns with offload bench, which tells what is noise; or allow more memory or more time"
        yield Diagnostic.at(policy.span_of(path), "MOD756", message, path=path, hint=hint)


def _predicted_limits(result: ApplyResult, policy: Policy) -> Iterator[Diagnostic]:
    """Find a limit that the step is predicted to miss, or that nothing judges: the engine's peak is no device's."""
    limits, without, planned = policy.limits, result.predicted.baseline, result.predicted.policy
    if isinstance(limits.device_peak, int):
        path, peak_bytes = "limits.device_peak", planned.peak_device_bytes
        if peak_bytes is None:
            yield _not_judged(path)
        elif peak_bytes > limits.device_peak:
            message = (
                f"a peak of {format_size_short(peak_bytes)} is predicted for {result.predicted.hardware}, more than "
                f"{path} {format_size_short(limits.device_peak)}"
            )
            hint = "raise the limit by that much, or let more tensors be recomputed or offloaded"
            yield Diagnostic.at(policy.span_of(path), "PLN416", message, path=path, hint=hint)
    if limits.step_overhead is None:
        return
    path = "limits.step_overhead"
    if planned.step_ms is None or not without.step_ms:
        yield _not_judged(path)
    elif planned.step_ms > without.step_ms * (1 + limits.step_overhead):
        longer = planned.step_ms / without.step_ms - 1
        message = (
            f"the step is predicted to take {100 * longer:.1f} % longer than the baseline's, more than {path} "
            f"{100 * limits.step_overhead:.1f} %"
        )
        hint = "measure it on an accelerator; or allow more memory or more time"
        yield Diagnostic.at(policy.span_of(path), "PLN418", message, path=path, severity="warning", hint=hint)


def _not_judged(path: str) -> Diagnostic:
    message = (
        f"{path} is not judged: without an accelerator nothing is measured, and the step is not predicted"
    )
    hint = "run it on an accelerator, or give --hardware for a prediction"
    return Diagnostic("MOD744", "warning", message, hint=hint)


def _idle(result: ApplyResult, policy: Policy) -> Iterator[Diagnostic]:
    """Find a policy that asks for offloading and moved nothing, where no limit of its own forbids it.

    That is as it should be where memory suffices, and no failure; a policy that has to move something says so in
    ``expect.moved``, which is judged by itself.
    """
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
            severity="warning",
            hint="this is as it should be where memory suffices; expect.moved makes it an error, and `offload explain` "
            f"with --model {result.model} says what became of each tensor",
        )
