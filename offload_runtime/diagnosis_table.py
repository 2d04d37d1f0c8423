"""The diagnosis of a slow run that offloads, as data: checks in order, what each can find, and the fix by system.

Keys of other systems are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offload_runtime.predicates import AllOf, AnyOf, Comparison, Predicate, Scalar, evaluate

__all__ = ["CHECKS", "FINDINGS", "NORMAL", "SIGNS", "SLOW", "Check", "Finding", "Fix"]

NORMAL, SLOW = 1.05, 1.2
"""Below the first, offloading is no cause; from the second on a step is longer than offloading normally makes it."""

LARGE = 0.2
FULL = 0.02
_ACTIVATIONS_ALONE = Comparison("offload_mechanism", "in", ("activation_hooks", "offload_runtime"))
_NVME = AnyOf((Comparison("offload_mechanism", "is", "nvme"), Comparison("offload_device", "is", "nvme")))


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the diagnosis, and the facts that it leads to; done where all are known.

    It is done, too, where one of ``settled_by`` holds, which makes the facts that are still unknown needless. One with
    ``only_for`` is made only of runs for which that holds.
    """

    name: str
    facts: tuple[str, ...]
    settled_by: tuple[Predicate, ...] = ()
    only_for: Predicate | None = None


CHECKS = (
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
    Check("the width of the link", ("pcie_link_width",)),
    Check("the host", ("host_cpu_fraction",)),
    Check("the optimizer's step on the CPU", ("cpu_step_fraction",), settled_by=(_ACTIVATIONS_ALONE,)),
    Check("the disk by itself", ("nvme_read_gbps",), only_for=_NVME),
)


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to change; where ``unless`` holds it is done already or there is nothing to change."""

    text: str
    unless: Predicate


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check can find: the sign of it in facts, and the fixes, each before the next.

    ``fixes`` hold for any system; those in ``by_system`` go before them. A system is a value of ``offload_mechanism``,
    or of ``framework`` where that has several mechanisms. At least one of ``fixes`` is without a condition.
    """

    name: str
    sign: Predicate
    fixes: tuple[str | Fix, ...]
    by_system: Mapping[str, tuple[str | Fix, ...]] = field(default_factory=dict)

    def fixes_for(self, system: str | None, facts: Mapping[str, Scalar]) -> tuple[str, ...]:
        """Return the fixes that ``facts`` leave for a run that ``system`` offloads; None: not known which does."""
        return tuple(
            fix.text if isinstance(fix, Fix) else fix
            for fix in (*self.by_system.get(system or "", ()), *self.fixes)
            if not (isinstance(fix, Fix) and evaluate(fix.unless, facts) is True)
        )


_NO_PARAMETERS = Comparison("parameter_offload", "is", False)
_NO_OPTIMIZER = Comparison("optimizer_offload", "is", False)
_LOWER_RATIO = Fix(
    "zero_optimization.offload_optimizer.ratio below 1 leaves a share on the GPU (ZeRO-3 only)",
    unless=AnyOf((_NO_OPTIMIZER, Comparison("zero_stage", "lt", 3))),
)
_PARAMETERS_BACK = (
    Fix(
        "zero_optimization.offload_param.device: none, where memory is free; the optimizer's state stays off",
        unless=_NO_PARAMETERS,
    ),
)
_LESS_BY_SYSTEM: Mapping[str, tuple[str | Fix, ...]] = {
    "offload_runtime": (
        "a lower limits.budget, the rest recomputed: offload skills show tune-activation-offload",
    ),
    "zero_offload": (*_PARAMETERS_BACK, _LOWER_RATIO),
    "nvme": _PARAMETERS_BACK,
    "fsdp1": ("CPUOffload off, parameters sharded on the device, where they fit",),
    "fsdp2": ("offload_policy OffloadPolicy for as many modules as fit, CPUOffloadPolicy for the rest",),
    "megatron-bridge": (
        Fix(
            "optimizer.overlap_cpu_optimizer_d2h_h2d: true",
            unless=AnyOf((_NO_OPTIMIZER, Comparison("offload_overlap", "is", True))),
        ),
        Fix("a lower optimizer.optimizer_offload_fraction", unless=_NO_OPTIMIZER),
    ),
}
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

