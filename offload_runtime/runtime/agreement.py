"""Ranks agree: equal limits before planning, and a comparison of the plans after it.

Ranks that run the same graph have to offload the same tensors at the same places: one rank that waits longer than
the others holds all of them up at the next collective. Memory that is free, or what a cgroup allows, differs from
rank to rank, so limits are reduced to the least, and what is allocated to the largest, before anything is planned.

All functions are collectives. Every rank of the group has to call them equally often and in the same order,
which holds where every rank compiles the same graphs in the same order. Neither can deadlock on what it is given:
an argument that cannot be used travels with the reduction and raises on every rank. What a rank does *before* the
call is another matter: if one raises or dies there, the others wait in the collective until the process group
gives up (``timeout`` of ``init_process_group``; by default 30 minutes with gloo and 10 with nccl, at once where
the connection is lost), and then raise what torch raises. Nothing here can tell a rank that is late from one that
is gone, so no shorter timeout is set: compiling one graph may take minutes longer on one rank than on another.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.policy import Limits

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["agree_on_largest", "agree_on_limits", "check_same_plan"]

T = TypeVar("T")
UNLIMITED = torch.iinfo(torch.int64).max
HASH_LENGTH = 64
NO_DIGEST = bytes(HASH_LENGTH // 2)


def agree_on_limits(limits: Limits, group: ProcessGroup | None = None) -> Limits:
    """Return the least of each limit over the ranks of ``group`` (None: all ranks); unlimited counts as infinite.

    A collective, and the identity without ``torch.distributed`` or on one rank. Sizes in bytes. ``device_peak``
    has to be a size or unlimited by now: ValueError, on every rank, where one rank still has ``auto``.
    """
    if not _several_ranks(group):
        return limits
    unresolved = isinstance(limits.device_peak, str)
    sizes = [
        UNLIMITED if size is None or isinstance(size, str) else size
        for size in (limits.budget, limits.device_peak, limits.host)
    ]
    overhead = float("inf") if limits.step_overhead is None else limits.step_overhead

    def reduce() -> tuple[list[int], float]:
        device = _collective_device(group)
        least = torch.tensor([*sizes, 0 if unresolved else 1], dtype=torch.int64, device=device)
        least_overhead = torch.tensor([overhead], dtype=torch.float64, device=device)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(least_overhead, dist.ReduceOp.MIN, group=group)
        return [int(size) for size in least.tolist()], float(least_overhead.item())

    (budget, device_peak, host, resolved), step_overhead = _outside_of_tracing(reduce)
    if not resolved:
        raise ValueError(
            "device_peak is 'auto' on some rank: put the bytes there before ranks agree on limits"
        )
    return dataclasses.replace(
        limits,
        budget=_size(budget),
        device_peak=_size(device_peak),
        host=_size(host),
        step_overhead=None if step_overhead == float("inf") else step_overhead,
    )


def agree_on_largest(num_bytes: int, group: ProcessGroup | None = None) -> int:
    """Return the largest of ``num_bytes`` over the ranks of ``group`` (None: all ranks), as what is allocated already.

    A collective, and the identity without ``torch.distributed`` or on one rank.
    """
    if not _several_ranks(group):
        return num_bytes

    def reduce() -> int:
        largest = torch.tensor([num_bytes], dtype=torch.int64, device=_collective_device(group))
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return int(largest.item())

    return _outside_of_tracing(reduce)


def check_same_plan(plan_hash: str, group: ProcessGroup | None = None) -> None:
    """Compare ``plan_hash`` (``OffloadPlan.hash``) over the ranks of ``group`` that run the same graph.

    A collective, and nothing without ``torch.distributed`` or on one rank. Raises RefusedError on every rank, with
    the ranks that planned each plan, where they differ. Stages of a pipeline run different graphs: give their group.
    Raises ValueError, on every rank, where one gives a text that is no SHA-256 in hexadecimal.
    """
    digest = _digest(plan_hash)
    hashes = [digest] if not _several_ranks(group) else _outside_of_tracing(lambda: _gathered(digest, group))
    if NO_DIGEST in hashes:
        raise ValueError(
            f"a rank gave no plan hash of {HASH_LENGTH} hexadecimal digits; this one gave {plan_hash!r}"
        )
    if len(set(hashes)) > 1:
        raise RefusedError(_disagreement([each.hex() for each in hashes]))


def _digest(plan_hash: str) -> bytes:
    """Return the bytes of a hash, ``NO_DIGEST`` for a text that is none: every rank has something to send."""
    return bytes.fromhex(plan_hash) if re.fullmatch(r"[0-9a-f]{64}", plan_hash) else NO_DIGEST


def _gathered(digest: bytes, group: ProcessGroup | None) -> list[bytes]:
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=_collective_device(group))
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group=group)
    return [bytes(each.tolist()) for each in all_of_them]


def _disagreement(hashes: list[str]) -> Diagnostic:
    """Say which ranks planned what; a rank is named by its number in the group."""
    ranks: dict[str, list[int]] = {}
    for rank, plan_hash in enumerate(hashes):
        ranks.setdefault(plan_hash, []).append(rank)
    planned = "; ".join(
        f"{'rank' if len(members) == 1 else 'ranks'} {_spans(members)}: {plan_hash[:12]}"
        for plan_hash, members in ranks.items()
    )
    return Diagnostic(
        "RUN530",
        "error",
        f"{len(hashes)} ranks made {len(ranks)} different plans for one graph",
        hint=f"{planned}; give every rank the same policy, torch, hardware profile and input shapes",
    )


def _spans(ranks: list[int]) -> str:
    """Write rising numbers with their runs joined: ``0-3, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _several_ranks(group: ProcessGroup | None) -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def _size(num_bytes: int) -> int | None:
    return None if num_bytes == UNLIMITED else num_bytes


def _collective_device(group: ProcessGroup | None) -> torch.device:
    """Return where small tensors have to lie for ``group``: on the CPU if it can, else on its accelerator.

    A group's configuration reads ``cpu:gloo,cuda:nccl``.
    """
    devices = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())


def _outside_of_tracing(function: Callable[[], T]) -> T:
    """Call ``function`` where tensors are real and nothing is recorded, and return what it returns.

    Planning happens while AOTAutograd traces under fake tensors. Dispatch modes belong to a thread, so another
    thread is free of them; the caller waits for it. A daemon, so that a process told to end does not wait for ranks
    that never come.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    device = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None

    def run() -> None:
        try:
            if device is not None:
                torch.accelerator.set_device_index(device)
            results.append(function())
        except BaseException as error:  # noqa: BLE001  # handed to the caller, whatever it is
            errors.append(error)

    thread = threading.Thread(target=run, name="offload-agreement", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
