"""Run one random program under one random policy and hold the result against plain autograd and the reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.passes import pipeline
from offload_runtime.passes.partition import Partition, partition_pass
from offload_runtime.passes.pipeline import JointInputs, RewrittenPair, rewrite_joint
from offload_runtime.plan import TransferSource, Variant
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.backend import OPS
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import forget_transfers, register_transfer, use_engine
from offload_runtime.simulator import peak_memory
from tests.fuzz.policies import draw_policy
from tests.fuzz.programs import Program, build_module, draw_program, example_inputs

__all__ = ["Case", "Outcome", "draw_case", "run_case", "same_bits"]

TIMINGS = ("early", "late", "random")
PARTITIONINGS = ("tagged", "tagged", "untagged", "save_everything")


@dataclass(frozen=True)
class Case:
    """One draw: a program, a policy, how the graph is split, and when the simulated engine makes its copies.

    ``partitioning`` is ``tagged`` as users get it. The others split without the policy's tags, by min-cut or saving
    everything: then views and slices are saved, which tags would have recomputed, and the passes have to replay them.
    """

    program: Program
    policy: CompiledPolicy
    partitioning: str
    timing: Any
    engine_seed: int


@dataclass
class Outcome:
    """What one case showed: why it was set aside (None: it counts), counts by feature, and every fault."""

    set_aside: str | None = None
    shown: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass
class _Results:
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    buffers: list[Tensor]


def draw_case(rng: random.Random, *, max_steps: int = 18) -> Case | None:
    """Draw a case, or None where the program came out untrainable."""
    program = draw_program(rng, max_steps=max_steps)
    if program is None:
        return None
    return Case(
        program, draw_policy(rng), rng.choice(PARTITIONINGS), rng.choice(TIMINGS), rng.randrange(2**16)
    )


def run_case(case: Case) -> Outcome:
    """Run forward and backward plainly, under the policy, and as its numeric reference; compare bit by bit."""
    outcome = Outcome(shown=case.program.features())
    try:
        plain = _train(build_module(case.program), case.program)
    except RuntimeError as error:
        # Plain autograd refuses it too: a saved value overwritten, or nothing that needs a gradient.
        outcome.set_aside = "plain autograd refuses it: " + str(error).split("\n")[0][:60]
        return outcome
    if all(gradient is None for gradient in plain.gradients):
        outcome.set_aside = "nothing to differentiate"
        return outcome
    if not all(value.isfinite().all() for value in _tensors(plain)):
        outcome.set_aside = "a value is not finite"
        return outcome
    arena = HostArena()
    engine = SimulatedEngine(arena, seed=case.engine_seed, timing=case.timing)
    partitioner = _Partitioner(case.policy, case.partitioning)
    with use_engine(engine):
        rewritten = _train(_compile(build_module(case.program), case.program, partitioner), case.program)
    if partitioner.pair is None or partitioner.backward_call is None:
        outcome.set_aside = "nothing to differentiate"
        return outcome
    outcome.faults += _differences("eager", plain, rewritten) and _unless_torch_differs(case, rewritten)
    outcome.shown["bitwise_equal_to_eager"] += not _differences("eager", plain, rewritten)
    outcome.faults += partitioner.differences_from_reference()
    outcome.faults += _accounting_faults(partitioner.pair, partitioner.reference, engine, arena)
    outcome.shown += _plan_features(partitioner.pair)
    outcome.shown[f"split_{case.partitioning}"] += 1
    forget_transfers(partitioner.keys)
    return outcome


@contextmanager
def _splitting(partitioning: str) -> Iterator[None]:
    """Keep the policy's tags from the partitioner, or let it save everything."""
    with ExitStack() as stack:
        if partitioning != "tagged":
            untouched = mock.patch.object(pipeline, "tag_activations_pass")
            stack.enter_context(untouched)
        if partitioning == "save_everything":

            def split(*args: Any, **kwargs: Any) -> Partition:
                return partition_pass(*args, **{**kwargs, "splitter": "save_everything"})

            stack.enter_context(mock.patch.object(pipeline, "partition_pass", split))
        yield


