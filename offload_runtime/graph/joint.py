"""A joint forward-backward graph, read: side, module, layer of every node, and the activations that a policy judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import fx

from offload_runtime.compiler import SavedActivation
from offload_runtime.graph.layers import LayerTable, tabulate_layers
from offload_runtime.graph.names import module_of_node
from offload_runtime.graph.operators import class_of_node, operator_name
from offload_runtime.graph.storages import Storage, find_storages, layout_of, tensor_of
from offload_runtime.patterns import Glob

__all__ = ["JointGraph", "ModelNames", "forward_activations", "origin_of", "read_joint_graph"]


_ORIGIN = "joint_node"  # survives the partitioner's copies, and is absent from the nodes that it makes itself


def origin_of(node: fx.Node) -> str | None:
    """Return the name of the joint graph's node that a partition's node is a copy of.

    Its own name does not tell: the partitioner gives free names to the random number states that it adds.
    """
    return node.meta.get(_ORIGIN)


@dataclass(frozen=True)
class ModelNames:
    """What a caller knows of the model that a graph came from.

    ``prefix`` is the module at the graph's root (empty: the model itself); ``modules`` are all module names of the
    model, or None where no model was given; ``partial`` says that the graph is one of several of a broken capture.
    """

    prefix: str = ""
    modules: tuple[str, ...] | None = None
    partial: bool = False


@dataclass(frozen=True)
class JointGraph:
    """One flat functional graph, forward then backward, with what every node belongs to.

    ``modules`` maps node names to normalised module names, ``forward`` holds the names of the forward nodes,
    ``parameters`` those of the placeholders that outlive the step (parameters and buffers), ``outputs`` the nodes
    returned to the caller.
    """

    module: fx.GraphModule
    forward: frozenset[str]
    modules: Mapping[str, str]
    layers: LayerTable
    parameters: frozenset[str]
    outputs: frozenset[str]
    mutated: frozenset[str] = frozenset()

    def layer_of(self, node: fx.Node) -> int | None:
        """Return the layer id of a node of this graph, or of a partition of it."""
        return self.layers.layer_of(self.modules.get(origin_of(node) or "", ""))

    def forward_nodes(self) -> list[fx.Node]:
        """Return the forward nodes in execution order, placeholders included."""
        return [node for node in self.module.graph.nodes if node.name in self.forward]


def read_joint_graph(
    module: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    static_input_indices: Sequence[int],
    layers_of: Sequence[Glob] | None = None,
    names: ModelNames = ModelNames(),
) -> JointGraph:
    """Read an AOTAutograd joint graph.

    ``num_fwd_outputs`` and ``static_input_indices`` are what AOTAutograd hands to a partitioner.
    """
    graph = module.graph
    for node in graph.nodes:
        node.meta[_ORIGIN] = node.name
    backward = _backward_nodes(graph)
    placeholders = [node for node in graph.find_nodes(op="placeholder") if node not in backward]
    parameters = {node.name for index, node in enumerate(placeholders) if index in set(static_input_indices)}
    modules = _name_modules(graph, backward, names)
    executed = [
        modules[node.name] for node in graph.nodes if node not in backward and node.op == "call_function"
    ]
    table = tabulate_layers(executed, layers_of, complete=not names.partial)
    if names.modules is not None and names.partial:
        table = tabulate_layers(names.modules, layers_of)
    results = graph.output_node().args[0]
    assert isinstance(results, (list, tuple))
    return JointGraph(
        module=module,
        forward=frozenset(node.name for node in graph.nodes if node not in backward and node.op != "output"),
        modules=MappingProxyType(modules),
        layers=table,
        parameters=frozenset(parameters),
        outputs=frozenset(node.name for node in results[:num_fwd_outputs] if isinstance(node, fx.Node)),
        mutated=_mutated_inputs(graph, placeholders),
    )


def _mutated_inputs(graph: fx.Graph, placeholders: Sequence[fx.Node]) -> frozenset[str]:
    """Return the inputs that the graph writes, or whose new values it returns, with everything that aliases them."""
    described = graph.output_node().meta.get("desc", ())
    rewritten = [
        description.mutated_input for description in described if hasattr(description, "mutated_input")
    ]
    storages = find_storages([node for node in graph.nodes if node.op != "output"])
    owner = {node: storage for storage in storages for node in storage.nodes}
    mutated: set[str] = set()
    for node in placeholders:
        storage = owner.get(node)
        written = storage is not None and len(storage.writes) > 1  # the first is its own arrival
        if written or any(node.meta.get("desc") == description for description in rewritten):
            mutated.update(alias.name for alias in storage.nodes) if storage is not None else mutated.add(
                node.name
            )
    return frozenset(mutated)


def _backward_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return what depends on a tangent, and what AOTAutograd marked as traced during backward."""
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        is_marked = node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")
        if is_tangent or is_marked or any(argument in backward for argument in node.all_input_nodes):
            backward.add(node)
    return backward


def _name_modules(graph: fx.Graph, backward: set[fx.Node], names: ModelNames) -> dict[str, str]:
    """Return the module of every operation.

    What the root module's own forward calls has a place in the source but no module; what has neither was made by a
    compiler, and follows its neighbours.
    """
    modules: dict[str, str] = {}
    previous = {True: names.prefix, False: names.prefix}
    for node in graph.nodes:
        side = node in backward
        if node.op == "call_function":
            own = module_of_node(node)
            if own is None and not side and node.meta.get("stack_trace"):
                own = ""
            if own is not None:
                previous[side] = ".".join(part for part in (names.prefix, own) if part)
        modules[node.name] = previous[side] if node.op == "call_function" else ""
    return modules


def forward_activations(joint: JointGraph) -> list[tuple[Storage, SavedActivation]]:
    """Return every storage that forward operations produce, with what a policy sees of it."""
    order = joint.forward_nodes()
    reached = _reached_layers(joint, order)
    return [(storage, _activation(joint, storage, reached)) for storage in find_storages(order)]


def _reached_layers(joint: JointGraph, order: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Return for each operation the layer it is in, or else the last layer that has begun before it.

    A model may add up its residual stream outside its layers: that belongs to the layer just done.
    """
    reached: dict[fx.Node, int] = {}
    begun: int | None = None
    for node in order:
        layer = joint.layer_of(node)
        if layer is not None:
            begun = layer if begun is None else max(begun, layer)
        if node.op == "call_function" and begun is not None:
            reached[node] = begun if layer is None else layer
    return reached


def _activation(joint: JointGraph, storage: Storage, reached: Mapping[fx.Node, int]) -> SavedActivation:
    writer = storage.writer
    tensor = tensor_of(writer)
    assert tensor is not None
    module = joint.modules.get(writer.name, "")
    layer = joint.layers.layer_of(module)
    return SavedActivation(
        name=writer.name,
        op=operator_name(writer),
        op_class=class_of_node(writer),
        module=module,
        layer=layer,
        num_layers=joint.layers.num_layers,
        num_bytes=storage.num_bytes,
        dtype=str(tensor.dtype).removeprefix("torch."),
        layout=layout_of(tensor),
        crosses_layer=_crosses_layer(storage, reached),
        layer_path=joint.layers.path_of(module),
    )


def _crosses_layer(storage: Storage, reached: Mapping[fx.Node, int]) -> bool:
    """Whether a forward operation of a later layer reads the storage, through any alias."""
    layer = reached.get(storage.writer)
    users = [user for node in storage.nodes for user in node.users]
    return layer is not None and any(reached.get(user, layer) > layer for user in users)