FINDINGS = (
    Finding(
        "device memory is full at the peak",
        Comparison("memory_headroom_fraction", "lt", FULL),
        (
            "a smaller micro-batch, or fewer live parameters",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments",
        ),
    ),
    Finding(
        "the process runs on another NUMA node than its GPU",
        Comparison("numa_local", "is", False),
        ("a wrapper with numactl for each rank, never one numactl around the launcher",),
        {
            "zero_offload": ("start with deepspeed --bind_cores_to_rank",),
            "nvme": ("start with deepspeed --bind_cores_to_rank",),
        },
    ),
    Finding(
        "copies are pageable",
        Comparison("pageable_fraction", "gt", 0),
        ("pin the host memory that is copied from and to",),
        {
            "activation_hooks": ("torch.autograd.graph.save_on_cpu(pin_memory=True); its default is False",),
            "zero_offload": (
                Fix("zero_optimization.offload_optimizer.pin_memory: true", unless=_NO_OPTIMIZER),
                Fix("zero_optimization.offload_param.pin_memory: true", unless=_NO_PARAMETERS),
            ),
            "fsdp2": ("CPUOffloadPolicy(pin_memory=True)",),
            "megatron-bridge": (
                Fix("optimizer.pin_cpu_grads: true, optimizer.pin_cpu_params: true", unless=_NO_OPTIMIZER),
            ),
            "offload_runtime": ("not this package's copies, which are pinned: look for what else copies",),
        },
    ),
    Finding(
        "hooks copy on the compute stream",
        Comparison("offload_mechanism", "is", "activation_hooks"),
        (
            "save_on_cpu(pin_memory=True), if it is not: a pageable copy also makes the host wait",
            "replace the hooks: save_on_cpu copies on the stream that computes, pinned or not, so that nothing "
            'overlaps; torch.compile(model, backend="offload", options={"policy": "balanced"}) copies on a stream of '
            "its own. Both over the step without offloading: offload bench balanced --peer eager --peer save-on-cpu "
            "--baseline eager --mode inductor --optimizer adamw --model MODEL",
        ),
    ),
    Finding(
        "the link is narrow",
        Comparison("pcie_link_width", "lt", 16),
        ("the slot, the riser or the power state; no setting in software helps",),
    ),
    Finding(
        "compute waits for copies",
        Comparison("exposed_copy_fraction", "ge", LARGE),
        (
            "move less: recompute activations instead",
            Fix(
                "optimizer state off the device before parameters",
                unless=AnyOf((_NO_PARAMETERS, _ACTIVATIONS_ALONE)),
            ),
            Fix(
                "a larger batch or longer sequences, which compute more for each byte of state that is moved",
                unless=AnyOf((Comparison("memory_headroom_fraction", "lt", FULL), _ACTIVATIONS_ALONE)),
            ),
        ),
        _LESS_BY_SYSTEM,
    ),
    Finding(
        "the optimizer's step on the CPU is long",
        Comparison("cpu_step_fraction", "ge", LARGE),
        ("fewer offloaded states", "more cores for each rank"),
        {
            "zero_offload": (_LOWER_RATIO,),
            "fsdp2": ("no share can be set: CPUOffloadPolicy (offload_policy) for fewer modules",),
            "megatron-bridge": (*reversed(_LESS_BY_SYSTEM["megatron-bridge"]),),
        },
    ),
    Finding(
        "the host is saturated",
        Comparison("host_cpu_fraction", "ge", 0.9),
        ("fewer workers of the data loader, or fewer offloaded states: they share the cores",),
    ),
    Finding(
        "the disk is slow",
        Comparison("nvme_read_gbps", "lt", 3),
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
    # A symptom: what a check has found to be the cause is fixed before it.
    Finding(
        "the GPU waits while its memory is free, the signature of offload stalls",
        _STALLS,
        (
            "put back on the device what the free memory holds, then measure the pair again",
            "the share of copies and that of the optimizer's step on the CPU say what is left to wait for",
        ),
        _LESS_BY_SYSTEM,
    ),
)
