"""Write down what a partitioned pair allocates and frees on the device, for the simulator."""

from __future__ import annotations

from torch import fx

from offload_runtime.graph.kernels import group_kernels
from offload_runtime.graph.storages import Storage, find_storages, tensor_of
from offload_runtime.passes.partition import Partition
from offload_runtime.simulator import Allocation, Tape

__all__ = ["record_tape"]


def record_tape(partition: Partition, *, fused: bool = False) -> Tape:
    """Return the device allocations of one forward-backward, by storage.

    Where a compiler fuses, what stays inside one kernel allocates nothing.

    What forward returns to the caller, and the gradients that backward returns, stay alive to the end.
    """
    forward = list(partition.forward.graph.nodes)
    backward = list(partition.backward.graph.nodes)
    num_forward, num_backward = len(forward), len(backward)
    end = num_forward + num_backward - 1
    saved = {node.forward.name: node.backward.name for node in partition.saved}
    backward_storages = {
        node.name: storage
        for storage in find_storages(backward)
        for node in storage.nodes
        if node.op == "placeholder"
    }
    position = {node: index for index, node in enumerate(forward)}
    back_position = {node: index for index, node in enumerate(backward)}
    inside = _stays_in_kernel(forward) | _stays_in_kernel(backward) if fused else set()
    resident = 0
    allocations: list[Allocation] = []
    kept: set[str] = set()
    for storage in find_storages(forward):
        if _is_host(storage) or storage.base in inside:
            continue
        if storage.is_input:
            resident += storage.num_bytes
            continue
        last = max(storage.reads, default=position[storage.base])
        if last == num_forward - 1:
            inputs = [saved[node.name] for node in storage.nodes if node.name in saved]
            uses = [read for name in inputs for read in backward_storages[name].reads]
            kept.update(inputs)
            returned = not inputs or _returned_to_caller(storage, partition)
            last = end if returned else num_forward + max(uses, default=0)
        allocations.append(Allocation(storage.base.name, storage.num_bytes, position[storage.base], last))
    known_inputs = {saved.backward.name for saved in partition.saved}
    for storage in find_storages(backward):
        base = storage.base
        if base in inside:
            continue
        if (base.op == "placeholder" and (base.name in known_inputs or base.name in kept)) or _is_host(
            storage
        ):
            continue
        first = back_position[base]
        last = max(storage.reads, default=first)
        allocations.append(Allocation(base.name, storage.num_bytes, num_forward + first, num_forward + last))
    return Tape(num_forward, num_backward, resident, tuple(allocations))


def _stays_in_kernel(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the tensors that begin a storage which no kernel leaves in memory."""
    kernels = group_kernels(nodes, fused=True)
    return {storage.base for storage in kernels.storages} - {storage.base for storage in kernels.written}


def _is_host(storage: Storage) -> bool:
    """Whether only transfers made or read it: on a machine without an accelerator every tensor says ``cpu``."""
    base = storage.base
    if base.op == "placeholder":
        return bool(base.users) and all(str(user.target).startswith("offload.h2d") for user in base.users)
    return str(base.target).startswith("offload.d2h")


def _returned_to_caller(storage: Storage, partition: Partition) -> bool:
    returned = partition.returned_to_caller
    return any(node in returned and tensor_of(node) is not None for node in storage.nodes)
