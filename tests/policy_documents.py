"""Random policy documents for the tests that hold schema, reader and typed model together."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Values that are wrong in most places, and right by chance in some.
ODD = st.one_of(
    st.sampled_from(
        [
            "",
            "x",
            "offload",
            "save",
            "auto",
            "5GiB",
            "5",
            "0B",
            "5%",
            "unlimited",
            "host",
            "matmul",
            ":8",
            "8GiB\n",
        ]
    ),
    st.sampled_from([0, 1, -1, 3, 2.0, 2.5, 1e9, True, False]),
    st.just([]),
    st.just({}),
    st.just(["matmul"]),
    st.just({"min": "4KiB"}),
)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw from ``right``, once in a while from the odd values."""
    return st.integers(0, 99).flatmap(lambda n: ODD if n == 99 else right)


def mapping(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a mapping with some of the keys, the first nearly always, rarely one that does not exist."""
    values = {key: mostly(value) for key, value in keys.items()}
    needed = {key: values[key] for key in tuple(values)[:1]}
    whole = st.fixed_dictionaries(needed, optional={k: v for k, v in values.items() if k not in needed})
    partial = st.fixed_dictionaries({}, optional=values)
    kinds = {98: partial, 99: whole.map(lambda data: data | {"surplus": 1})}
    return st.integers(0, 99).flatmap(lambda n: kinds.get(n, whole))


def one_or_list(values: list[Any]) -> st.SearchStrategy[Any]:
    one = st.sampled_from(values)
    return one | st.lists(one, min_size=1, max_size=3)


SIZES = st.sampled_from(["0B", "4KiB", "1.5GiB", "10GB", "3 MiB", "1TB"])
ACTIONS = st.sampled_from(["save", "recompute", "offload", "auto"])
LAYERS = one_or_list([0, -1, 3, ":8", "-4:", "25%:75%", "::2", "outside", "1:3", "2:4"])
GLOBS = one_or_list(["**", "*", "a.b", "**.attention.**", "layers.*.wq", "a*b.c"])
MODULES = one_or_list(["**", "a.b", "inside:attention.*", "inside:**", "layers.*.mlp"])
OPS = one_or_list(
    ["matmul", "attention", "routing", "collective", "aten.mm.default", "aten.add.Tensor", "my.op.default"]
)
SIZE_RANGES = mapping(min=SIZES, max=SIZES)
COUNT_RANGES = mapping(min=st.integers(0, 3), max=st.integers(3, 9))
FLAGS = st.booleans()

MATCHES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    mapping(
        op=OPS,
        layers=LAYERS,
        module=MODULES,
        inside=GLOBS,
        bytes=SIZE_RANGES,
        layout=st.sampled_from(["contiguous", "dense", "any"]),
        dtype=one_or_list(["bfloat16", "float32"]),
    ),
    lambda inner: st.tuples(inner, inner).map(lambda pair: pair[0] | {"not": pair[1]}),
    max_leaves=2,
)
COMPARISONS = st.tuples(
    st.sampled_from(["pipeline_parallel", "gpu_free_bytes", "cuda_graphs"]),
    st.sampled_from([("is", "x"), ("is", True), ("lt", 3), ("le", "8GiB"), ("ge", 0.5), ("in", ["a", 1])]),
).map(lambda pair: {"fact": pair[0], pair[1][0]: pair[1][1]})
PREDICATES: st.SearchStrategy[Any] = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"all": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"any": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=3,
)
RULES = st.fixed_dictionaries(
    {"name": mostly(st.sampled_from(list("abcdefgh"))), "match": MATCHES, "action": mostly(ACTIONS)},
    optional={
        "must": FLAGS,
        "optional": FLAGS,
        "tier": mostly(st.just("host")),
        "expect": mapping(matches=COUNT_RANGES, layers=COUNT_RANGES),
    },
)
DISTANCES = st.integers(0, 9) | st.just("auto")

POLICIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "apiVersion": mostly(st.just("offload/v1")),
        "kind": st.just("Policy"),
        "name": mostly(st.sampled_from(["example", "a-b.c_d"])),
        "activations": mapping(
            default=ACTIONS,
            layer_outputs=st.sampled_from(["save", "offload", "recompute"]),
            layers_of=st.just("auto") | st.lists(st.sampled_from(["a.*", "b.**"]), min_size=1, max_size=2),
            rules=st.lists(RULES, max_size=3),
        ),
    },
    optional={
        "limits": mapping(
            budget=SIZES | st.just("unlimited"),
            device_peak=SIZES | st.sampled_from(["unlimited", "auto"]),
            host=SIZES,
            step_overhead=st.sampled_from(["5%", "0%", "2.5%", "unlimited"]),
        ),
        "schedule": mapping(
            select=st.sampled_from(["largest_first", "planned"]),
            defer=DISTANCES,
            prefetch=DISTANCES,
            keep_last=st.integers(0, 4),
        ),
        "optimizer_state": mapping(
            offload_fraction=st.sampled_from([0, 0.5, 1]),
            overlap=FLAGS,
            step_device=st.sampled_from(["cpu", "gpu"]),
        ),
        "gradients": mapping(offload=FLAGS),
        "parameters": mapping(offload=FLAGS, layers=LAYERS, double_buffering=FLAGS),
        "requires": PREDICATES,
        "expect": mapping(moved=SIZE_RANGES),
    },
)
