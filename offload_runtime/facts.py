"""Every fact that a policy's ``requires`` and a card's conditions may name, in one table.

A fact has one meaning everywhere: what is measured here, what a person gives with ``--fact NAME=VALUE`` and what a
condition compares are the same thing in the same unit. What is not known has no value; it is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from offload_runtime.predicates import Scalar

__all__ = ["BYTES", "FACTS", "PROBED", "PROFILED", "SHARE", "SOURCES", "Fact", "FactSource", "FactType"]

FactType = Literal["text", "integer", "number", "boolean"]
FactSource = Literal["machine", "model", "configuration", "measurement"]
SOURCES: tuple[FactSource, ...] = get_args(FactSource)

BYTES = "bytes"
SHARE = "share"


@dataclass(frozen=True)
class Fact:
    """One fact: its name, what values it has, and where they come from.

    ``unit`` is None for counts, words and yes or no; a ``share`` lies between 0 and 1. ``choices`` are all words that
    a text can be; empty where any text can stand. ``source`` says who knows it: the machine (or a hardware profile),
    the model (traced, and planned on hardware), the configuration of the training run, or a measurement of it.
    """

    name: str
    type: FactType
    unit: str | None
    choices: tuple[str, ...]
    summary: str
    source: FactSource
    example: Scalar

    @property
    def has_order(self) -> bool:
        """Tell whether lt, le, gt and ge mean something for it."""
        return self.type in ("integer", "number")


# The table


def _rows(source: FactSource, *rows: tuple[str, FactType, str | None, str, Scalar]) -> tuple[Fact, ...]:
    return tuple(
        Fact(name, kind, unit, _CHOICES.get(name, ()), summary, source, example)
        for name, kind, unit, summary, example in rows
    )


_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "accelerator": ("cuda", "other", "none"),
        "framework": (
            "pytorch",
            "torchtitan",
            "megatron-bridge",
            "deepspeed",
            "fsdp2",
            "accelerate",
            "transformers",
        ),
        "optimizer": ("adamw", "adam", "sgd-momentum", "sgd", "other", "none"),
        "dtype": ("float32", "bfloat16", "float16"),
        "mode": ("graph", "inductor"),
        "offload_device": ("cpu", "nvme", "none"),
        "offload_mechanism": (
            "fsdp1",
            "fsdp2",
            "zero_offload",
            "nvme",
            "activation_hooks",
            "offload_runtime",
            "megatron_optimizer",
            "megatron_layers",
            "megatron_fine_grained",
            "none",
            "unknown",
        ),
    }
)

_MACHINE = _rows(
    "machine",
    ("accelerator", "text", None, "Kind of device that trains the model.", "cuda"),
    ("gpu_name", "text", None, "Name of the GPU, as the driver gives it.", "NVIDIA H100 PCIe"),
    ("num_gpus", "integer", None, "GPUs that this process can see.", 8),
    ("gpu_total_bytes", "integer", BYTES, "Memory of one GPU.", "80GB"),
    ("gpu_free_bytes", "integer", BYTES, "Memory of the GPU that is free now.", "72GiB"),
    (
        "host_total_bytes",
        "integer",
        BYTES,
        "Host memory that this process may use: cgroup or machine.",
        "1TiB",
    ),
    (
        "host_available_bytes",
        "integer",
        BYTES,
        "Host memory that can be taken now, within the cgroup.",
        "700GiB",
    ),
    ("host_cores", "integer", None, "CPU cores that this process may run on.", 64),
    ("num_numa_nodes", "integer", None, "NUMA nodes of the host.", 2),
    (
        "numa_local",
        "boolean",
        None,
        "The training process is bound to cores of the GPU's own NUMA node.",
        True,
    ),
    ("hardware", "text", None, "Name of the hardware profile.", "h100-pcie5"),
    ("link_d2h_gbps", "number", "GB/s", "Rate of the link from device to host, one direction.", 55.0),
    ("link_h2d_gbps", "number", "GB/s", "Rate of the link from host to device, one direction.", 55.0),
    ("link_is_coherent", "boolean", None, "The host link is NVLink-C2C, not PCIe.", False),
    ("pcie_generation", "integer", None, "PCIe generation at which the GPU's link runs now.", 5),
    ("pcie_link_width", "integer", None, "Lanes at which the GPU's link runs now.", 16),
    ("ranks_per_node", "integer", None, "Training processes on one host, as the launcher set them.", 8),
    ("torch_version", "text", None, "Version of torch.", "2.13.0"),
    ("nvme_read_gbps", "number", "GB/s", "Measured rate of reading the local SSD.", 6.0),
    ("nvme_rated_gbps", "number", "GB/s", "Rate of reading that the SSD's data sheet gives.", 7.0),
    ("nvme_rated_fraction", "number", SHARE, "Measured rate of the SSD over its rated one.", 0.85),
)

_MODEL = _rows(
    "model",
    ("num_parameters", "integer", None, "Parameters of the model, trained or not.", 8_030_261_248),
    (
        "trainable_fraction",
        "number",
        SHARE,
        "Share of the parameters that is trained; under LoRA small.",
        0.005,
    ),
    ("num_layers", "integer", None, "Repeated blocks of the model.", 32),
    ("is_moe", "boolean", None, "The model is a mixture of experts.", False),
    ("traceable", "boolean", None, "The model can be captured, forward and backward.", True),
    ("num_graphs", "integer", None, "Compiled graphs that a step consists of; 1 has no graph break.", 1),
    ("parameter_bytes", "integer", BYTES, "Parameters and buffers on one rank.", "15GiB"),
    ("gradient_bytes", "integer", BYTES, "Gradients on one rank.", "15GiB"),
    ("optimizer_state_bytes", "integer", BYTES, "Master weights and moments on one rank.", "90GiB"),
    (
        "resident_bytes",
        "integer",
        BYTES,
        "Parameters, gradients, optimizer state, batch and workspace on one rank.",
        "120GiB",
    ),
    ("activation_bytes", "integer", BYTES, "Saved for backward in a step without a policy.", "55GiB"),
    ("peak_bytes", "integer", BYTES, "Peak device memory of a step without a policy.", "71GiB"),
    (
        "floor_bytes",
        "integer",
        BYTES,
        "Least peak that offloading and recomputing activations reach.",
        "32GiB",
    ),
    ("window_bytes", "integer", BYTES, "What can leave before the peak while compute hides it.", "12GiB"),
    ("step_ms", "number", "ms", "Forward and backward without a policy.", 702.0),
    ("fits", "boolean", None, "The step fits the device without offloading anything.", False),
    ("resident_fits", "boolean", None, "What is resident, without activations, fits the device.", True),
    (
        "floor_fits",
        "boolean",
        None,
        "Some policy on activations makes it fit: the floor is within the device, if not within the 94 % of a plan.",
        True,
    ),
)

_CONFIGURATION = _rows(
    "configuration",
    ("framework", "text", None, "What runs the training loop.", "pytorch"),
    ("mode", "text", None, "Front end of the offload backend.", "inductor"),
    ("compiled", "boolean", None, "The loop runs the model through torch.compile, not eagerly.", True),
    ("optimizer", "text", None, "Optimizer that steps.", "adamw"),
    ("dtype", "text", None, "Type of the parameters.", "bfloat16"),
    ("master_weights", "boolean", None, "16-bit parameters have float32 master weights and moments.", True),
    ("micro_batch", "integer", None, "Sequences or images in one forward of one rank.", 2),
    ("sequence_length", "integer", None, "Tokens in one sequence.", 8192),
    ("gradient_accumulation", "integer", None, "Micro-batches for each step of the optimizer.", 1),
    ("world_size", "integer", None, "Training processes in all.", 1),
    ("data_parallel", "integer", None, "Degree of data parallelism.", 1),
    ("pipeline_parallel", "integer", None, "Degree of pipeline parallelism; 1 is none.", 1),
    ("tensor_parallel", "integer", None, "Degree of tensor parallelism; 1 is none.", 1),
    ("expert_parallel", "integer", None, "Degree of expert parallelism; 1 is none.", 1),
    ("cuda_graphs", "boolean", None, "Steps are captured as CUDA graphs.", False),
    ("activation_recompute", "boolean", None, "Activations are recomputed (checkpointing) already.", False),
    ("activation_offload", "boolean", None, "Activations are offloaded already, by whatever means.", False),
    (
        "layer_activation_offload",
        "boolean",
        None,
        "Megatron's cpu_offloading: whole layers' activations.",
        False,
    ),
    ("fine_grained_offload", "boolean", None, "Megatron's fine_grained_activation_offloading.", False),
    ("num_offloaded_layers", "integer", None, "Megatron's cpu_offloading_num_layers.", 16),
    ("optimizer_offload", "boolean", None, "The optimizer's state is kept on the host.", False),
    ("gradient_offload", "boolean", None, "Gradients are kept on the host.", False),
    ("parameter_offload", "boolean", None, "Parameters are kept on the host.", False),
    ("offload_device", "text", None, "Where offloaded state is kept.", "cpu"),
    ("offload_mechanism", "text", None, "What offloads now.", "zero_offload"),
    ("offload_overlap", "boolean", None, "Copies of the optimizer's state overlap its step.", False),
    ("distributed_optimizer", "boolean", None, "Megatron's use_distributed_optimizer.", True),
    ("precision_aware_optimizer", "boolean", None, "Megatron's use_precision_aware_optimizer.", True),
    ("zero_stage", "integer", None, "DeepSpeed's ZeRO stage, 0 to 3.", 3),
    (
        "asynchronous_io",
        "boolean",
        None,
        "DeepSpeed's asynchronous I/O extension is built and configured.",
        True,
    ),
    ("offload_fraction", "number", SHARE, "Share of the optimizer's state that is offloaded.", 0.5),
    (
        "max_step_overhead",
        "number",
        SHARE,
        "How much longer forward and backward may take than without offloading (limits.step_overhead).",
        0.05,
    ),
    (
        "budget_bytes",
        "integer",
        BYTES,
        "Activation bytes that the policy may offload (limits.budget).",
        "12GiB",
    ),
    (
        "budget_in_window",
        "boolean",
        None,
        "The policy's budget is at most what can leave while compute hides it (budget_bytes, window_bytes).",
        True,
    ),
    ("defer", "integer", None, "Layers by which release lags (schedule.defer).", 8),
    ("prefetch", "integer", None, "Layers ahead of use at which reloads start (schedule.prefetch).", 2),
)

_MEASUREMENT = _rows(
    "measurement",
    ("offload_enabled", "boolean", None, "The run that was measured offloads something.", True),
    ("out_of_memory", "boolean", None, "The run ended because device memory did not suffice.", True),
    ("paired_baseline", "boolean", None, "The same run was measured without offloading too.", True),
    ("warm_steps_only", "boolean", None, "The first ten to twenty steps were left out.", True),
    ("slowdown", "number", "times", "Median step time over that without offloading.", 3.0),
    (
        "offload_step_ms",
        "number",
        "ms",
        "Median warm step with offloading, the optimizer's included.",
        2100.0,
    ),
    (
        "copy_fraction",
        "number",
        SHARE,
        "Share of a warm step in which copies over the link run, in either direction; what overlaps counts once.",
        0.4,
    ),
    (
        "exposed_copy_fraction",
        "number",
        SHARE,
        "Share of a warm step in which copies run and compute waits.",
        0.3,
    ),
    ("pageable_fraction", "number", SHARE, "Share of the copied bytes from or to pageable memory.", 0.0),
    ("hidden_fraction", "number", SHARE, "Share of the copy time that compute hides.", 0.99),
    ("stall_ms", "number", "ms", "Time of a step in which compute waits for copies.", 7.0),
    ("moved_bytes", "integer", BYTES, "Bytes that a step copied to the host.", "12GiB"),
    ("planned_bytes", "integer", BYTES, "Bytes that the plan copies to the host in a step.", "12GiB"),
    ("gpu_utilization", "number", SHARE, "Share of a warm step in which the GPU computes.", 0.4),
    ("memory_headroom_fraction", "number", SHARE, "Share of device memory free at the peak.", 0.3),
    ("host_cpu_fraction", "number", SHARE, "Share of the host's cores that is busy while training.", 0.95),
    ("cpu_step_fraction", "number", SHARE, "Share of a step that the optimizer's CPU step takes.", 0.5),
    (
        "cpu_step_cores_fraction",
        "number",
        SHARE,
        "Share of the host's cores that the optimizer's CPU step keeps busy, at most.",
        0.2,
    ),
    (
        "loss_difference",
        "number",
        "absolute",
        "Largest difference of the loss from the run without offloading.",
        0.0,
    ),
)

FACTS: Mapping[str, Fact] = MappingProxyType(
    {fact.name: fact for fact in (*_MACHINE, *_MODEL, *_CONFIGURATION, *_MEASUREMENT)}
)

PROFILED = frozenset(
    ("accelerator", "gpu_total_bytes", "hardware", "link_d2h_gbps", "link_h2d_gbps", "torch_version")
)
"""Facts of a machine that every hardware profile gives."""

PROBED = PROFILED | {
    "gpu_name",
    "num_gpus",
    "gpu_free_bytes",
    "host_total_bytes",
    "host_available_bytes",
    "host_cores",
    "num_numa_nodes",
    "pcie_generation",
    "pcie_link_width",
}
"""Facts of a machine that a command which runs there finds out by itself."""
