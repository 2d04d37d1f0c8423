"""The classes of operators that a rule can name, and which names are operators at all. No torch.

What schemas and tags tell (views, pointwise operators, reductions, random numbers) is told by them, as
``traits``; the families that only a name tells are matched by the patterns below. The table of overloads,
with the class of each, is generated from torch by ``tools/generate_overloads.py``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

OP_CLASSES: dict[str, str] = {
    "matmul": "Matrix products: mm, addmm, bmm, linear, grouped and scaled products, recurrent cells.",
    "attention": "Outputs of scaled dot product and flex attention; rotated q and k are elementwise.",
    "convolution": "Convolutions, transposed ones included.",
    "norm": "Layer, RMS, group, batch and instance normalisation.",
    "activation": "Non-linearities: relu, gelu, silu, sigmoid, tanh, softmax.",
    "elementwise": "Pointwise arithmetic, casts, masks and constants.",
    "reduction": "Sums, means, maxima, scans, pooling.",
    "embedding": "Table look-ups by index: embedding, embedding_bag.",
    "routing": "Choices by value: topk, sort, and what else decides a mixture of experts.",
    "collective": "Communication between ranks, and its waits; never offloaded.",
    "random": "Operators that draw random numbers: dropout, rand, bernoulli.",
    "loss": "Losses: cross entropy, nll, mse, and the log-softmax before them.",
    "copy": "Data moved without arithmetic: clone, cat, index, gather, pad.",
    "view": "Aliases of another tensor's storage.",
    "other": "Whatever no other class claims.",
}

TRAITS = frozenset({"view", "pointwise", "reduction", "random"})
TABLE_NAMESPACES = ("aten", "prims")
OVERLOADS_FILE = Path(__file__).parent / "data" / "overloads.txt"

_COLLECTIVE_NAMESPACES = frozenset(
    {
        "_c10d_functional",
        "_c10d_functional_autograd",
        "c10d_functional",
        "c10d",
        "_dtensor",
        "symm_mem",
        "deepep",
        "hybridep",
    }
)
_COLLECTIVE_NAME = re.compile(
    r"(all_?reduce|all_?gather|reduce_scatter|all_?to_?all|wait_tensor|deep_?ep|hybrid_?ep|isend|irecv)"
)
# The names that tell a class, tried before traits: an attention operator is also random, a norm also a
# reduction.
_BY_NAME_FIRST: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (op_class, re.compile(pattern))
    for op_class, pattern in (
        ("loss", r"(_loss|^_?log_softmax|^kl_div|binary_cross_entropy|cross_entropy)"),
        ("embedding", r"(^|_)embedding"),
        (
            "attention",
            r"(scaled_dot_product|attention|(^|_)flex_attn|(^|_)flash_attn|multi_head|transformer_encoder)",
        ),
        ("convolution", r"((^|_)conv(olution|[123]d|_|$)|conv_transpose|conv_tbc)"),
        ("norm", r"(layer|rms|group|batch|instance|weight|response)_?norm"),
        (
            "routing",
            r"^(topk|sort|argsort|msort|kthvalue|mode|unique|_unique2|nonzero|searchsorted|histc|bincount)",
        ),
        (
            "matmul",
            r"(^|_)(mm|matmul|bmm|addmm|addbmm|baddbmm|linear|bilinear|trilinear|mv|addmv|dot|vdot|addr|ger|outer"
            r"|tensordot|chain_matmul)(_|$)|(^|_)(lstm|gru|rnn)(_|$)|rnn_(tanh|relu)",
        ),
    )
)
# Views whose schema does not say so, because autograd must not see them as such.
_UNSAFE_VIEW = re.compile(r"^(_unsafe_view|unsafe_split\w*|unsafe_chunk|_reshape_alias)$")
_ACTIVATION = re.compile(
    r"^_?(safe_)?(relu6?|leaky_relu|gelu|silu|mish|elu|celu|selu|sigmoid|log_sigmoid|hardsigmoid|hardswish|hardtanh"
    r"|tanh|softplus|softshrink|hardshrink|threshold|prelu(_kernel)?|glu|softmax|sparse_softmax|masked_softmax"
    r"|fused_softmax)(_forward|_backward|_backward_data|_jvp)?_?$"
)
_COPY = re.compile(
    r"^_?(clone|copy|cat|concat|stack|hstack|vstack|dstack|column_stack|block_diag|index|index_(select|put|copy|add|fill)"
    r"|unsafe_(index|masked_index)\w*|reshape|\w*flatten\w*|diag\w*|kron|vander|chunk_cat|lazy_clone|gather|scatter\w*|take\w*|put|masked_(select|scatter)|\w*_scatter|slice_\w+|repeat\w*|tile"
    r"|roll|flip\w*|rot90|\w*pad\w*|\w*_copy|resize\w*|contiguous|im2col|col2im|pixel_(un)?shuffle|channel_shuffle"
    r"|native_channel_shuffle|one_hot|lift\w*|meshgrid|combinations|tril_indices|triu_indices|to_sparse\w*|to_dense"
    r"|copy_to|device_put|collapse\w*|concatenate|as_strided\w*|new_\w*copy|pin_memory|select_backward|unfold_backward"
    r"|diagonal_backward|trace_backward|value_selecting_\w+|rev|upsample_nearest\w*)_?$"
)
_ELEMENTWISE = re.compile(
    r"^_?(to_copy|to|type_as|convert_element_type|maximum_value|where|masked_fill|fill|zero|zeros\w*|ones\w*|full\w*"
    r"|empty\w*|arange|range|linspace|logspace|eye|iota|scalar_tensor|new_(zeros|ones|full|empty)\w*|triu|tril"
    r"|cartesian\w*|bucketize|isin|grid_sampler\w*|upsample\w*|affine_grid\w*|interpolate|complex|polar|cross|lerp"
    r"|clamp\w*|fma|inductor_\w+|assert\w*|foreach_\w+|autocast\w*|cast_\w+|masked_scale|add_relu|_\w+__"
    r"|arc\w+|absolute|negative|subtract|multiply|(true_|floor_)?divide|rsub|less\w*|greater\w*|not_equal|is(close|real)"
    r"|(de)?quantize\w*|fake_quant\w*|bessel_\w+|spherical_bessel\w*|erf\w*|cbrt|ndtri|zeta|shift_\w+|isfinite"
    r"|minimum_value|frexp|nan_to_num|\w+_window)_?$"
)
_REDUCTION = re.compile(
    r"^_?(sum\w*|mean|amax|amin|aminmax|max|min|prod|var\w*|std\w*|any|all|argmax|argmin|count_nonzero|logsumexp|norm"
    r"|\w+_norm|cum\w+|logcumsumexp|nansum|nanmean|median|nanmedian|quantile|nanquantile|\w*pool\w*|trace|dist|cdist\w*"
    r"|pdist\w*|renorm|segment_reduce\w*|scan|histogram\w*|xor_sum|fractional_max_\w+|cosine_similarity|pairwise_distance"
    r"|logdet|diff|trapz|trapezoid)(_backward|_forward)?_?$"
)


def op_class_of(name: str, traits: frozenset[str] = frozenset()) -> str:
    """Return the class of the operator ``name`` (``aten.mm.default``; the overload may be left out).

    ``traits`` are what its schema and tags say: ``view`` (returns an alias, writes nothing), ``pointwise``,
    ``reduction``, ``random``. Backward operators have the class of their forward.
    """
    namespace, _, rest = name.partition(".")
    stem = rest.split(".")[0]
    if namespace in _COLLECTIVE_NAMESPACES or _COLLECTIVE_NAME.search(stem):
        return "collective"
    for op_class, pattern in _BY_NAME_FIRST:
        if pattern.search(stem) and not (op_class == "norm" and stem.startswith("linalg_")):
            return op_class
    if "random" in traits or re.search(
        r"dropout|^rand|^bernoulli|^multinomial|^rrelu|philox|inductor_random", stem
    ):
        return "random"
    if "view" in traits or _UNSAFE_VIEW.match(stem):
        return "view"
    return _class_of_the_rest(stem, traits)


def overload_classes() -> dict[str, str]:
    """Return every overload of the supported torch versions (``aten.mm.default``), with its class."""
    return {name: op_class for name, (op_class, _) in overload_table().items()}


@lru_cache(maxsize=1)
def overload_table() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the generated table: overload name to its class and the torch versions that have it."""
    lines = OVERLOADS_FILE.read_text("utf-8").splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {name: (op_class, tuple(versions)) for name, op_class, *versions in rows}


def class_of_overload(name: str) -> str:
    """Return the class of ``name``: the table's, else what the name alone tells."""
    namespace = name.partition(".")[0]
    if namespace in TABLE_NAMESPACES and name in overload_table():
        return overload_table()[name][0]
    return op_class_of(name)


def _class_of_the_rest(stem: str, traits: frozenset[str]) -> str:
    if _ACTIVATION.match(stem):
        return "activation"
    if _ELEMENTWISE.match(stem):
        return "elementwise"
    if _COPY.match(stem):
        return "copy"
    if "pointwise" in traits:
        return "elementwise"
    if "reduction" in traits or _REDUCTION.match(stem):
        return "reduction"
    return "other"
