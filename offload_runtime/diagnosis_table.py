"""The diagnosis of a slow run that offloads, as data: checks in order, what each can find, and the fix by mechanism.

Keys of other systems are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from collections.abc import Mapping

from offload_runtime.diagnosis_rows import Check, Finding, Fix
from offload_runtime.predicates import AllOf, AnyOf, Comparison, Not, Predicate

__all__ = [
    "BELOW_STAGE_3",
    "CHECKS",
    "FINDINGS",
    "FITS",
    "NORMAL",
    "NO_DISK",
    "PRICES",
    "PRICE_UNLESS",
    "SIGNS",
    "SLOW",
]

NORMAL, SLOW = 1.05, 1.2
"""Below the first, offloading is no cause; from the second on a step is longer than offloading normally makes it."""

LARGE = 0.2
FULL = 0.02
# From this share of the optimizer's state on, overlapping its copies was seen to help: skill offload-optimizer-state.
_OVERLAP_FROM = 0.75
# GB/s of reading that a local SSD reaches; the usual range begins here (references/measuring.md).
_DISK_GBPS = 3
_NUM_LAYERS_KNOWN = Comparison("num_offloaded_layers", "ge", 0)
_OWN = Comparison("offload_mechanism", "is", "offload_runtime")
_ACTIVATIONS_ALONE = Comparison(
    "offload_mechanism",
    "in",
    ("activation_hooks", "offload_runtime", "megatron_layers", "megatron_fine_grained"),
)
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
    Check("the width and the generation of the link", ("pcie_link_width", "pcie_generation")),
    Check("the host", ("host_cpu_fraction",)),
    Check("the optimizer's step on the CPU", ("cpu_step_fraction",)),
    Check("the disk by itself", ("nvme_read_gbps",), only_for=_NVME, not_for=NO_DISK),
)


BELOW_STAGE_3 = Comparison("zero_stage", "lt", 3)
"""DeepSpeed moves no parameters, and all of the optimizer's state or none of it."""
_NO_PARAMETERS = Comparison("parameter_offload", "is", False)
_NO_OPTIMIZER = Comparison("optimizer_offload", "is", False)
_LOWER_RATIO = Fix(
    "zero_optimization.offload_optimizer.ratio below 1 leaves a share on the GPU (ZeRO-3 only)",
    unless=AnyOf((_NO_OPTIMIZER, BELOW_STAGE_3)),
)
_PARAMETERS_BACK = Fix(
    "zero_optimization.offload_param.device: none, where memory is free",
    unless=AnyOf((_NO_PARAMETERS, BELOW_STAGE_3)),
)
_LOWER_FRACTION = Fix("a lower optimizer.optimizer_offload_fraction", unless=_NO_OPTIMIZER)
_OVERLAP = Fix(
    "optimizer.overlap_cpu_optimizer_d2h_h2d: true",
    unless=AnyOf(
        (
            _NO_OPTIMIZER,
            Comparison("offload_overlap", "is", True),
            Comparison("offload_fraction", "lt", _OVERLAP_FROM),
        )
    ),
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
_LESS: Mapping[str, tuple[str | Fix, ...]] = {
    "offload_runtime": _BUDGET,
    "zero_offload": (_PARAMETERS_BACK, _LOWER_RATIO),
    "nvme": (_PARAMETERS_BACK,),
    "fsdp1": ("CPUOffload off, parameters sharded on the device, where they fit",),
    "fsdp2": ("offload_policy OffloadPolicy for as many modules as fit, CPUOffloadPolicy for the rest",),
    "megatron_optimizer": (_OVERLAP, _LOWER_FRACTION),
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

_STALLS = AllOf(
    (Comparison("gpu_utilization", "lt", 0.5), Comparison("memory_headroom_fraction", "ge", LARGE))
)
SIGNS: tuple[Predicate, ...] = (
    _STALLS,
    Comparison("exposed_copy_fraction", "ge", LARGE),
    Comparison("pageable_fraction", "gt", 0),
    Comparison("cpu_step_fraction", "ge", LARGE),
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
_PIN_ZERO = (
    Fix("zero_optimization.offload_optimizer.pin_memory: true", unless=_NO_OPTIMIZER),
    Fix("zero_optimization.offload_param.pin_memory: true", unless=AnyOf((_NO_PARAMETERS, BELOW_STAGE_3))),
)

_TAKEN_OFF: Mapping[str, tuple[str | Fix, ...]] = {
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
_OTHER_LOOP = Comparison("framework", "in", ("accelerate", "deepspeed", "fsdp2", "megatron-bridge"))
FITS = "the step fits without offloading"
"""The finding after which nothing has to be checked."""

FINDINGS = (
    Finding(
        FITS,
        Comparison("fits", "is", True),
        ("take the offloading off",),
        _TAKEN_OFF,
        unless=Comparison("out_of_memory", "is", True),
    ),
    Finding(
        "mode graph runs slower than torch.compile, whatever moves",
        AllOf((_OWN, Comparison("mode", "is", "graph"))),
        ('give "mode": "inductor" in the options of the backend, or OFFLOAD_MODE=inductor',),
    ),
    Finding(
        "the step is broken into several graphs",
        AllOf((_OWN, Comparison("num_graphs", "gt", 1))),
        (
            "take the graph breaks out: TORCH_LOGS=graph_breaks names each, fullgraph=True stops at the first, and "
            "OFFLOAD_REPORT=report.json says what is not offloaded between them (RUN540 to RUN547)",
        ),
    ),
    Finding(
        "device memory is full at the peak",
        Comparison("memory_headroom_fraction", "lt", FULL),
        (
            "a smaller micro-batch, or fewer live parameters",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments; PYTORCH_ALLOC_CONF is its newer "
            "name, which torch 2.9.1 was reported to ignore",
        ),
    ),
    Finding(
        "the process runs on another NUMA node than its GPU",
        Comparison("numa_local", "is", False),
        ("a wrapper with numactl for each rank, never one numactl around the launcher",),
        {"zero_offload": (_BIND,), "nvme": (_BIND,)},
    ),
    Finding(
        "copies are pageable",
        Comparison("pageable_fraction", "gt", 0),
        ("pin the host memory that is copied from and to",),
        {
            "activation_hooks": ("torch.autograd.graph.save_on_cpu(pin_memory=True); its default is False",),
            "zero_offload": _PIN_ZERO,
            "nvme": _PIN_ZERO,
            "fsdp2": ("CPUOffloadPolicy(pin_memory=True)",),
            "megatron_optimizer": (
                Fix("optimizer.pin_cpu_grads: true, optimizer.pin_cpu_params: true", unless=_NO_OPTIMIZER),
            ),
            "offload_runtime": ("not this package's copies, which are pinned: look for what else copies",),
        },
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
        ("the slot, the riser or the power state; no setting in software helps",),
    ),
    Finding(
        "the link runs at a low generation",
        _LOW_GENERATION,
        (
            "read it again while the run trains, as an idle link goes down; if it stays, the slot, the riser, the "
            "power state or the firmware's setting for the slot",
        ),
        unless=Comparison("link_is_coherent", "is", True),
    ),
    Finding(
        "compute waits for copies",
        Comparison("exposed_copy_fraction", "ge", LARGE),
        (
            "move less: recompute activations instead",
            Fix(
                "optimizer state off the device before parameters",
                unless=AnyOf(
                    (
                        _NO_PARAMETERS,
                        Comparison("optimizer_offload", "is", True),
                        _ACTIVATIONS_ALONE,
                        _STATE_LEAVES_WHOLE,
                    )
                ),
            ),
            Fix(
                "a larger batch or longer sequences, which compute more for each byte of state that is moved",
                unless=AnyOf((Comparison("memory_headroom_fraction", "lt", FULL), _ACTIVATIONS_ALONE)),
            ),
        ),
        _LESS,
    ),
    Finding(
        "the optimizer's step on the CPU is long, and the host's cores are idle",
        AllOf((Comparison("cpu_step_fraction", "ge", LARGE), Comparison("host_cpu_fraction", "le", LARGE))),
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
            "more cores for each rank",
            "more batches for each step of the optimizer (gradient accumulation)",
        ),
        {
            "zero_offload": (
                _LOWER_RATIO,
                Fix(
                    "ZeRO-3, under which a share of the state can stay on the GPU",
                    when=BELOW_STAGE_3,
                ),
            ),
            "fsdp1": ("no share can be set: CPUOffload for fewer modules",),
            "fsdp2": ("no share can be set: CPUOffloadPolicy (offload_policy) for fewer modules",),
            "megatron_optimizer": (_LOWER_FRACTION, _OVERLAP),
        },
    ),
    Finding(
        "the host is saturated",
        Comparison("host_cpu_fraction", "ge", 0.9),
        (
            Fix(
                "fewer workers of the data loader: they take the cores of the launching thread",
                when=_ACTIVATIONS_ALONE,
            ),
            Fix(
                "fewer workers of the data loader, or fewer offloaded states: they share the cores",
                unless=_ACTIVATIONS_ALONE,
            ),
            "more cores for each rank",
        ),
    ),
    Finding(
        "the disk is slow",
        AllOf((_NVME, Comparison("nvme_read_gbps", "lt", _DISK_GBPS))),
        (
            "the asynchronous I/O extension, then queue depth and block size, then fewer bytes",
            "host memory in place of the disk",
        ),
        {
            "nvme": (
                "aio.queue_depth and aio.block_size higher",
                Fix(
                    "zero_optimization.offload_optimizer.pipeline_read: true and pipeline_write: true",
                    unless=_NO_OPTIMIZER,
                ),
            )
        },
    ),
    # Symptoms and prices: what a check has found to be the cause is fixed before them.
    Finding(
        "the disk does what it can, and a disk is slower than host memory, by about ten: the price of NVMe",
        AllOf((_NVME, Comparison("nvme_read_gbps", "ge", _DISK_GBPS))),
        ("on the disk no more than host memory has no room for",),
        {
            "nvme": (
                Fix(
                    "zero_optimization.offload_optimizer.device: cpu, where host memory has the room",
                    unless=_NO_OPTIMIZER,
                ),
                Fix(
                    "zero_optimization.offload_param.device: cpu, where host memory has the room",
                    unless=_NO_PARAMETERS,
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
        _LESS,
        is_symptom=True,
    ),
)
