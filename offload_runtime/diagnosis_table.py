"""The diagnosis of a slow run that offloads, as data: checks in order, what each can find, and the fix by mechanism.

Keys of other systems are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from offload_runtime.diagnosis_fixes import (
    BELOW_STAGE_3,
    LARGE,
    LESS,
    LOWER_FRACTION,
    LOWER_RATIO,
    NO_OPTIMIZER,
    NO_PARAMETERS,
    OVERLAP,
    PAGEABLE,
    PINNED_ALWAYS,
    PINS,
    TAKEN_OFF,
    TO_STAGE_3,
)
from offload_runtime.diagnosis_rows import Check, Finding, Fix
from offload_runtime.predicates import AllOf, AnyOf, Comparison, Not, Predicate

__all__ = [
    "CHECKS",
    "FINDINGS",
    "FITS",
    "NORMAL",
    "NO_DISK",
    "SIGNS",
    "SLOW",
]

NORMAL, SLOW = 1.05, 1.2
"""Below the first, offloading is no cause; from the second on a step is longer than offloading normally makes it."""

FULL = 0.02
# GB/s of reading that any local SSD reaches; the usual range begins here (references/measuring.md).
_DISK_GBPS = 3
# From this share of the host's cores on at work there are none for more.
_SATURATED = 0.9
# Below this share of the cores at work the optimizer's step is not short of cores.
_BUSY = 0.5
# From this share of its own rating on a disk does what it can.
_DISK_RATED = 0.8
_OWN = Comparison("offload_mechanism", "is", "offload_runtime")
_ACTIVATIONS = ("activation_hooks", "offload_runtime", "megatron_layers", "megatron_fine_grained")
_STATE = ("fsdp1", "fsdp2", "zero_offload", "nvme", "megatron_optimizer")
# Both facts are taken to be false where such a mechanism is all that is known to offload (`diagnosed_run`).
_ACTIVATIONS_ALONE = AllOf((Comparison("offload_mechanism", "in", _ACTIVATIONS), NO_OPTIMIZER, NO_PARAMETERS))
_STATE_LEAVES_WHOLE = Comparison("offload_mechanism", "in", ("fsdp1", "fsdp2"))
_NVME = AnyOf((Comparison("offload_mechanism", "is", "nvme"), Comparison("offload_device", "is", "nvme")))
NO_DISK = AnyOf(
    (
        Comparison("offload_device", "in", ("cpu", "none")),
        Comparison("framework", "in", ("fsdp2", "megatron-bridge")),
        Not(Comparison("offload_mechanism", "in", ("nvme", "unknown"))),
    )
)
"""Nothing is offloaded to a disk, as far as it is known which device is offloaded to."""


# However narrow, the link is not what is slow.
_FEW_COPIES = Comparison("copy_fraction", "lt", LARGE)

CHECKS = (
    Check("the mode and the number of graphs", ("mode", "num_graphs"), only_for=_OWN),
    Check("a paired baseline", ("paired_baseline",)),
    Check("warm steps only", ("warm_steps_only",)),
    Check(
        "the share of copies",
        ("copy_fraction", "exposed_copy_fraction"),
        settled_by=(
            Comparison("copy_fraction", "lt", LARGE),
            Comparison("exposed_copy_fraction", "ge", 0),
        ),
    ),
    Check("utilization with headroom", ("gpu_utilization", "memory_headroom_fraction")),
    Check("NUMA binding of each rank", ("numa_local",)),
    Check("pinned memory", ("pageable_fraction",)),
    Check(
        "the width and the generation of the link",
        ("pcie_link_width", "pcie_generation"),
        settled_by=(_FEW_COPIES,),
    ),
    Check("the host", ("host_cpu_fraction",)),
    Check("the optimizer's step on the CPU", ("cpu_step_fraction",)),
    Check(
        "the disk by itself",
        ("nvme_read_gbps", "nvme_rated_gbps"),
        settled_by=(
            Comparison("nvme_read_gbps", "lt", _DISK_GBPS),
            Comparison("nvme_rated_fraction", "ge", 0),
        ),
        only_for=_NVME,
        not_for=NO_DISK,
    ),
)


_STALLS = AllOf(
    (Comparison("gpu_utilization", "lt", 0.5), Comparison("memory_headroom_fraction", "ge", LARGE))
)
SIGNS: tuple[Predicate, ...] = (
    _STALLS,
    Comparison("exposed_copy_fraction", "ge", LARGE),
    Comparison("pageable_fraction", "ge", PAGEABLE),
    AllOf(
        (
            Comparison("cpu_step_fraction", "ge", LARGE),
            AnyOf(
                (
                    Comparison("optimizer_offload", "is", True),
                    Not(Comparison("offload_mechanism", "in", _ACTIVATIONS)),
                )
            ),
        )
    ),
)
"""Each a reason to diagnose a run that offloads though nobody measured how much longer its step takes."""

# A link runs below what it can where GPUs that train have done better for ten years, and where the rate that its
# hardware profile gives is more than 16 lanes of that generation carry: 15.8 GB/s of the third, 31.5 of the fourth.
_LOW_GENERATION = AnyOf(
    (
        Comparison("pcie_generation", "lt", 3),
        AllOf((Comparison("pcie_generation", "lt", 4), Comparison("link_d2h_gbps", "gt", 15.8))),
        AllOf((Comparison("pcie_generation", "lt", 5), Comparison("link_d2h_gbps", "gt", 31.5))),
    )
)
_BIND = "start with deepspeed --bind_cores_to_rank"

_OTHER_LOOP = Comparison("framework", "in", ("accelerate", "deepspeed", "fsdp2", "megatron-bridge"))
# Either the optimizer does not step on the host's cores, or the step is no slower by it.
_NO_STATE_ON_CORES = AnyOf((_ACTIVATIONS_ALONE, NO_OPTIMIZER, Comparison("slowdown", "lt", SLOW)))
FITS = "the step fits without offloading"
"""The finding after which nothing has to be checked."""

FINDINGS = (
    Finding(
        FITS,
        Comparison("fits", "is", True),
        (Fix("take the offloading off", unless=Comparison("offload_mechanism", "in", tuple(TAKEN_OFF))),),
        TAKEN_OFF,
        unless=Comparison("out_of_memory", "is", True),
    ),
    Finding(
        "mode graph runs slower than torch.compile, whatever moves",
        AllOf((_OWN, Comparison("mode", "is", "graph"))),
        ('give "mode": "inductor" in the options of the backend, or OFFLOAD_MODE=inductor',),
        settles_first=True,
    ),
    Finding(
        "the step is broken into several graphs",
        AllOf((_OWN, Comparison("num_graphs", "gt", 1))),
        (
            "take the graph breaks out: TORCH_LOGS=graph_breaks names each, fullgraph=True stops at the first, and "
            "OFFLOAD_REPORT=report.json says what is not offloaded between them (RUN540 to RUN547)",
        ),
        settles_first=True,
    ),
    Finding(
        "device memory is full at the peak",
        Comparison("memory_headroom_fraction", "lt", FULL),
        (
            "a smaller micro-batch, or fewer live parameters",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments; PYTORCH_ALLOC_CONF is its newer "
            "name, which torch 2.9.1 was reported to ignore",
        ),
        settles_first=True,
        slows_any_run=True,
    ),
    Finding(
        "the process runs on another NUMA node than its GPU",
        Comparison("numa_local", "is", False),
        ("a wrapper with numactl for each rank, never one numactl around the launcher",),
        {"zero_offload": (_BIND,), "nvme": (_BIND,)},
    ),
    Finding(
        "copies are pageable",
        Comparison("pageable_fraction", "ge", PAGEABLE),
        (
            Fix(
                "pin the host memory that is copied from and to",
                unless=Comparison("offload_mechanism", "in", (*_ACTIVATIONS, *_STATE)),
            ),
            Fix(
                "where that is set, look for what else copies: the data loader, checkpoints, .cpu() in the loop",
                unless=Comparison("offload_mechanism", "in", PINNED_ALWAYS),
            ),
        ),
        PINS,
    ),
    Finding(
        "hooks copy on the compute stream",
        Comparison("offload_mechanism", "is", "activation_hooks"),
        (
            Fix(
                "save_on_cpu(pin_memory=True), if it is not: a pageable copy also makes the host wait",
                unless=Comparison("pageable_fraction", "ge", 0),
            ),
            "replace the hooks: save_on_cpu copies on the stream that computes, pinned or not, and nothing overlaps",
            Fix(
                'torch.compile(model, backend="offload", options={"policy": "balanced", "mode": "inductor"}) copies '
                "on a stream of its own. Both over the step without offloading: offload bench balanced --peer eager "
                "--peer save-on-cpu --baseline eager --mode inductor --optimizer adamw --model MODEL",
                unless=_OTHER_LOOP,
            ),
            Fix(
                "recompute the activations (checkpointing) in their place, or offload what the system that trains does "
                "by itself",
                when=_OTHER_LOOP,
            ),
        ),
    ),
    Finding(
        "the link is narrow",
        Comparison("pcie_link_width", "lt", 16),
        (
            "the slot, the riser or the power state: no setting in software widens it, and until then move less",
        ),
        unless=_FEW_COPIES,
    ),
    Finding(
        "the link runs at a low generation",
        _LOW_GENERATION,
        (
            "read it again while the run trains, as an idle link goes down; if it stays, the slot, the riser, the "
            "power state or the firmware's setting for the slot",
        ),
        unless=AnyOf((_FEW_COPIES, Comparison("link_is_coherent", "is", True))),
    ),
    Finding(
        "compute waits for copies",
        Comparison("exposed_copy_fraction", "ge", LARGE),
        (
            Fix("move less: recompute activations instead", when=_ACTIVATIONS_ALONE),
            Fix(
                "move less: where activations move, recompute them instead",
                unless=AnyOf((_ACTIVATIONS_ALONE, Comparison("offload_mechanism", "in", _STATE))),
            ),
            Fix(
                "take state back on the device where memory is free, or recompute activations to make room for it",
                unless=AnyOf((_ACTIVATIONS_ALONE, BELOW_STAGE_3)),
            ),
            Fix(
                "take the state back on the device, all of it, where memory is free, or recompute activations to make "
                "room for it: below ZeRO-3 no share can be set",
                when=BELOW_STAGE_3,
                unless=_ACTIVATIONS_ALONE,
            ),
            Fix(
                "optimizer state off the device before parameters",
                when=AllOf((NO_OPTIMIZER, Comparison("parameter_offload", "is", True))),
            ),
            Fix(
                "a larger batch or longer sequences, which compute more for each byte of state that is moved",
                unless=AnyOf((Comparison("memory_headroom_fraction", "lt", FULL), _ACTIVATIONS_ALONE)),
            ),
            Fix(
                "more micro-batches for each step of the optimizer (gradient accumulation): weights come back once for "
                "all of them; gradients may leave with each",
                unless=AnyOf((_ACTIVATIONS_ALONE, _STATE_LEAVES_WHOLE, NO_OPTIMIZER)),
            ),
            TO_STAGE_3,
        ),
        LESS,
    ),
    Finding(
        "the optimizer's step on the CPU is long, and the host's cores are idle",
        AllOf(
            (
                Comparison("cpu_step_fraction", "ge", LARGE),
                Comparison("host_cpu_fraction", "lt", _SATURATED),
                Comparison("cpu_step_cores_fraction", "lt", _BUSY),
            )
        ),
        (
            "OMP_NUM_THREADS: the cores of a node over its ranks; torchrun sets 1 where nobody set it",
            Fix(
                "AdamW(fused=True), which the optimizer's step on the CPU has as well",
                when=_STATE_LEAVES_WHOLE,
            ),
        ),
        {
            "nvme": (
                "look at what fills the step before cores are blamed: it holds the disk's reads and writes",
            )
        },
    ),
    Finding(
        "the optimizer's step on the CPU is long",
        Comparison("cpu_step_fraction", "ge", LARGE),
        (
            Fix("fewer offloaded states", unless=AnyOf((_STATE_LEAVES_WHOLE, BELOW_STAGE_3))),
            Fix("more cores for each rank", unless=Comparison("cpu_step_cores_fraction", "lt", _BUSY)),
            "more batches for each step of the optimizer (gradient accumulation)",
        ),
        {
            "zero_offload": (
                LOWER_RATIO,
                TO_STAGE_3,
            ),
            "fsdp1": ("no share can be set: CPUOffload for fewer modules",),
            "fsdp2": ("no share can be set: CPUOffloadPolicy (offload_policy) for fewer modules",),
            "megatron_optimizer": (LOWER_FRACTION, OVERLAP),
        },
    ),
    Finding(
        "the host is saturated",
        Comparison("host_cpu_fraction", "ge", _SATURATED),
        (
            Fix(
                "fewer workers of the data loader: they take the cores of the launching thread",
                when=_NO_STATE_ON_CORES,
            ),
            Fix(
                "fewer workers of the data loader, or fewer offloaded states: they share the cores",
                unless=_NO_STATE_ON_CORES,
            ),
            "more cores for each rank",
        ),
        slows_any_run=True,
    ),
    Finding(
        "the disk is slow",
        AllOf(
            (
                _NVME,
                AnyOf(
                    (
                        Comparison("nvme_read_gbps", "lt", _DISK_GBPS),
                        Comparison("nvme_rated_fraction", "lt", _DISK_RATED),
                    )
                ),
            )
        ),
        ("fewer bytes on the disk", "host memory in place of the disk"),
        {
            "nvme": (
                Fix(
                    "the asynchronous I/O extension: ds_report says whether it is built",
                    unless=Comparison("asynchronous_io", "is", True),
                ),
                "aio.queue_depth and aio.block_size higher",
                Fix(
                    "zero_optimization.offload_optimizer.pipeline_read: true and pipeline_write: true",
                    unless=NO_OPTIMIZER,
                ),
            )
        },
        unless=Comparison("nvme_rated_fraction", "ge", _DISK_RATED),
    ),
    # Symptoms and prices: what a check has found to be the cause is fixed before them.
    Finding(
        "the disk does what it can, and a disk is slower than host memory, by about ten: the price of NVMe",
        AllOf((_NVME, Comparison("nvme_rated_fraction", "ge", _DISK_RATED))),
        ("on the disk no more than host memory has no room for",),
        {
            "nvme": (
                Fix(
                    "zero_optimization.offload_optimizer.device: cpu, where host memory has the room",
                    unless=NO_OPTIMIZER,
                ),
                Fix(
                    "zero_optimization.offload_param.device: cpu, where host memory has the room",
                    unless=NO_PARAMETERS,
                ),
            )
        },
        is_symptom=True,
    ),
    Finding(
        "the GPU waits while its memory is free, the signature of offload stalls",
        _STALLS,
        (
            "put back on the device what the free memory holds, where a part can be put back; then measure the pair "
            "again",
            Fix(
                "the share of copies and that of the optimizer's step on the CPU say what is left to wait for",
                unless=AnyOf((_ACTIVATIONS_ALONE, Comparison("cpu_step_fraction", "ge", 0))),
            ),
        ),
        LESS,
        is_symptom=True,
    ),
)
