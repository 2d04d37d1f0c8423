import operator

import pytest
import torch
from torch import fx

from offload_runtime.graph.operators import class_of_node, is_collective, is_random, is_view, operator_name
from offload_runtime.op_classes import OP_CLASSES

CLASSES = {
    "matmul": "mm.default bmm.default addmm.default baddbmm.default mv.default linear.default "
    "_scaled_mm.default _grouped_mm.default matmul.default",
    "attention": "_scaled_dot_product_flash_attention.default _scaled_dot_product_efficient_attention.default "
    "_scaled_dot_product_cudnn_attention.default "
    "_scaled_dot_product_flash_attention_for_cpu.default scaled_dot_product_attention.default",
    "convolution": "convolution.default conv2d.default convolution_backward.default",
    "norm": "native_layer_norm.default native_batch_norm.default native_group_norm.default "
    "_fused_rms_norm.default _native_batch_norm_legit.default",
    "activation": "relu.default gelu.default silu.default sigmoid.default tanh.default _softmax.default "
    "elu.default leaky_relu.default hardswish.default",
    "elementwise": "mul.Tensor add.Tensor sub.Tensor div.Tensor sin.default rsqrt.default where.self "
    "pow.Tensor_Scalar maximum.default full.default arange.default bitwise_and.Tensor",
    "reduction": "sum.dim_IntList mean.dim amax.default var_mean.correction cumsum.default max.dim "
    "argmax.default max_pool2d_with_indices.default",
    "embedding": "embedding.default _embedding_bag.default",
    "routing": "topk.default sort.default argsort.default",
    "random": "native_dropout.default rand_like.default bernoulli.default",
    "loss": "nll_loss_forward.default mse_loss.default binary_cross_entropy_with_logits.default",
    "copy": "clone.default cat.default index.Tensor gather.default scatter.src slice_scatter.default "
    "constant_pad_nd.default index_put.default roll.default",
    "view": "view.default t.default transpose.int permute.default expand.default slice.Tensor select.int "
    "split.Tensor unbind.int as_strided.default _unsafe_view.default detach.default "
    "diagonal.default",
}


def _aten(name: str) -> torch._ops.OpOverload:
    packet, overload = name.split(".")
    found = getattr(getattr(torch.ops.aten, packet), overload)
    assert isinstance(found, torch._ops.OpOverload)
    return found


def _node(target: object, *args: object) -> fx.Node:
    return fx.Graph().call_function(target, args)  # type: ignore[arg-type]  # any callable is a target


@pytest.mark.parametrize(
    ("name", "op_class"), [(name, op_class) for op_class, names in CLASSES.items() for name in names.split()]
)
def test_an_operator_has_the_class_that_people_expect(name: str, op_class: str) -> None:
    assert class_of_node(_node(_aten(name))) == op_class


def test_the_table_above_holds_every_class_that_torch_alone_can_show() -> None:
    assert set(CLASSES) == set(OP_CLASSES) - {"collective", "other"}


@pytest.mark.parametrize("name", ["flex_attention", "flex_attention_backward"])
def test_flex_attention_is_attention(name: str) -> None:
    node = _node(getattr(torch.ops.higher_order, name))
    assert class_of_node(node) == "attention"
    assert operator_name(node) == f"higher_order.{name}"


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_into_tensor", "wait_tensor"])
def test_collectives_and_their_waits_are_one_class(name: str) -> None:
    target = getattr(torch.ops._c10d_functional, name).default
    assert class_of_node(_node(target)) == "collective"
    assert is_collective(target)


def test_an_output_of_a_tuple_has_the_operator_of_its_producer() -> None:
    graph = fx.Graph()
    producer = graph.call_function(torch.ops.aten.topk.default, (graph.placeholder("x"), 2))
    value = graph.call_function(operator.getitem, (producer, 0))
    assert operator_name(value) == "aten.topk.default"
    assert class_of_node(value) == "routing"


def test_a_decomposed_node_answers_for_the_operator_that_the_model_called() -> None:
    node = _node(torch.ops.aten.var_mean.correction)
    node.meta["original_aten"] = torch.ops.aten.native_layer_norm.default
    assert class_of_node(node) == "norm"
    assert operator_name(node) == "aten.native_layer_norm.default"


def test_a_python_function_is_other() -> None:
    assert class_of_node(_node(len)) == "other"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("view.default", True),
        ("split.Tensor", True),
        ("_unsafe_view.default", True),
        ("clone.default", False),
        ("relu_.default", False),
    ],
)
def test_a_view_returns_an_alias_that_it_does_not_write(name: str, expected: bool) -> None:
    assert is_view(_aten(name)) is expected


@pytest.mark.parametrize(("name", "expected"), [("rand_like.default", True), ("mul.Tensor", False)])
def test_random_operators_are_known_by_their_tag(name: str, expected: bool) -> None:
    assert is_random(_aten(name)) is expected
