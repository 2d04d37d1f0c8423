"""What to change in a run that offloads, by mechanism: what moves less, what lowers the price, what switches it off.

Keys of other systems are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from collections.abc import Mapping

from offload_runtime.diagnosis_rows import Fix
from offload_runtime.predicates import AllOf, AnyOf, Comparison

__all__ = [
    "BELOW_STAGE_3",
    "LARGE",
    "LESS",
    "LOWER_FRACTION",
    "LOWER_RATIO",
    "NO_OPTIMIZER",
    "NO_PARAMETERS",
    "OVERLAP",
    "PAGEABLE",
    "PINNED_ALWAYS",
    "PINS",
    "PRICES",
    "PRICE_UNLESS",
    "TAKEN_OFF",
    "TO_STAGE_3",
]

LARGE = 0.2
"""Share of a step from which on something is a reason why it is slow."""
PAGEABLE = 0.05
"""Share of the copied bytes from which on pageable ones matter: below are `loss.item()` and batches, no offload."""
# From this share of the optimizer's state on, overlapping its copies was seen to help: skill offload-optimizer-state.
_OVERLAP_FROM = 0.75
_NUM_LAYERS_KNOWN = Comparison("num_offloaded_layers", "ge", 0)

BELOW_STAGE_3 = Comparison("zero_stage", "lt", 3)
"""DeepSpeed moves no parameters, and all of the optimizer's state or none of it."""
NO_PARAMETERS = Comparison("parameter_offload", "is", False)
NO_OPTIMIZER = Comparison("optimizer_offload", "is", False)
LOWER_RATIO = Fix(
    "zero_optimization.offload_optimizer.ratio below 1 leaves a share on the GPU (ZeRO-3 only)",
    unless=AnyOf((NO_OPTIMIZER, BELOW_STAGE_3)),
)
_PARAMETERS_BACK = (
    Fix(
        "zero_optimization.offload_param.device: none, where memory is free",
        when=Comparison("parameter_offload", "is", True),
        unless=BELOW_STAGE_3,
    ),
    Fix(
        "zero_optimization.offload_param.device: none, if parameters are offloaded (parameter_offload) and memory is "
        "free",
        unless=AnyOf((Comparison("parameter_offload", "in", (True, False)), BELOW_STAGE_3)),
    ),
)
LOWER_FRACTION = Fix("a lower optimizer.optimizer_offload_fraction", unless=NO_OPTIMIZER)
OVERLAP = Fix(
    f"optimizer.overlap_cpu_optimizer_d2h_h2d: true, from a fraction of {_OVERLAP_FROM} on",
    unless=AnyOf(
        (
            NO_OPTIMIZER,
            Comparison("offload_overlap", "is", True),
            Comparison("offload_fraction", "lt", _OVERLAP_FROM),
        )
    ),
)
TO_STAGE_3 = Fix(
    "ZeRO-3, under which a share of the state can stay on the GPU (a ratio below 1)",
    when=BELOW_STAGE_3,
    unless=NO_OPTIMIZER,
)
_TUNE = "offload skills show tune-activation-offload"
_BUDGET = (
    Fix(
        "limits.budget down to what can leave while compute hides it, {window_bytes}, from {budget_bytes}; recompute "
        f"the rest: {_TUNE}",
        when=Comparison("budget_in_window", "is", False),
    ),
    Fix(
        "schedule.defer: 1, as the layers of a mixture of experts are short",
        when=Comparison("is_moe", "is", True),
        unless=Comparison("defer", "is", 1),
    ),
    Fix(
        "schedule.defer higher where stalls are waits in forward, schedule.prefetch where they are reloads in "
        f"backward; not the budget, {{budget_bytes}} is within the {{window_bytes}} that compute hides: {_TUNE}",
        when=Comparison("budget_in_window", "is", True),
    ),
    Fix(
        "a lower limits.budget, where it is above what plan prints as can leave for free (budget_bytes, window_bytes), "
        f"the rest recomputed; below that defer and prefetch: {_TUNE}",
        unless=Comparison("budget_in_window", "in", (True, False)),
    ),
)
LESS: Mapping[str, tuple[str | Fix, ...]] = {
    "offload_runtime": _BUDGET,
    "zero_offload": (*_PARAMETERS_BACK, LOWER_RATIO),
    "nvme": _PARAMETERS_BACK,
    "fsdp1": ("CPUOffload off, parameters sharded on the device, where they fit",),
    "fsdp2": ("offload_policy OffloadPolicy for as many modules as fit, CPUOffloadPolicy for the rest",),
    "megatron_optimizer": (OVERLAP, LOWER_FRACTION),
    "megatron_layers": (
        Fix("model.cpu_offloading_num_layers lower than {num_offloaded_layers}", when=_NUM_LAYERS_KNOWN),
        Fix("a lower model.cpu_offloading_num_layers", unless=_NUM_LAYERS_KNOWN),
    ),
    "megatron_fine_grained": (
        "fewer model.offload_modules, the ones that compute least for what they move first",
        "a higher model.min_offloaded_tensor_size, so that small tensors stay",
    ),
}
"""What makes each mechanism move less."""

