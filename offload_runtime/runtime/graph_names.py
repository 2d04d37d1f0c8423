"""Where in its model a Dynamo graph stands, told by whose parameters it reads: the same for a capture and for a run.

Dynamo names a graph's modules from the frame that it compiles. Where it compiles a whole model that is the model; after
a graph break inside of a module, it is that module. The only module that names ``_dynamo_source``, present in torch
2.11 and 2.13; where it is missing, nothing is located.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from offload_runtime.graph.joint import ModelNames
from offload_runtime.graph.layers import layer_path
from offload_runtime.graph.names import normalise_fqn

__all__ = ["locate_graph"]


def locate_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], model: nn.Module | None, *, partial: bool
) -> ModelNames:
    """Return where in ``model`` a graph stands; ``partial`` says that it is one of several.

    Without ``model`` nothing is known but that.
    """
    if model is None:
        return ModelNames(partial=partial)
    known = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    prefix = ""
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False):
        fqn, path = known.get(id(value)), _source_path(node)
        if fqn is not None and path and fqn != path and fqn.endswith("." + path):
            prefix = fqn.removesuffix("." + path)
            break
    if layer_path(prefix) is not None:
        # One graph, compiled once, serves every layer: it can name the kind of module, not which one.
        prefix = ".".join("*" if part.isdigit() else part for part in prefix.split("."))
        return ModelNames(prefix=prefix, partial=True)
    return ModelNames(prefix, tuple(name for name, _ in model.named_modules()), partial)


def _source_path(node: fx.Node) -> str:
    """Return the dotted name of a Dynamo graph input below the module that was compiled."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", None)
    if name is None:
        return ""
    return normalise_fqn(name() if callable(name) else name)
