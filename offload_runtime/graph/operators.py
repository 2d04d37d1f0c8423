"""Operator classes, derived from what operators say of themselves: schemas, tags, the FLOP registry, names.

A policy's ``op: matmul`` means the same in every mode: under Inductor the graph arrives decomposed, so the class
goes by ``node.meta["original_aten"]``, the operator that the model called.
"""

from __future__ import annotations

import operator
import re
from functools import cache

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.flop_counter import flop_registry

from offload_runtime.op_classes import COLLECTIVE_NAME, COLLECTIVE_NAMESPACES

__all__ = [
    "class_of_node",
    "class_of_operator",
    "is_collective",
    "is_random",
    "is_view",
    "operator_name",
    "operator_of",
]

_ATTENTION = re.compile(
    r"scaled_dot_product|flex_attention|_attention_forward|(^|[._])(flash|sdpa|efficient)_?attn|attention"
)
_CONVOLUTION = re.compile(r"(^|_)conv(olution|\d|_transpose|_depthwise|_tbc)")
_MATMUL = re.compile(
    r"^(_?(scaled_|grouped_|int_|scaled_grouped_|weight_int\w*_|sparse_\w*)?(mm|bmm)\w*|addmm\w*|_addmm_activation|addbmm|baddbmm"
    r"|matmul|linear|_mkl_linear|mv|addmv|dot|vdot|einsum|bilinear|_trilinear|\w*lstm\w*|\w*gru\w*|\w*rnn\w*|lstm_mps)$"
)
_NORM = re.compile(r"(^|_)(layer|batch|group|instance|rms|local_response|weight)_norm")
_EMBEDDING = re.compile(r"embedding")
_ROUTING = re.compile(
    r"^(topk|sort|argsort|msort|kthvalue|histc|bincount|nonzero\w*|searchsorted|bucketize|unique\w*)$"
)
_LOSS = re.compile(r"loss|cross_entropy|^kl_div$")
_NAMED = ((_LOSS, "loss"), (_NORM, "norm"), (_EMBEDDING, "embedding"), (_ROUTING, "routing"))
_ACTIVATION = re.compile(
    r"^_?(relu6?|leaky_relu|r?relu_with_noise|prelu_kernel|prelu|elu|selu|celu|gelu|silu|mish|hardtanh|hardsigmoid|hardswish"
    r"|sigmoid|log_sigmoid_forward|log_sigmoid|tanh|softplus|softshrink|hardshrink|tanhshrink|threshold|glu"
    r"|(log_|safe_)?softmax|softmin)_?$"
)
_COPY = re.compile(
    r"^_?(clone|unsafe_index\w*|unsafe_masked_index\w*|to_copy|copy|contiguous|cat|stack|index\w*|gather|take\w*|scatter\w*|\w*_scatter|slice_scatter|masked_\w+|put|roll"
    r"|flip|repeat\w*|tile|tril|triu|constant_pad_nd|\w*_pad\dd|pad\w*|upsample_\w+|pixel_\w+shuffle|im2col|col2im|unfold_copy"
    r"|lift_fresh_copy|\w*_copy|device_put|convert_element_type|resize\w*|grid_sampler\w*|rot90|kron|meshgrid|\w*shuffle|diag_embed|block_diag|one_hot)$"
)
_REDUCTION = re.compile(
    r"^_?(sum|mean|prod|amax|amin|max|min|aminmax|argmax|argmin|var|std|var_mean|std_mean|any|all|norm|linalg_vector_norm"
    r"|logsumexp|logcumsumexp|cumsum|cumprod|cummax|cummin|median|nanmedian|mode|count_nonzero|nansum"
    r"|\w*max_pool\w*|\w*avg_pool\w*|\w*lp_pool\w*|\w*fractional_max_pool\w*)$"
)
_ELEMENTWISE = re.compile(
    r"^(rsub|subtract|multiply|true_divide|divide|floor_divide|greater\w*|less\w*|not_equal|negative|absolute|fix|polar|complex|isin|lerp|and|or|xor|arc\w+)$"
)
_FACTORY = re.compile(
    r"^(arange|iota|full\w*|zeros\w*|ones\w*|empty\w*|new_\w+|eye|linspace|scalar_tensor|tril_indices|triu_indices|fill|lift_fresh)$"
)


