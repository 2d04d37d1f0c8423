"""What a kernel costs: floating-point operations by kind, and bytes of device memory read and written.

A roofline: a kernel takes the longer of its arithmetic and its memory traffic, and one launch. Operation counts of
matrix products and attention follow from shapes alone (2 m n k; attention counts half where it is causal, and two and
a half times as much for its backward), where torch's own FLOP registry has a formula by that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from offload_runtime.errors import Diagnostic, RefusedError
from offload_runtime.graph.kernels import Launch, is_scatter, launch_of, values_read
from offload_runtime.graph.operators import class_of_operator
from offload_runtime.graph.storages import hint, tensor_of
from offload_runtime.hardware import HardwareProfile

__all__ = ["KernelCost", "cost_of_kernel", "duration_ms", "workspace_bytes"]

_SORT_PASSES = 8  # radix sort of 32-bit keys: four passes, each reads and writes
_HEADS_NEXT_TO_LAST = ("aten._flash_attention_", "aten._efficient_attention_")
_GATHERS = ("embedding", "index", "gather", "index_select", "take")


@dataclass(frozen=True)
class KernelCost:
    """Work of one kernel. Floating-point operations are in ``dtype``; bytes are of device memory.

    ``grouped_flops`` are those of products by groups of rows (experts), which reach a lower rate.
    """

    matmul_flops: float
    grouped_flops: float
    attention_flops: float
    is_backward: bool
    dtype: str
    num_bytes: int


def duration_ms(cost: KernelCost, profile: HardwareProfile) -> float:
    """Return how long a kernel takes on a device: the roofline and one launch.

    A rate that the profile does not state bounds nothing, except that of memory: RefusedError names it.
    """
    compute = 0.0
    matmul_rate = profile.matmul_flops_per_ms(cost.dtype)
    if cost.matmul_flops and matmul_rate is not None:
        compute += cost.matmul_flops / matmul_rate
    if cost.grouped_flops and matmul_rate is not None:
        compute += cost.grouped_flops / (matmul_rate * profile.grouped_matmul_share)
    attention_rate = profile.attention_flops_per_ms(cost.dtype, backward=cost.is_backward) or matmul_rate
    if cost.attention_flops and attention_rate is not None:
        compute += cost.attention_flops / attention_rate
    hbm = profile.hbm_bytes_per_ms
    if hbm is None:
        message = f"hardware profile {profile.name!r} does not state device.hbm_rate"
        hint = "add the figure, with its source: the time of most kernels depends on it"
        raise RefusedError(Diagnostic("PLN411", "error", message, hint=hint))
    return max(compute, cost.num_bytes / hbm) + (profile.launch_ms or 0.0)


def cost_of_kernel(kernel: Launch, *, fused: bool) -> KernelCost:
    """Add up a kernel: arithmetic of its operators, bytes it reads and bytes it leaves in memory.

    Where a compiler fuses, a scatter touches only the places that it writes.
    """
    operators = kernel.operators
    if fused and is_scatter(operators[0]):
        _written, *values = values_read(operators[0]).values()
        return KernelCost(0.0, 0.0, 0.0, False, _dtype(operators), 3 * sum(values))
    matmul = grouped = attention = 0.0
    num_bytes = sum(_read_bytes(operators, value, size) for value, size in kernel.reads.items())
    is_backward = False
    for node in operators:
        op_class = class_of_operator(node.target)
        if op_class == "attention":
            is_backward = "backward" in str(node.target)
            attention += _attention_flops(node, is_backward)
        elif op_class in ("matmul", "convolution") and "grouped" in str(node.target):
            grouped += _product_flops(node)
        elif op_class in ("matmul", "convolution"):
            matmul += _product_flops(node)
        if node in kernel.stored:
            num_bytes += _result_bytes(node)
        if op_class == "routing":
            num_bytes += _SORT_PASSES * _result_bytes(node)
    return KernelCost(matmul, grouped, attention, is_backward, _dtype(operators), num_bytes)


def workspace_bytes(kernel: Launch) -> int:
    """Return what a kernel allocates for itself alone: attention's backward sums the queries' gradient in float32."""
    total = 0
    for node in kernel.operators:
        if class_of_operator(node.target) == "attention" and "backward" in str(node.target):
            total += 4 * hint(_attention_operands(node, is_backward=True)[0].numel())
    return total


def _read_bytes(operators: Sequence[fx.Node], value: fx.Node, num_bytes: int) -> int:
    """Return what a kernel reads of a value: of a table that it gathers from, no more than it gathers."""
    for node in operators:
        name = str(node.target).partition(".")[2]
        if name.startswith(_GATHERS) and node.all_input_nodes and value in values_read(node):
            return min(num_bytes, _result_bytes(node))
    return num_bytes


def _result_bytes(node: fx.Node) -> int:
    return sum(hint(tensor.numel()) * tensor.element_size() for tensor in _results(node))


def _results(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    if value is None:
        return [tensor for user in node.users if launch_of(user) is node for tensor in _results(user)]
    values = value if isinstance(value, tuple | list) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _dtype(operators: Sequence[fx.Node]) -> str:
    for node in operators:
        if class_of_operator(node.target) in ("matmul", "attention", "convolution"):
            tensors = [tensor for tensor in map(tensor_of, node.all_input_nodes) if tensor is not None]
            if tensors:
                return str(tensors[0].dtype).removeprefix("torch.")
    return "float32"


def _product_flops(node: fx.Node) -> float:
    """Count two operations for each element of the left operand and each column of the right one."""
    target = node.target
    if isinstance(target, OpOverload) and target._overloadpacket in flop_registry:
        return _registered_flops(node)
    name = str(target)
    operands = _tensors(node)[1:] if ".add" in name else _tensors(node)
    left, right = ([hint(size) for size in tensor.shape] for tensor in (operands + operands[-1:] * 2)[:2])
    if "linear" in name:
        right = right[::-1]
    if "grouped" in name and len(left) == 3 and len(right) == 2:
        left = left[1:]  # each column of the right operand is in one group
    columns = right[-1] if len(operands) > 1 and len(right) > 1 else 1
    return 2.0 * math.prod(left) * columns


def _registered_flops(node: fx.Node) -> float:
    assert isinstance(node.target, OpOverload)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda item: item.meta.get("val"))
    given = tree_map(_without_symbols, (args, kwargs, node.meta.get("val")))
    args, kwargs, result = given
    counted: Any = flop_registry[node.target._overloadpacket](*args, **kwargs, out_val=result)
    return float(counted)


def _without_symbols(value: object) -> object:
    """Return the shape of a tensor, or a size, as plain numbers: nothing may branch on a symbolic one."""
    if isinstance(value, torch.Tensor):
        return tuple(hint(size) for size in value.shape)
    return hint(value) if isinstance(value, torch.SymInt) else value


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """Return the tensors among the positional arguments, one as often as it is given."""
    found = [tensor_of(argument) for argument in node.args if isinstance(argument, fx.Node)]
    return [tensor for tensor in found if tensor is not None]


def _attention_flops(node: fx.Node, is_backward: bool) -> float:
    """Count the products over ``[batch, heads, queries, keys]``, half of them where attention is causal.

    Forward makes one product over the dimension of queries and keys and one over that of values, backward three and
    two: it computes the scores again.
    """
    query, key, value = _attention_operands(node, is_backward)
    sequence = -3 if str(node.target).startswith(_HEADS_NEXT_TO_LAST) else -2
    num_scores = math.prod(hint(size) for size in query.shape[:-1]) * hint(key.shape[sequence])
    dim, value_dim = hint(query.shape[-1]), hint(value.shape[-1])
    flops = 2.0 * num_scores * (3 * dim + 2 * value_dim if is_backward else dim + value_dim)
    return flops / 2 if _is_causal(node) else flops


def _attention_operands(node: fx.Node, is_backward: bool) -> list[torch.Tensor]:
    """Return query, key and value, by name where the operator has such arguments."""
    tensors = _tensors(node)
    if isinstance(node.target, OpOverload):
        names = [argument.name for argument in node.target._schema.arguments]
        if "query" in names:
            first = names.index("query")
            given = [argument for argument in node.args[first : first + 3] if isinstance(argument, fx.Node)]
            return [tensor for tensor in map(tensor_of, given) if tensor is not None]
        if is_backward:
            tensors = tensors[1:]
    return (tensors + tensors[-1:] * 3)[:3]


def _is_causal(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == "is_causal":
            given = node.args[index] if index < len(node.args) else node.kwargs.get("is_causal", False)
            return bool(given)
    return False
