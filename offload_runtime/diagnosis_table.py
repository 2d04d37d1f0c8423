"""The diagnosis of a slow run that offloads, as data: checks in order, what each can find, and the fix by system.

Keys of other systems are those of the versions that `offload_runtime/targets_data` was checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offload_runtime.predicates import AnyOf, Comparison, Predicate

__all__ = ["CHECKS", "FINDINGS", "NORMAL", "SLOW", "Check", "Finding"]

NORMAL, SLOW = 1.05, 1.2
"""Below the first, offloading is no cause; from the second on a step is longer than offloading normally makes it."""

LARGE = 0.2
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
    Check("the host and the optimizer's step on it", ("host_cpu_fraction", "cpu_step_fraction")),
    Check("the disk by itself", ("nvme_read_gbps",), only_for=_NVME),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check can find: the sign of it in facts, and the fixes, each before the next.

    ``fixes`` hold for any system; those in ``by_system`` go before them. A system is a value of ``offload_mechanism``,
    or of ``framework`` where that has several mechanisms.
    """

    name: str
    sign: Predicate
    fixes: tuple[str, ...]
    by_system: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fixes_for(self, system: str | None) -> tuple[str, ...]:
        """Return the fixes for a run that ``system`` offloads, in order; None: it is not known which does."""
        return (*self.by_system.get(system or "", ()), *self.fixes)


FINDINGS = (
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
        "device memory is full at the peak",
        Comparison("memory_headroom_fraction", "lt", 0.02),
        (
            "a smaller micro-batch, or fewer live parameters",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments",
        ),
    ),
    Finding(
        "copies are pageable",
        Comparison("pageable_fraction", "gt", 0),
        ("pin the host memory that is copied from and to",),
        {
            "activation_hooks": ("torch.autograd.graph.save_on_cpu(pin_memory=True); its default is False",),
            "zero_offload": (
                "zero_optimization.offload_optimizer.pin_memory: true",
                "zero_optimization.offload_param.pin_memory: true",
            ),
            "fsdp2": ("CPUOffloadPolicy(pin_memory=True)",),
            "megatron-bridge": ("optimizer.pin_cpu_grads: true, optimizer.pin_cpu_params: true",),
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
            "its own, and offload bench balanced --peer save-on-cpu --model MODEL measures both",
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
            "move less: recompute activations instead, optimizer state before parameters",
            "a larger batch or longer sequences, which compute more for each byte of state that is moved",
        ),
        {
            "offload_runtime": (
                "a lower limits.budget, the rest recomputed: offload skills show tune-activation-offload",
            ),
            "zero_offload": (
                "zero_optimization.offload_param.device: none, where memory is free; the optimizer's state stays off",
            ),
            "fsdp1": ("CPUOffload off, parameters sharded on the device, where they fit",),
            "fsdp2": (
                "offload_policy OffloadPolicy for as many modules as fit, CPUOffloadPolicy for the rest",
            ),
            "megatron-bridge": (
                "optimizer.overlap_cpu_optimizer_d2h_h2d: true, then a lower optimizer.optimizer_offload_fraction",
            ),
        },
    ),
    Finding(
        "the optimizer's step on the CPU is long",
        Comparison("cpu_step_fraction", "ge", LARGE),
        ("fewer offloaded states", "more cores for each rank"),
        {
            "zero_offload": (
                "zero_optimization.offload_optimizer.ratio below 1 leaves a share on the GPU (ZeRO-3 only)",
            ),
            "fsdp2": ("no share can be set: CPUOffloadPolicy (offload_policy) for fewer modules",),
            "megatron-bridge": (
                "a lower optimizer.optimizer_offload_fraction",
                "optimizer.overlap_cpu_optimizer_d2h_h2d: true",
            ),
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
                "zero_optimization.offload_optimizer.pipeline_read: true and pipeline_write: true",
            )
        },
    ),
)
