"""Random programs: acyclic graphs of torch operations in layers, as values and as FX graph modules."""

from __future__ import annotations

import operator
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from tests.fuzz.operations import OPERATIONS, Operation

__all__ = ["Program", "Step", "build_module", "draw_program", "example_inputs"]

_BY_NAME = {operation.name: operation for operation in OPERATIONS}
_WEIGHTS = [operation.weight for operation in OPERATIONS]
_SHAPES = ((4, 6), (6, 4), (4, 4), (6,), (8, 6), (2, 4, 6))
_MAX_ELEMENTS = 400


@dataclass(frozen=True)
class Step:
    """One call in a module: ``arguments`` number earlier values; it defines ``num_results`` new ones."""

    operation: str
    arguments: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]
    num_results: int
    module: str


@dataclass(frozen=True)
class Program:
    """A model without Python: values 0.. are its inputs, then its parameters, then what its steps define.

    ``outputs`` number the returned values, ``graded`` the positions among them that receive a gradient.
    ``updated`` says that the module also writes a running mean into its buffer.
    """

    inputs: tuple[tuple[int, ...], ...]
    parameters: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    graded: tuple[int, ...]
    updated: int | None
    seed: int

    def features(self) -> Counter[str]:
        """Count what the program shows, by kind of step and by how values are used."""
        found = Counter(_BY_NAME[step.operation].feature for step in self.steps)
        uses = Counter(index for step in self.steps for index in step.arguments)
        first_defined = len(self.inputs) + len(self.parameters)
        found["tied_parameter"] = sum(uses[index] > 1 for index in range(len(self.inputs), first_defined))
        found["returned_input"] = sum(index < first_defined for index in self.outputs)
        found["returned_and_used"] = sum(uses[index] > 0 for index in self.outputs)
        found["ungraded_output"] = len(self.outputs) - len(self.graded)
        found["updated_buffer"] = int(self.updated is not None)
        return found


def draw_program(rng: random.Random, *, max_steps: int = 18) -> Program | None:
    """Draw a program; None where nothing in it could be trained. Runs each step once, on plain tensors."""
    generator = torch.Generator().manual_seed(seed := rng.randrange(2**20))
    inputs = tuple(rng.choice(_SHAPES) for _ in range(rng.randint(1, 2)))
    parameters = tuple(rng.choice(_SHAPES) for _ in range(rng.randint(1, 3)))
    values = [torch.randn(shape, generator=generator) for shape in (*inputs, *parameters)]
    num_given = len(values)
    num_layers = rng.randint(1, 5)
    num_steps = rng.randint(3, max_steps)
    steps: list[Step] = []
    for number in range(num_steps):
        layer = number * num_layers // num_steps
        step = _draw_step(rng, values, _module_name(rng, layer))
        if step is not None:
            steps.append(step)
    defined = range(num_given, len(values))
    returnable = [index for index in defined if values[index].is_floating_point()]
    if not returnable:
        return None
    consumed = {index for step in steps for index in step.arguments}
    unread = [index for index in returnable if index not in consumed]
    # Most of what nobody reads is returned, so that little is dead; some that others read escapes too.
    outputs = [index for index in unread if index == unread[-1] or rng.random() < 0.8][-4:]
    if not outputs or rng.random() < 0.3:
        outputs.append(rng.choice(returnable))
    if rng.random() < 0.15:
        outputs.append(rng.randrange(num_given))
    graded = [0, *(position for position in range(1, len(outputs)) if rng.random() < 0.8)]
    updated = rng.choice(returnable) if rng.random() < 0.2 else None
    return Program(inputs, parameters, tuple(steps), tuple(outputs), tuple(graded), updated, seed)


def _module_name(rng: random.Random, layer: int) -> str:
    if rng.random() < 0.1:
        return "head"
    return f"layers.{layer}.{rng.choice(('attention', 'mlp', 'mlp.norm'))}"


def _draw_step(rng: random.Random, values: list[Tensor], module: str) -> Step | None:
    operation: Operation = rng.choices(OPERATIONS, _WEIGHTS)[0]
    picked = operation.sample(rng, values)
    if picked is None:
        return None
    tensors, options = picked
    numbers = tuple(next(i for i, value in enumerate(values) if value is tensor) for tensor in tensors)
    try:
        # A copy: an in-place step must not change what later steps are drawn from.
        results = operation.function(*(tensor.clone() for tensor in tensors), **options)
    except (RuntimeError, IndexError):
        return None  # this operation does not take this shape
    results = results if isinstance(results, tuple) else (results,)
    if any(result.numel() > _MAX_ELEMENTS for result in results):
        return None
    values.extend(results)
    return Step(operation.name, numbers, tuple(sorted(options.items())), len(results), module)


class _Call:
    """An operation as an FX target; FX needs a name for the generated code."""

    def __init__(self, operation: Operation) -> None:
        self._function = operation.function
        self.__name__ = f"fuzz_{operation.name.strip('_')}"
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._function(*args, **kwargs)
        return tuple(result) if isinstance(result, (tuple, list)) else result


_CALLS = {operation.name: _Call(operation) for operation in OPERATIONS}


def example_inputs(program: Program) -> list[Tensor]:
    """Return the program's inputs; the first needs a gradient."""
    generator = torch.Generator().manual_seed(program.seed)
    inputs = [torch.randn(shape, generator=generator) for shape in program.inputs]
    return [tensor.requires_grad_(index == 0) for index, tensor in enumerate(inputs)]


def build_module(program: Program) -> fx.GraphModule:
    """Build the graph that Dynamo would hand to a backend, with layers in ``nn_module_stack``."""
    root = nn.Module()
    generator = torch.Generator().manual_seed(program.seed + 1)
    graph = fx.Graph()
    values = [graph.placeholder(f"x{index}") for index in range(len(program.inputs))]
    for index, shape in enumerate(program.parameters):
        root.register_parameter(f"weight{index}", nn.Parameter(torch.randn(shape, generator=generator)))
        values.append(graph.get_attr(f"weight{index}"))
    for step in program.steps:
        arguments = tuple(values[index] for index in step.arguments)
        node = _call(graph, step, _CALLS[step.operation], arguments, dict(step.options))
        if step.num_results == 1 and _BY_NAME[step.operation].feature not in ("split", "multi_output"):
            values.append(node)
            continue
        for position in range(step.num_results):
            values.append(_call(graph, step, operator.getitem, (node, position), {}))
    if program.updated is not None:
        root.register_buffer("running_mean", torch.zeros(()))
        mean = graph.call_method("mean", (graph.call_method("detach", (values[program.updated],)),))
        graph.call_method("mul_", (buffer := graph.get_attr("running_mean"), 0.9))
        graph.call_method("add_", (buffer, mean))
    graph.output(tuple(values[index] for index in program.outputs))
    return fx.GraphModule(root, graph)


def _call(graph: fx.Graph, step: Step, target: Any, arguments: Any, options: dict[str, Any]) -> fx.Node:
    node = graph.call_function(target, arguments, options)
    node.meta["nn_module_stack"] = {
        "root": ("L['self']", nn.Module),
        step.module: (f"L['self'].{step.module}", nn.Module),
    }
    return node
