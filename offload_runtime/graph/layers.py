"""Layers: the elements of a model's outermost repeated stacks, numbered as they execute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from offload_runtime.patterns import Glob

__all__ = ["LayerTable", "layer_path", "tabulate_layers"]


@dataclass(frozen=True)
class LayerTable:
    """Layer ids by module name: ``paths[i]`` is the module of layer ``i``.

    ``complete`` is False where one graph sees only part of the model, so that counts from the end and
    percentages mean nothing.
    """

    paths: tuple[str, ...]
    complete: bool = True
    layers_of: tuple[Glob, ...] | None = None

    @property
    def num_layers(self) -> int | None:
        """Number of layers of the model, or None where this graph cannot know it."""
        return len(self.paths) if self.complete else None

    def path_of(self, module: str) -> str | None:
        """Return the module name of the layer that holds ``module``, or None outside every layer."""
        return layer_path(module, self.layers_of)

    def layer_of(self, module: str) -> int | None:
        """Return the layer id that holds ``module``, or None outside every layer."""
        path = self.path_of(module)
        return self.paths.index(path) if path in self.paths else None


def layer_path(module: str, layers_of: Sequence[Glob] | None = None) -> str | None:
    """Cut a module name down to its layer: through the first numbered element, or the first match of ``layers_of``.

    ``layers_of`` holds anchored globs over whole layer names, such as ``encoder.block.*``.
    """
    parts = module.split(".") if module else []
    if layers_of is None:
        for index, part in enumerate(parts):
            if part.isdigit():
                return ".".join(parts[: index + 1])
        return None
    for end in range(1, len(parts) + 1):
        prefix = ".".join(parts[:end])
        if any(glob.matches(prefix) for glob in layers_of):
            return prefix
    return None


def tabulate_layers(
    modules: Iterable[str], layers_of: Sequence[Glob] | None = None, *, complete: bool = True
) -> LayerTable:
    """Number the layers that hold ``modules``, stack by stack in order of first appearance.

    Within a stack the elements keep the order in which they execute. A stack of one element is no
    repetition, unless the model has no other.
    """
    stacks: dict[str, list[str]] = {}
    for module in modules:
        path = layer_path(module, layers_of)
        if path is not None:
            elements = stacks.setdefault(path.rpartition(".")[0], [])
            if path not in elements:
                elements.append(path)
    repeated = [elements for elements in stacks.values() if len(elements) > 1 or layers_of is not None]
    paths = tuple(path for elements in repeated or stacks.values() for path in elements)
    return LayerTable(paths, complete, tuple(layers_of) if layers_of is not None else None)
