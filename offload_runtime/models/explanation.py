"""What a policy decides for the saved tensors of a model: one training step under it, and its report."""

from __future__ import annotations

from collections.abc import Callable

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import Diagnostic, RunError
from offload_runtime.models.resolve import ModelRequest
from offload_runtime.models.training import TrainingPlan, train
from offload_runtime.record import Report


def explain_policy(
    request: ModelRequest,
    policy: CompiledPolicy,
    *,
    mode: str,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Compile the model of `request` under `policy`, run one step, and return what was decided.

    The verdicts are those of a real run, not of a second way to decide. Raises as `compare_training` does,
    and RunError where the one step runs out of device memory.
    """
    notify = progress or (lambda phase, done, total: None)
    notify("policy", 0, 1)
    training = train(
        request,
        TrainingPlan("policy", policy, mode, steps=1),
        lambda done, total: notify("policy", done, total),
    )
    if training is None:
        message = f"{request.spec} runs out of device memory with policy {policy.name}"
        hint = "offload or recompute more, or give fewer --layers, a smaller --batch or --seq"
        raise RunError(Diagnostic("MOD734", "error", message, hint=hint))
    assert training.report is not None, "a policy always runs through the offload back end"
    return training.report
