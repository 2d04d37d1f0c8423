"""The types of what a norm on the CPU returns for mixed types, which torch traces otherwise than it computes.

Given 16-bit values and float32 weights, as under autocast, the kernels return mean and reciprocal deviation in float32
(``ATen/native/cpu/mixed_data_type.h::param_scalar_type``); torch's references trace them in the type of the values.
Backward saves both, so that plans would count half of their bytes. Found in torch 2.11 and 2.13. On CUDA the kernels
return float32, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from offload_runtime.graph.storages import tensor_of

__all__ = ["correct_norm_statistics"]

aten = torch.ops.aten
_NORMS = frozenset(
    {
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
    }
)
_STATISTICS = (1, 2)
_HALVES = (torch.bfloat16, torch.float16)


def correct_norm_statistics(gm: fx.GraphModule) -> None:
    """Give mean and reciprocal deviation of mixed-type norms, and what only passes them on, the type that they have."""
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _NORMS and _is_mixed(node):
            for statistic in _statistics_of(node):
                _correct(statistic)


def _is_mixed(norm: fx.Node) -> bool:
    types = [tensor.dtype for tensor in map(tensor_of, norm.all_input_nodes) if tensor is not None]
    return bool(types) and types[0] in _HALVES and torch.float32 in types[1:]


def _statistics_of(norm: fx.Node) -> Iterator[fx.Node]:
    for user in norm.users:
        if user.target is operator.getitem and user.args[1] in _STATISTICS:
            yield user


def _correct(node: fx.Node) -> None:
    tensor = tensor_of(node)
    if tensor is None or tensor.dtype not in _HALVES:
        return
    with tensor.fake_mode:  # type: ignore[attr-defined]  # what is traced is a fake tensor
        node.meta["val"] = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=torch.float32, device=tensor.device
        )
    for user in node.users:
        if user.target is aten.detach.default:
            _correct(user)