_ZERO_DEFAULT = "(the default of DeepSpeed 0.19.8; in 0.18.4 it is false)"
_PIN_ZERO = (
    Fix(f"zero_optimization.offload_optimizer.pin_memory: true {_ZERO_DEFAULT}", unless=NO_OPTIMIZER),
    Fix(
        f"zero_optimization.offload_param.pin_memory: true {_ZERO_DEFAULT}",
        unless=AnyOf((NO_PARAMETERS, BELOW_STAGE_3)),
    ),
)


def _other_copies(pins: str) -> str:
    return (
        f"look for what else copies, the data loader, checkpoints or .cpu() in the loop: {pins} and has no setting for "
        "that"
    )


PINS: Mapping[str, tuple[str | Fix, ...]] = {
    "activation_hooks": ("torch.autograd.graph.save_on_cpu(pin_memory=True); its default is False",),
    "zero_offload": _PIN_ZERO,
    "nvme": _PIN_ZERO,
    "fsdp1": (_other_copies("FSDP1 pins the shards and gradients that it offloads"),),
    "fsdp2": (
        "CPUOffloadPolicy(pin_memory=True), which is the default: a change only where False was given",
    ),
    "megatron_optimizer": (
        Fix(
            "optimizer.pin_cpu_grads: true, optimizer.pin_cpu_params: true (the default of both: a change only where "
            "false was given)",
            unless=NO_OPTIMIZER,
        ),
    ),
    "megatron_layers": (_other_copies("Transformer Engine pins the host buffers of model.cpu_offloading"),),
    "megatron_fine_grained": (_other_copies("Megatron-Core pins the host buffers of these modules"),),
    "offload_runtime": (_other_copies("this package pins its host buffers"),),
}
"""How each mechanism pins host memory, and what its default is."""
PINNED_ALWAYS = ("fsdp1", "megatron_layers", "megatron_fine_grained", "offload_runtime")
"""Mechanisms that pin by themselves, so that pageable copies are none of theirs."""

PRICES: Mapping[str, tuple[Fix, ...]] = {
    "zero_offload": (
        Fix(
            "lower the share if that is all it is (offload_optimizer.ratio, ZeRO-3 only)",
            unless=BELOW_STAGE_3,
        ),
        Fix("no share of it can be set below ZeRO-3", when=BELOW_STAGE_3),
    ),
    "nvme": (Fix("host memory costs less than a disk"),),
    "fsdp1": (Fix("no share of it can be set there: it is less where fewer modules are offloaded"),),
    "fsdp2": (Fix("no share of it can be set there: it is less where CPUOffloadPolicy is on fewer modules"),),
    "megatron_optimizer": (Fix("lower optimizer.optimizer_offload_fraction if that is all it is"),),
}
"""How the price of the optimizer's state on the host is lowered, by mechanism."""

PRICE_UNLESS = AllOf(
    (
        Comparison("cpu_step_fraction", "lt", LARGE),
        AnyOf(
            (
                Comparison("copy_fraction", "lt", LARGE),
                Comparison("exposed_copy_fraction", "lt", LARGE),
                Comparison(
                    "parameter_offload", "is", True
                ),  # in every forward and backward: most of the copies
            )
        ),
    )
)
"""Neither its step on the CPU nor its copies take much of a step, so that the optimizer's state is not what is slow."""

TAKEN_OFF: Mapping[str, tuple[str | Fix, ...]] = {
    "offload_runtime": ("torch.compile(model) without the policy",),
    "activation_hooks": ("the model without the hooks",),
    "fsdp1": ("cpu_offload=None in place of CPUOffload",),
    "fsdp2": ("offload_policy=OffloadPolicy() in place of CPUOffloadPolicy()",),
    "zero_offload": ("zero_optimization without offload_optimizer and offload_param",),
    "nvme": ("zero_optimization without offload_optimizer and offload_param",),
    "megatron_optimizer": ("optimizer.optimizer_cpu_offload: false",),
    "megatron_layers": ("model.cpu_offloading: false",),
    "megatron_fine_grained": ("model.fine_grained_activation_offloading: false",),
}
"""How each mechanism is switched off."""