def operator_of(node: fx.Node) -> object:
    """Return the operator that the model called: the original of a decomposed node, the producer of a ``getitem``."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    original = node.meta.get("original_aten")
    return original if isinstance(original, (OpOverload, HigherOrderOperator)) else node.target


def operator_name(node: fx.Node) -> str:
    """Return the overload's name as policies write it: ``aten.mm.default``, ``flex_attention``."""
    target = operator_of(node)
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return getattr(target, "__name__", str(target))


def class_of_node(node: fx.Node) -> str:
    """Return the operator class of a node: one of the names that ``offload list op-classes`` prints."""
    return class_of_operator(operator_of(node))


def class_of_operator(target: object) -> str:
    """Return the operator class of an overload or a higher-order operator; ``other`` for anything else."""
    return _class_of(target) if isinstance(target, (OpOverload, HigherOrderOperator)) else "other"


@cache
def _class_of(target: OpOverload | HigherOrderOperator) -> str:
    if isinstance(target, HigherOrderOperator):
        return "attention" if _ATTENTION.search(target.name()) else "other"
    name = target._schema.name.partition("::")[2]
    name = name.removesuffix("_") if not name.endswith("__") else name.strip("_")
    if is_collective(target):
        return "collective"
    if _ATTENTION.search(name):
        return "attention"
    if _CONVOLUTION.search(name):
        return "convolution"
    if target._overloadpacket in flop_registry or _MATMUL.match(name):
        return "matmul"
    for pattern, name_of_class in _NAMED:
        if pattern.search(name):
            return name_of_class
    if is_random(target):
        return "random"
    if is_view(target):
        return "view"
    if _ACTIVATION.match(name):
        return "activation"
    if torch.Tag.reduction in target.tags or _REDUCTION.match(name):
        return "reduction"
    if _COPY.match(name):
        return "copy"
    if (
        torch.Tag.pointwise in target.tags
        or _ELEMENTWISE.match(name)
        or _FACTORY.match(name)
        or _is_elementwise_prim(target)
    ):
        return "elementwise"
    return "other"


def is_collective(target: object) -> bool:
    """Say whether an operator talks to other ranks (or waits for one that does); never offloaded."""
    return isinstance(target, OpOverload) and _is_collective(target)


@cache
def _is_collective(target: OpOverload) -> bool:
    return target.namespace in COLLECTIVE_NAMESPACES or bool(COLLECTIVE_NAME.search(target.name()))


def is_random(target: object) -> bool:
    """Say whether an operator draws from a random number generator (by tag, or Inductor's seed primitives)."""
    return isinstance(target, OpOverload) and _is_random(target)


@cache
def _is_random(target: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags or target.name() in (
        "prims::inductor_seed",
        "prims::inductor_seeds",
        "prims::inductor_random",
        "prims::inductor_randint",
    )


def is_view(target: object) -> bool:
    """Say whether an operator returns an alias of an argument that it does not write (by schema)."""
    return isinstance(target, OpOverload) and _is_view(target)


@cache
def _is_view(target: OpOverload) -> bool:
    returns = target._schema.returns
    if any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in target._schema.arguments
    ):
        return False
    # _unsafe_view promises in words, not in its schema, that nobody else holds its input.
    return target.name() in ("aten::_unsafe_view", "aten::_reshape_alias") or any(
        value.alias_info is not None for value in returns
    )


def _is_elementwise_prim(target: OpOverload) -> bool:
    return target.namespace == "prims" and len(target._schema.returns) == 1
