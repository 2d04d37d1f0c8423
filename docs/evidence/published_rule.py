"""The published rule for what to offload, written down again from its description, to be counted on our own graphs.

Source: torchtitan's graph trainer, ``memory_policy.py`` (which values selective checkpointing marks as saved) and
``cpu_offload.py`` (which of those are moved), as the article describes them. It works on single values of the joint
graph, before recomputation is laid out:

    forward node -> marked as saved? -> a candidate? -> read by backward, itself or through views?

Nothing of it is in the product, which works on storages of the partitioned graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx
from torch._functorch.partitioners import get_default_op_list
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask

from offload_runtime.graph.joint import JointGraph
from offload_runtime.graph.operators import is_collective
from offload_runtime.graph.storages import layout_of, tensor_bytes, tensor_of

MIN_BYTES = 4096
_aten = torch.ops.aten
_VIEWS = frozenset(
    {_aten.t, _aten.transpose, _aten.view, _aten._unsafe_view, _aten.reshape, _aten.unsqueeze, _aten.squeeze}
    | {_aten.slice, _aten.select, _aten.expand, _aten.permute, _aten.as_strided, _aten.alias, _aten.split}
    | {_aten.narrow, _aten.unfold, _aten.detach}
)
_SAVED = (
    frozenset(get_default_op_list().compute_intensive_ops)
    | {_aten._scaled_dot_product_cudnn_attention, _aten._scaled_dot_product_attention_math}
    | {_aten._scaled_dot_product_fused_attention_overrideable, _aten.max, _aten.linear, _aten.topk}
)


@dataclass(frozen=True)
class PublishedRule:
    """What the published rule makes of one joint graph: names of the values it marks, and of those that it moves."""

    joint: JointGraph
    saved: frozenset[str]
    marked: frozenset[str]
    moved: frozenset[str]
    moved_without_views: frozenset[str]

    @classmethod
    def of(cls, joint: JointGraph) -> PublishedRule:
        """Apply the rule, with no budget."""
        nodes = [node for node in joint.forward_nodes() if node.op == "call_function"]
        saved = _saved_nodes(joint, nodes)
        marked = [
            node for node in nodes if node in saved and _obstacle(node) is None and in_layers(joint, node)
        ]
        return cls(
            joint,
            saved=frozenset(node.name for node in saved),
            marked=frozenset(node.name for node in marked),
            moved=frozenset(node.name for node in marked if _has_backward_reader(joint, with_views(node))),
            moved_without_views=frozenset(
                node.name for node in marked if _has_backward_reader(joint, [node])
            ),
        )

    def reads_before_recompute(self, node: fx.Node) -> bool:
        """Whether backward reads a value, itself or through views, before anything is recomputed in it."""
        return _has_backward_reader(self.joint, with_views(node))


def in_layers(joint: JointGraph, node: fx.Node) -> bool:
    """Whether a node belongs to a layer that is not the last one."""
    layer, num_layers = joint.layer_of(node), joint.layers.num_layers
    return layer is not None and num_layers is not None and layer < num_layers - 1


def is_view(node: fx.Node) -> bool:
    """Whether the published list of views names the operator; a piece of a split (``getitem``) it does not know."""
    return getattr(node.target, "overloadpacket", None) in _VIEWS


def with_views(node: fx.Node) -> Iterator[fx.Node]:
    """Return a node and the views that can be reached from it through views alone."""
    yield node
    for user in node.users:
        if is_view(user):
            yield from with_views(user)


def _saved_nodes(joint: JointGraph, nodes: list[fx.Node]) -> set[fx.Node]:
    """Mark the operators of the list with what unpacks them, then what a later layer reads."""
    saved: set[fx.Node] = set()
    for node in nodes:
        parent = node.args[0] if node.target is operator.getitem else None
        if parent in saved or getattr(node.target, "overloadpacket", None) in _SAVED:
            saved.add(node)
    recomputed = [node for node in nodes if node not in saved]
    return saved | {node for node in recomputed if _crosses(joint, node, saved)}


def _crosses(joint: JointGraph, node: fx.Node, saved: set[fx.Node]) -> bool:
    """Whether a recomputed forward operation of a later layer reads the value."""
    layer = joint.layer_of(node)
    return layer is not None and any(
        (reader := joint.layer_of(user)) is not None and reader > layer
        for user in node.users
        if user.name in joint.forward and user not in saved
    )


def _has_backward_reader(joint: JointGraph, nodes: Iterable[fx.Node]) -> bool:
    return any(
        user.op == "call_function" and user.name not in joint.forward for node in nodes for user in node.users
    )


def _obstacle(node: fx.Node) -> str | None:
    """Say why a value is no candidate of the published rule, or return None."""
    tensor = tensor_of(node)
    if node.op != "call_function" or tensor is None:
        return "not the tensor of an operator"
    if is_view(node):
        return "a view"
    if is_collective(node.target):
        return "a collective"
    if layout_of(tensor) != "contiguous":
        return "not contiguous"
    if tensor_bytes(tensor) < MIN_BYTES:
        return f"under {MIN_BYTES} bytes"
    return None


@dataclass(frozen=True)
class Outputs:
    """Of the results of one operator: how many the published rule marks, and how many of those it moves."""

    num_marked: int
    num_moved: int


def attention_as_published(num_heads: int, qk_dim: int, v_dim: int, seq: int = 256) -> Outputs:
    """Trace flex attention as the published DeepSeek-V3 calls it, and count its results under the rule.

    Queries, keys and values are ``[batch, seq, heads, dim]`` and reach attention transposed, so that its result is not
    contiguous. The trace keeps dead code, as the published one does.
    """
    mask = create_block_mask(
        lambda batch, head, q, kv: q >= kv, None, None, seq, seq, device="cpu"
    ).as_tuple()

    def gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads_first = (tensor.transpose(1, 2) for tensor in inputs)
        options = {"OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False, "WRITE_DQ": True}
        results = torch.ops.higher_order.flex_attention(
            *heads_first, _unchanged, mask, qk_dim**-0.5, options, (), ()
        )
        return torch.autograd.grad(results[0].float().sum(), inputs)

    with FakeTensorMode(allow_non_fake_inputs=True):
        shapes = [(1, seq, num_heads, dim) for dim in (qk_dim, qk_dim, v_dim)]
        inputs = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        graph = make_fx(gradients)(*inputs).graph
    (call,) = [node for node in graph.nodes if str(node.target) == "flex_attention"]
    marked = [node for node in call.users if _obstacle(node) is None]
    moved = [node for node in marked if any(_reads_backward(value) for value in with_views(node))]
    return Outputs(len(marked), len(moved))


def topk_as_published() -> int:
    """Count the results of a top-k, of which the model uses the indices alone, that a trace with dead code holds."""
    with FakeTensorMode():
        scores = torch.empty(4096, 64)
        graph = make_fx(lambda x: torch.topk(x, 6, dim=-1, sorted=False).indices)(scores).graph
    return sum(node.target is operator.getitem and _obstacle(node) is None for node in graph.nodes)


def _unchanged(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
    return score


def _reads_backward(node: fx.Node) -> bool:
    return any("flex_attention_backward" in str(user.target) for user in node.users)
