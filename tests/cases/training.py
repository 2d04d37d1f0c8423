"""Three training steps on an engine of one's own, and what they showed: the measure of most cases.

Transfers run late by default: a graph that reads a copy too early reads NaN.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import offload_runtime as off
from offload_runtime.compiler import CompiledPolicy
from offload_runtime.errors import OffloadError
from offload_runtime.offload_plan import TensorVerdict, Variant
from offload_runtime.record import Report
from offload_runtime.runtime.arena import HostArena
from offload_runtime.runtime.backend import offload_backend
from offload_runtime.runtime.session import unwrap_error
from offload_runtime.runtime.simulated_engine import CopyTiming, SimulatedEngine
from offload_runtime.runtime.transfer import use_engine

__all__ = [
    "Run",
    "Values",
    "assert_bitwise",
    "assert_exact",
    "compiled",
    "host_bytes",
    "offload_everything",
    "on_own_engine",
    "policy_of",
    "refusal_of",
    "train",
    "values_of",
    "verdict_of",
]

Values = dict[str, Tensor]
BuildModel = Callable[[], nn.Module]
Batch = Tensor | tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """What some training steps showed.

    ``steps`` holds loss, gradients and buffers after each step; ``host_bytes`` what the host arena still lends out
    when all is over.
    """

    steps: tuple[Values, ...]
    report: Report
    host_bytes: int

    @property
    def offloaded(self) -> tuple[TensorVerdict, ...]:
        return tuple(verdict for verdict in self.report.tensors if verdict.fate == "offload")


def policy_of(
    *rules: Mapping[str, Any], default: str = "save", layer_outputs: str | None = None, **sections: Any
) -> CompiledPolicy:
    """Return a policy of these rules that keeps no layer on the device, whatever its place."""
    activations: dict[str, Any] = {"default": default, "rules": [dict(rule) for rule in rules]}
    activations |= {"layer_outputs": layer_outputs} if layer_outputs is not None else {}
    activations |= sections.pop("activations", {})
    document = {
        "apiVersion": "offload/v1",
        "kind": "Policy",
        "name": "case",
        "schedule": {"keep_last": 0, **sections.pop("schedule", {})},
        "activations": activations,
        **sections,
    }
    return off.load_policy(document)


def offload_everything(**sections: Any) -> CompiledPolicy:
    """Return the policy that offloads whatever it may."""
    return policy_of(default="offload", **sections)


@contextmanager
def on_own_engine(timing: CopyTiming = "late", arena: HostArena | None = None) -> Iterator[SimulatedEngine]:
    """Run every transfer on a new simulated engine; compiled code of earlier tests is forgotten."""
    torch._dynamo.reset()
    engine = SimulatedEngine(arena or HostArena(), timing=timing)
    with use_engine(engine):
        yield engine


def compiled(
    model: Any, policy: CompiledPolicy, *, variant: Variant = "policy", mode: str = "graph", **options: Any
) -> Any:
    """Return ``model`` (a module or a function) compiled with the offload back end."""
    dynamic = options.pop("dynamic", None)
    settings = {"policy": policy, "variant": variant, "mode": mode, **options}
    return torch.compile(model, backend=offload_backend, options=settings, dynamic=dynamic)


def train(
    build: BuildModel,
    policy: CompiledPolicy,
    batches: Sequence[Batch],
    *,
    variant: Variant = "policy",
    mode: str = "graph",
    loss_of: Callable[[Any], Tensor] | None = None,
    timing: CopyTiming = "late",
    learning_rate: float = 0.1,
    **options: Any,
) -> Run:
    """Train a model from seed 0, one step a batch, and return what every step gave."""
    with on_own_engine(timing) as engine:
        torch.manual_seed(0)
        model = build()
        run = compiled(model, policy, variant=variant, mode=mode, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        steps = []
        for batch in batches:
            optimizer.zero_grad()
            output = run(*(batch if isinstance(batch, tuple) else (batch,)))
            loss = (loss_of or mean_square)(output)
            loss.backward()
            steps.append(values_of(model, loss))
            optimizer.step()
        del output, loss
        return Run(tuple(steps), off.report(run), host_bytes(engine))


def mean_square(output: Any) -> Tensor:
    """Return the mean square over every tensor of ``output``."""
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    return torch.stack([one.float().square().mean() for one in outputs]).sum()


def values_of(model: nn.Module, loss: Tensor) -> Values:
    """Copy the loss, the gradients and the buffers."""
    values = {"loss": loss.detach().clone()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            values[f"gradient of {name}"] = parameter.grad.clone()
    return values | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


def host_bytes(engine: SimulatedEngine) -> int:
    """Return the host bytes that living tensors hold."""
    gc.collect()
    engine.drain()
    return engine.arena.snapshot().in_use_bytes


def assert_bitwise(actual: Sequence[Values], expected: Sequence[Values]) -> None:
    """Assert that all values of all steps have equal bits, and that none of them is NaN."""
    assert len(actual) == len(expected)
    for step, (ours, theirs) in enumerate(zip(actual, expected, strict=True), start=1):
        assert list(ours) == list(theirs)
        for name, value in ours.items():
            assert not value.isnan().any(), f"{name} is NaN in step {step}"
            assert torch.equal(value, theirs[name]), f"{name} differs in step {step}"


def assert_exact(
    build: BuildModel,
    policy: CompiledPolicy,
    batches: Sequence[Batch],
    *,
    same_as: Sequence[Variant] = ("reference", "baseline"),
    **settings: Any,
) -> Run:
    """Train under the policy and without its transfers; return the policy's run.

    Bitwise equal steps, bytes moved as planned both ways, and no host memory left in use.
    """
    run = train(build, policy, batches, **settings)
    for variant in same_as:
        assert_bitwise(run.steps, train(build, policy, batches, variant=variant, **settings).steps)
    assert run.report.moved_bytes == run.report.reloaded_bytes == run.report.planned_bytes
    assert run.host_bytes == 0
    return run


def verdict_of(run: Run, op: str, module: str | None = None) -> TensorVerdict:
    """Return the one verdict on a tensor of this operator or class (and module)."""
    found = [
        verdict
        for verdict in run.report.tensors
        if op in (verdict.activation.op, verdict.activation.op_class)
        and module in (None, verdict.activation.module)
    ]
    (verdict,) = found
    return verdict


def refusal_of(error: BaseException) -> OffloadError:
    """Return the error of this package inside whatever torch.compile raised."""
    refusal = unwrap_error(error)
    assert refusal is not None, f"not an error of this package: {error!r}"
    return refusal