class _Partitioner:
    """Apply the policy where AOTAutograd partitions; keep a reference pair of the same graph beside it.

    Also stands in for the compiler of both sides, to see the arguments that the runtime passes.
    """

    def __init__(self, policy: CompiledPolicy, partitioning: str, variant: Variant = "policy") -> None:
        self.policy, self.partitioning, self.variant = policy, partitioning, variant
        self.pair: RewrittenPair | None = None
        self.reference: RewrittenPair | None = None
        self.keys: list[int] = []
        self.forward_call: _Recorded | None = None
        self.backward_call: _Recorded | None = None

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> Any:
        inputs = JointInputs(
            joint_inputs, kwargs["num_fwd_outputs"], kwargs.get("static_lifetime_input_indices") or ()
        )
        copied = fx.GraphModule(gm, _copy_graph(gm.graph))
        self.reference = self._rewrite(copied, inputs, "reference")
        self.pair = self._rewrite(gm, inputs, self.variant)
        return self.pair.partition.forward, self.pair.partition.backward

    def _rewrite(self, gm: fx.GraphModule, inputs: JointInputs, variant: Variant) -> RewrittenPair:
        with _splitting(self.partitioning):
            return rewrite_joint(
                gm, inputs, policy=self.policy, mode="graph", variant=variant, ops=OPS, register=self._register
            )

    def _register(self, source: TransferSource) -> int:
        self.keys.append(register_transfer(source.node, source.num_bytes, poison_source=True))
        return self.keys[-1]

    def compile_forward(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.forward_call = _Recorded(gm)
        return self.forward_call

    def compile_backward(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.backward_call = _Recorded(gm)
        return self.backward_call

    def differences_from_reference(self) -> list[str]:
        """Run the reference pair on the recorded arguments; say where its numbers differ."""
        assert self.reference is not None and self.forward_call is not None and self.backward_call is not None
        partition = self.reference.partition
        torch.set_rng_state(self.forward_call.rng_state)
        results = partition.forward(*self.forward_call.arguments)
        names = [node.name for node in partition.backward.graph.find_nodes(op="placeholder")]
        saved = [name for name in names if "tangents" not in name]
        crossing = dict(zip(saved, results[partition.num_fwd_outputs :], strict=True))
        crossing |= self.backward_call.tangents
        gradients = partition.backward(*(crossing[name] for name in names))
        returned = self.forward_call.results[: partition.num_fwd_outputs]
        found = _compare("reference output", results[: partition.num_fwd_outputs], returned)
        return found + _compare("reference gradient", gradients, self.backward_call.results)


class _Recorded:
    """A graph module as a compiled function; keeps copies of what it was called with and what it returned."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self._boxed_call = True  # on the instance: AOTAutograd's wrappers copy it from there
        self.gm = gm
        self.names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        self.is_backward = any("tangents" in name for name in self.names)
        self.arguments: list[Any] = []
        self.tangents: dict[str, Any] = {}
        self.results: list[Any] = []
        self.rng_state = torch.get_rng_state()

    def __call__(self, arguments: list[Any]) -> Any:
        own = list(arguments)
        arguments.clear()
        self.rng_state = torch.get_rng_state()
        if self.is_backward:
            pairs = zip(self.names, own, strict=True)
            self.tangents = {name: _copy(value) for name, value in pairs if "tangents" in name}
        else:
            self.arguments = [_copy(value) for value in own]
        results = self.gm(*own)
        # The host buffers at the end of a forward are the engine's to read, nobody else's.
        hosts = {node for node in self.gm.graph.nodes if node.target in (OPS.d2h_start, OPS.d2h_wait)}
        nodes = self.gm.graph.output_node().args[0]
        self.results = [None if node in hosts else _copy(v) for node, v in zip(nodes, results, strict=True)]
        return results


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _copy_graph(graph: fx.Graph) -> fx.Graph:
    copied = fx.Graph()
    environment: dict[fx.Node, fx.Node] = {}
    copied.output(copied.graph_copy(graph, environment))
    copied.output_node().meta = dict(graph.output_node().meta)
    return copied


def _compile(gm: fx.GraphModule, program: Program, partitioner: _Partitioner) -> Callable[..., Any]:
    compiled = aot_autograd(
        fw_compiler=partitioner.compile_forward,
        bw_compiler=partitioner.compile_backward,
        partition_fn=partitioner,
    )(gm, example_inputs(program))
    compiled.module = gm
    return compiled


def _train(model: Any, program: Program) -> _Results:
    """Run one forward and backward; outputs without a gradient of their own get zeros, as compiled graphs do."""
    module = getattr(model, "module", model)
    inputs = example_inputs(program)
    torch.manual_seed(program.seed)
    outputs = list(model(*inputs))
    generator = torch.Generator().manual_seed(program.seed + 2)
    trained, tangents = [], []
    for position, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        tangent = torch.randn(output.shape, generator=generator).to(output.dtype)
        if position in program.graded:
            trained.append(output)
            tangents.append(tangent)
        elif model is module:
            trained.append(output)
            tangents.append(torch.zeros_like(output))
    leaves = [*inputs[:1], *module.parameters()]
    gradients = list(torch.autograd.grad(trained, leaves, tangents, allow_unused=True))
    values = [output.detach().clone() for output in outputs]
    return _Results(values, gradients, [buffer.clone() for buffer in module.buffers()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors have equal types, shapes and bits (NaN equals the same NaN)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _tensors(results: _Results) -> list[Tensor]:
    return [value for value in (*results.outputs, *results.gradients, *results.buffers) if value is not None]


def _differences(name: str, expected: _Results, actual: _Results) -> list[str]:
    return [
        *_compare(f"{name} output", expected.outputs, actual.outputs),
        *_compare(f"{name} gradient", expected.gradients, actual.gradients),
        *_compare(f"{name} buffer", expected.buffers, actual.buffers),
    ]


def _compare(name: str, expected: Iterable[Any], actual: Iterable[Any]) -> list[str]:
    found = []
    for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(one, Tensor) or isinstance(other, Tensor):
            # Autograd gives None where a compiled graph returns zeros.
            one = torch.zeros_like(other) if one is None else one
            other = torch.zeros_like(one) if other is None else other
            if not same_bits(one, other):
                found.append(f"{name} {index} differs")
    return found


def _unless_torch_differs(case: Case, rewritten: _Results) -> list[str]:
    """Blame the policy only if AOTAutograd without any policy gives other numbers too."""
    partitioner = _Partitioner(case.policy, "tagged", "baseline")
    untouched = _train(_compile(build_module(case.program), case.program, partitioner), case.program)
    return _differences("no policy", untouched, rewritten)


def _accounting_faults(
    pair: RewrittenPair, reference: RewrittenPair | None, engine: SimulatedEngine, arena: HostArena
) -> list[str]:
    assert reference is not None
    faults = []
    moved, planned = engine.snapshot(), pair.plan.planned_bytes
    if (moved.d2h_bytes, moved.h2d_bytes) != (planned, planned):
        faults.append(f"planned {planned} bytes, moved {moved.d2h_bytes} out and {moved.h2d_bytes} back")
    if moved.num_abandoned:
        faults.append(f"{moved.num_abandoned} copies were abandoned")
    if arena.snapshot().in_use_bytes:
        faults.append(f"{arena.snapshot().in_use_bytes} host bytes are in use after backward")
    peaks = peak_memory([pair.tape]).num_bytes, peak_memory([reference.tape]).num_bytes
    if peaks[0] > peaks[1]:
        faults.append(f"offloading raises the simulated peak from {peaks[1]} to {peaks[0]} bytes")
    return faults


def _plan_features(pair: RewrittenPair) -> Counter[str]:
    found: Counter[str] = Counter()
    for verdict in pair.plan.verdicts:
        found[f"fate_{verdict.fate}"] += 1
        if verdict.fate == "save" and verdict.reason.startswith("not offloaded: "):
            found["refused: " + verdict.reason.removeprefix("not offloaded: ").partition(":")[0][:40]] += 1
    found["transfers"] = len(pair.plan.transfers)
    found["replayed_views"] = sum(verdict.num_views for verdict in pair.plan.verdicts)
    found["slices_moved_alone"] = len(pair.plan.transfers) - found["fate_offload"]
    found["graphs_with_transfers"] = int(bool(pair.plan.transfers))
    return found
