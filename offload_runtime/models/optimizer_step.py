"""What the optimizer takes on the device, in memory and time, as torch.optim carries it out on CUDA.

`adamw` and `sgd` are the default forms (foreach kernels), `adamw-fused` is ``AdamW(fused=True)``. Gradients that
accumulate over the micro-batches of a step are there throughout; those of a micro-batch come on top of them, since a
compiled backward returns all of its gradients before any is added.

With float32 master weights the step updates these, its moments and temporaries are float32 too, and the 16-bit
parameters are written from them. Gradients are read in 16 bit: a float32 copy of them, as some trainers make, is not
counted.
"""

from __future__ import annotations

from offload_runtime.hardware import HardwareProfile
from offload_runtime.models.catalog import algorithm_of
from offload_runtime.models.plan_result import GRADIENTS, TEMPORARIES, Holding, ResidentBytes
from offload_runtime.models.under_test import StateBytes
from offload_runtime.training_state import NUM_MOMENTS

__all__ = [
    "accumulation_ms",
    "master_weight_bytes",
    "optimizer_state_bytes",
    "optimizer_step_bytes",
    "optimizer_step_holdings",
    "optimizer_step_ms",
    "resident_bytes",
    "rounding_ms",
    "step_temporary_bytes",
]

# What a step allocates beside the optimizer's state, in bytes of the parameters: AdamW's default form holds the square
# roots of all second moments (`_multi_tensor_adam`: `torch._foreach_sqrt`); the fused kernel keeps them in registers.
_TEMPORARIES_OF_STEP = {"none": 0, "sgd": 0, "adamw": 1, "adamw-fused": 0}

# How often a step on CUDA passes over the bytes of all parameters, reads and writes counted: torch's foreach kernels,
# which are the default there. SGD: p += g. AdamW (`_multi_tensor_adam`): p *= c 2, lerp(m, g) 3, v *= c 2,
# addcmul(v, g, g) 3, sqrt(v) 2, /= c 2, += eps 2, addcdiv(p, m, that) 4. Fused (`fused_adam_utils.cuh`): p, g, m, v
# are read once, and p, m, v written.
_PASSES_OF_STEP = {"none": 0, "sgd": 3, "adamw": 20, "adamw-fused": 7}
# Adding the gradients of a micro-batch to those that are there: g += new.
_PASSES_OF_ACCUMULATION = 3
# Reading a float32 master weight and writing the 16-bit parameter: 6 bytes for its 4.
_PASSES_OF_ROUNDING = 1.5


def optimizer_state_bytes(state: StateBytes, optimizer: str, *, master_weights: bool = False) -> int:
    """Return the device bytes that the optimizer keeps between steps: in the type of the parameters, as torch.optim.

    With ``master_weights`` in float32, the float32 copies of 16-bit parameters among them.
    """
    masters = master_weight_bytes(state, optimizer) if master_weights else 0
    return NUM_MOMENTS[algorithm_of(optimizer)] * (state.trainable + masters // 2) + masters


def master_weight_bytes(state: StateBytes, optimizer: str) -> int:
    """Return the device bytes of float32 copies of all trained 16-bit parameters; 0 for no optimizer."""
    return 0 if optimizer == "none" else 2 * state.trainable_half


def resident_bytes(
    state: StateBytes,
    optimizer: str,
    hardware: HardwareProfile | None,
    *,
    gradient_accumulation_steps: int = 1,
    master_weights: bool = False,
) -> ResidentBytes:
    """Count what training holds beside activations; without ``hardware`` no workspace is known."""
    return ResidentBytes(
        parameters=state.parameters,
        buffers=state.buffers,
        gradients=state.trainable,
        optimizer_state=optimizer_state_bytes(state, optimizer, master_weights=master_weights),
        batch=state.batch,
        workspace=0 if hardware is None else hardware.workspace_bytes,
        accumulated_gradients=state.trainable if gradient_accumulation_steps > 1 else 0,
        master_weights=master_weight_bytes(state, optimizer) if master_weights else 0,
    )


def optimizer_step_bytes(resident: ResidentBytes, optimizer: str) -> int:
    """Return the device bytes of the optimizer's step, when activations are gone; 0 for no optimizer."""
    if optimizer == "none":
        return 0
    return resident.throughout + sum(held.num_bytes for held in optimizer_step_holdings(resident, optimizer))


def optimizer_step_holdings(
    resident: ResidentBytes, optimizer: str, num_trained: int = 1
) -> tuple[Holding, ...]:
    """Return what the optimizer's step has on the device beside what stays throughout, of ``num_trained`` parameters.

    What was accumulated is all there is of gradients by then, and counted with what stays.
    """
    if optimizer == "none":
        return ()
    sizes = {
        GRADIENTS: 0 if resident.accumulated_gradients else resident.gradients,
        TEMPORARIES: step_temporary_bytes(resident, optimizer),
    }
    return tuple(Holding(what, num_trained, size) for what, size in sizes.items() if size)


def step_temporary_bytes(resident: ResidentBytes, optimizer: str) -> int:
    """Return the device bytes that the optimizer's step allocates and frees again."""
    return _TEMPORARIES_OF_STEP[optimizer] * resident.stepped


def optimizer_step_ms(optimizer: str, trainable_bytes: int, hardware: HardwareProfile) -> float:
    """Return how long the optimizer's step takes on the device: its traffic alone bounds it.

    ``trainable_bytes`` are those of all parameters that it updates; its state has their type.
    """
    return _PASSES_OF_STEP[optimizer] * trainable_bytes / _rate(hardware)


def rounding_ms(resident: ResidentBytes, hardware: HardwareProfile) -> float:
    """Return how long the step takes to write 16-bit parameters from their master weights."""
    return _PASSES_OF_ROUNDING * resident.master_weights / _rate(hardware)


def accumulation_ms(
    gradient_accumulation_steps: int, trainable_bytes: int, hardware: HardwareProfile
) -> float:
    """Return how long a step takes to add the gradients of its micro-batches up; the first are there as they are."""
    passes = _PASSES_OF_ACCUMULATION * (gradient_accumulation_steps - 1)
    return passes * trainable_bytes / _rate(hardware)


def _rate(hardware: HardwareProfile) -> float:
    rate = hardware.hbm_bytes_per_ms
    assert rate is not None, "kernels without a rate of memory are refused before"
    return rate
