"""Run a random program under random policies; hold it against plain autograd and the numeric reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from offload_runtime.offload_plan import Variant
from offload_runtime.passes.tape import record_tape
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.simulated_engine import SimulatedEngine
from offload_runtime.runtime.transfer import forget_transfers, use_engine
from offload_runtime.simulator import peak_memory
from tests.fuzz.policies import draw_policy
from tests.fuzz.programs import Program, build_module, draw_program, example_inputs
from tests.fuzz.rewriting import Capture, Rewritten, Treatment, run_pair

__all__ = ["Case", "Outcome", "capture_case", "draw_case", "run_case", "same_bits"]

TIMINGS = ("early", "late", "random")
PARTITIONINGS = ("tagged", "tagged", "untagged", "save_everything")


@dataclass(frozen=True)
class Case:
    """One draw: a program and what is done to its joint graph, in several ways."""

    program: Program
    treatments: tuple[Treatment, ...]


@dataclass
class Outcome:
    """What one case showed: why it was set aside (None: it counts), features of each graph, every fault."""

    set_aside: str | None = None
    graphs: list[Counter[str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass
class _Results:
    outputs: list[Tensor]
    gradients: list[Tensor | None]
    buffers: list[Tensor]


def draw_case(rng: random.Random, *, max_steps: int = 18, num_treatments: int = 1) -> Case | None:
    """Draw a case, or None where the program came out with nothing to return."""
    program = draw_program(rng, max_steps=max_steps)
    if program is None:
        return None
    return Case(program, tuple(_draw_treatment(rng) for _ in range(num_treatments)))


def _draw_treatment(rng: random.Random) -> Treatment:
    policy = draw_policy(rng)
    return Treatment(policy, rng.choice(PARTITIONINGS), rng.choice(TIMINGS), rng.randrange(2**16))


def run_case(case: Case) -> Outcome:
    """Run forward and backward plainly, under each treatment, and as its reference; compare bit by bit.

    The first treatment runs inside AOTAutograd; the others run the rewritten pair on the same arguments.
    """
    try:
        plain = _train(build_module(case.program), case.program)
    except RuntimeError as error:
        # Plain autograd refuses it too: a saved value was overwritten.
        return Outcome("plain autograd refuses it: " + str(error).split("\n")[0][:60])
    if all(gradient is None for gradient in plain.gradients):
        return Outcome("nothing to differentiate")
    if not all(value.isfinite().all() for value in _tensors(plain)):
        return Outcome("a value is not finite")
    first, *others = case.treatments
    arena = HostArena()
    engine = SimulatedEngine(arena, seed=first.engine_seed, timing=first.timing)
    capture = Capture(case.treatments)
    with use_engine(engine):
        actual = _train(_compile(case.program, capture), case.program)
    if not capture.is_differentiated:
        return Outcome("nothing to differentiate")
    outcome = Outcome()
    features = case.program.features()
    differences = _differences("eager", plain, actual)
    if differences:
        # Plain AOTAutograd may sum gradients in another order than eager; then it is what to compare with.
        outcome.faults += _differences("no policy", _train_without_policy(case), actual)
    features["bitwise_equal_to_eager"] += not differences
    _judge(outcome, capture.rewritten[0], capture, first, features, engine, arena)
    for rewritten, treatment in zip(capture.rewritten[1:], others, strict=True):
        _run_other(outcome, rewritten, capture, treatment, features)
    return outcome


def capture_case(case: Case) -> Capture | None:
    """Run the first treatment of a case and return what was seen; None where a case would be set aside."""
    try:
        _train(build_module(case.program), case.program)
    except RuntimeError:
        return None
    capture = Capture(case.treatments[:1])
    with use_engine(SimulatedEngine(HostArena())):
        _train(_compile(case.program, capture), case.program)
    return capture if capture.is_differentiated else None


def _run_other(
    outcome: Outcome, rewritten: Rewritten, capture: Capture, treatment: Treatment, features: Counter[str]
) -> None:
    assert capture.forward is not None
    assert capture.backward is not None
    arena = HostArena()
    engine = SimulatedEngine(arena, seed=treatment.engine_seed, timing=treatment.timing)
    partition = rewritten.pair.partition
    num_outputs = partition.num_fwd_outputs
    with use_engine(engine):
        outputs, gradients = run_pair(partition.forward, partition.backward, num_outputs, capture)
    outcome.faults += _compare("output", capture.forward.results[:num_outputs], outputs)
    outcome.faults += _compare("gradient", capture.backward.results, gradients)
    _judge(outcome, rewritten, capture, treatment, features, engine, arena)


def _judge(
    outcome: Outcome,
    rewritten: Rewritten,
    capture: Capture,
    treatment: Treatment,
    features: Counter[str],
    engine: SimulatedEngine,
    arena: HostArena,
) -> None:
    """Compare with the reference, check the accounts, and count what this graph showed."""
    assert capture.forward is not None
    assert capture.backward is not None
    reference = rewritten.reference
    num_outputs = reference.num_fwd_outputs
    outputs, gradients = run_pair(reference.forward, reference.backward, num_outputs, capture)
    outcome.faults += _compare("reference output", outputs, capture.forward.results[:num_outputs])
    outcome.faults += _compare("reference gradient", gradients, capture.backward.results)
    outcome.faults += _accounting_faults(rewritten, engine, arena)
    shown = features + _plan_features(rewritten)
    shown[f"split_{treatment.partitioning}"] += 1
    outcome.graphs.append(shown)
    forget_transfers(rewritten.keys)


def _compile(program: Program, capture: Capture) -> Callable[..., Any]:
    gm = build_module(program)
    compiled: Any = aot_autograd(
        fw_compiler=capture.compile_forward, bw_compiler=capture.compile_backward, partition_fn=capture
    )(gm, example_inputs(program))
    compiled.module = gm
    return compiled  # type: ignore[no-any-return]  # torch ships no types for it


def _train_without_policy(case: Case) -> _Results:
    variant: Variant = "baseline"
    return _train(_compile(case.program, Capture(case.treatments[:1], variant)), case.program)


def _train(model: Any, program: Program) -> _Results:
    """Run one forward and backward; outputs that get no gradient get zeros, as compiled graphs give them."""
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
    flat = tensor.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


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


def _accounting_faults(rewritten: Rewritten, engine: SimulatedEngine, arena: HostArena) -> list[str]:
    faults = []
    moved, planned = engine.snapshot(), rewritten.pair.plan.planned_bytes
    if (moved.d2h_bytes, moved.h2d_bytes) != (planned, planned):
        faults.append(f"planned {planned} bytes, moved {moved.d2h_bytes} out and {moved.h2d_bytes} back")
    if moved.num_abandoned:
        faults.append(f"{moved.num_abandoned} copies were abandoned")
    if arena.snapshot().in_use_bytes:
        faults.append(f"{arena.snapshot().in_use_bytes} host bytes are in use after backward")
    tapes = rewritten.pair.tape, record_tape(rewritten.reference)
    with_transfers, without = (peak_memory([tape]).num_bytes for tape in tapes)
    if with_transfers > without:
        faults.append(f"offloading raises the simulated peak from {without} to {with_transfers} bytes")
    return faults


def _plan_features(rewritten: Rewritten) -> Counter[str]:
    plan = rewritten.pair.plan
    found: Counter[str] = Counter()
    for verdict in plan.verdicts:
        found[f"fate_{verdict.fate}"] += 1
        if verdict.fate == "save" and verdict.reason.startswith("not offloaded: "):
            found["refused: " + verdict.reason.removeprefix("not offloaded: ").partition(":")[0][:40]] += 1
    found["transfers"] = len(plan.transfers)
    found["replayed_views"] = sum(verdict.num_views for verdict in plan.verdicts)
    found["slices_moved_alone"] = max(len(plan.transfers) - found["fate_offload"], 0)
    found["graphs_with_transfers"] = int(bool(plan.transfers))
    return found
