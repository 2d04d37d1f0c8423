from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import default_partition

import offload_runtime as off
from offload_runtime.graph.joint import JointGraph, ModelNames, forward_activations, read_joint_graph
from offload_runtime.matching import SavedActivation

WHOLE_MODEL = ModelNames()


class Stack(nn.Module):
    """Two layers of a projection and a split gate, an embedding before them and a head behind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, -1)
        return x + value * torch.sigmoid(gate)


def _read(model: nn.Module, x: Tensor, names: ModelNames = WHOLE_MODEL) -> JointGraph:
    found: list[JointGraph] = []

    def partition(gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        found.append(
            read_joint_graph(
                gm,
                num_fwd_outputs=kwargs["num_fwd_outputs"],
                static_input_indices=kwargs["static_lifetime_input_indices"],
                names=names,
            )
        )
        return default_partition(gm, inputs, **kwargs)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)
    torch.compile(model, backend=backend)(x).sum().backward()
    return found[0]


@pytest.fixture(scope="module")
def joint() -> JointGraph:
    return _read(Stack(), torch.randn(4, 8))


@pytest.fixture(scope="module")
def activations(joint: JointGraph) -> list[SavedActivation]:
    return [activation for _, activation in forward_activations(joint)]


def test_every_forward_node_comes_before_every_backward_node_it_feeds(joint: JointGraph) -> None:
    for node in joint.module.graph.nodes:
        if node.name in joint.forward:
            assert all(argument.name in joint.forward for argument in node.all_input_nodes)


def test_tangents_are_backward_and_parameters_are_known(joint: JointGraph) -> None:
    placeholders = [node.name for node in joint.module.graph.find_nodes(op="placeholder")]
    assert not any("tangents" in name for name in joint.forward)
    assert len(joint.parameters) == 8
    assert joint.parameters < set(placeholders)


def test_layers_come_from_the_module_stack(joint: JointGraph) -> None:
    assert joint.layers.paths == ("layers.0", "layers.1")


def test_backward_nodes_belong_to_the_layer_of_their_forward(joint: JointGraph) -> None:
    backward = [
        node
        for node in joint.module.graph.nodes
        if node.op == "call_function" and node.name not in joint.forward and "mm" in node.name
    ]
    assert {joint.layer_of(node) for node in backward} == {None, 0, 1}


def test_pieces_of_a_projection_are_one_activation_of_the_projection(
    activations: list[SavedActivation],
) -> None:
    projections = [a for a in activations if a.module == "layers.0.proj" and a.op_class == "matmul"]
    assert [(a.num_bytes, a.layer, a.op) for a in projections] == [(4 * 16 * 4, 0, "aten.addmm.default")]
    assert not any(a.op_class == "view" for a in activations if a.module.startswith("layers"))


def test_what_a_later_layer_reads_crosses(activations: list[SavedActivation]) -> None:
    crossing = {(a.module, a.op_class) for a in activations if a.crosses_layer}
    assert ("layers.0", "elementwise") in crossing
    assert not any(module.startswith("layers.1") for module, _ in crossing)


def test_a_layer_knows_its_total_and_its_path(activations: list[SavedActivation]) -> None:
    inside = [a for a in activations if a.layer == 1]
    assert {a.num_layers for a in inside} == {2}
    assert {a.layer_path for a in inside} == {"layers.1"}


def test_a_graph_that_is_part_of_a_model_knows_no_total() -> None:
    joint = _read(Stack(), torch.randn(4, 8), ModelNames(partial=True))
    assert joint.layers.num_layers is None


def test_a_graph_below_the_root_gets_the_name_of_its_place() -> None:
    joint = _read(Layer(), torch.randn(4, 8), ModelNames(prefix="decoder.layers.3"))
    modules = {a.module for _, a in forward_activations(joint) if a.op_class == "matmul"}
    assert modules == {"decoder.layers.3.proj"}


class RootedBlocks(torch.nn.Module):
    """A model whose own forward calls operators between its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.sin(block(x))
        return x


def test_what_the_root_calls_itself_belongs_to_no_child() -> None:
    torch._dynamo.reset()
    policy = {"apiVersion": "offload/v1", "kind": "Policy", "name": "p", "activations": {"default": "save"}}
    compiled = torch.compile(RootedBlocks(), backend="offload", options={"policy": policy})
    compiled(torch.randn(4, 8)).sum().backward()
    modules = {
        (t.activation.op, t.activation.module, t.activation.layer)
        for t in off.report(compiled).tensors
        if t.rule
    }
    assert {(module, layer) for op, module, layer in modules if op == "aten.sin.default"} == {("", None)}
    assert {module for op, module, _ in modules if op == "aten.addmm.default"} == {"blocks.0", "blocks.1"}


class RootedResidual(torch.nn.Module):
    """A decoder that adds up its residual stream in its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + torch.sin(block(x))
        return x


def test_a_residual_stream_outside_the_layers_crosses_them() -> None:
    torch._dynamo.reset()
    activations = {"default": "recompute", "layer_outputs": "save"}
    policy = {"apiVersion": "offload/v1", "kind": "Policy", "name": "p", "activations": activations}
    compiled = torch.compile(RootedResidual(), backend="offload", options={"policy": policy})
    compiled(torch.randn(4, 8)).sum().backward()
    crossing = [t for t in off.report(compiled).tensors if t.activation.crosses_layer]
    assert {t.activation.op for t in crossing} == {"aten.add.Tensor"}
    assert {(t.fate, t.rule) for t in crossing} == {("save", "layer_outputs")}
    assert len(crossing) == 2
