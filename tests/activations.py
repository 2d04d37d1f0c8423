"""Saved activations for tests, and random ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from offload_runtime.compiler import SavedActivation

MM = SavedActivation(
    name="mm",
    op="aten.mm.default",
    op_class="matmul",
    module="layers.0.attention.wq",
    layer=0,
    num_layers=4,
    num_bytes=1 << 20,
    dtype="bfloat16",
    layout="contiguous",
    layer_path="layers.0",
)


def activation(**changes: Any) -> SavedActivation:
    """Return a matmul output in layer 0 of 4, with changes."""
    return replace(MM, **changes)


def in_layer(
    layer: int, num_layers: int = 4, module: str = "attention.wq", **changes: Any
) -> SavedActivation:
    """Return an activation of ``layers.LAYER.MODULE``."""
    path = f"layers.{layer}"
    return activation(
        name=f"mm_{layer}",
        module=f"{path}.{module}",
        layer=layer,
        num_layers=num_layers,
        layer_path=path,
        **changes,
    )


OPS = st.sampled_from(
    [
        ("aten.mm.default", "matmul"),
        ("aten.add.Tensor", "elementwise"),
        ("aten.topk.default", "routing"),
        ("my.op.default", "other"),
    ]
)


@st.composite
def activations(draw: st.DrawFn) -> SavedActivation:
    """Draw an activation, inside or outside of a layer."""
    op, op_class = draw(OPS)
    num_layers = draw(st.integers(1, 6))
    layer = draw(st.none() | st.integers(0, num_layers - 1))
    inner = draw(st.sampled_from(["attention.wq", "mlp", "attention", "a.b", ""]))
    path = None if layer is None else f"layers.{layer}"
    return SavedActivation(
        name="x",
        op=op,
        op_class=op_class,
        module=".".join(part for part in (path, inner) if part),
        layer=layer,
        num_layers=num_layers,
        num_bytes=draw(st.sampled_from([0, 4095, 4096, 10**6, 2**20, 2**30])),
        dtype=draw(st.sampled_from(["bfloat16", "float32"])),
        layout=draw(st.sampled_from(["contiguous", "dense", "strided"])),
        crosses_layer=draw(st.booleans()),
        layer_path=path,
    )
