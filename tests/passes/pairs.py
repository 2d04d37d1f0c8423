"""Rewritten pairs of small functions, for tests of single passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.offload_plan import TensorVerdict
from offload_runtime.runtime.backend import OPS
from tests.fuzz.rewriting import Capture, Rewritten, Treatment

__all__ = ["names_of", "policy", "rewrite", "transfer_calls", "verdict_of"]


def policy(
    default: str = "offload",
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
    **schedule: int,
) -> CompiledPolicy:
    """Return a policy whose schedule is the tightest unless told otherwise."""
    return load_policy(
        {
            "apiVersion": "offload/v1",
            "kind": "Policy",
            "name": "small",
            "limits": dict(limits or {}),
            "schedule": {"defer": 0, "prefetch": 0, "keep_last": 0, **schedule},
            "activations": {"default": default, "rules": [{"optional": True, **rule} for rule in rules]},
        }
    )


def rewrite(
    function: Callable[..., Any],
    *inputs: Tensor,
    under: CompiledPolicy,
    partitioning: str = "tagged",
) -> Rewritten:
    """Compile, run forward and backward once, and return what the passes made of the joint graph."""
    capture = Capture([Treatment(under, partitioning, "early", 0)])
    torch.compiler.reset()
    backend = aot_autograd(
        fw_compiler=capture.compile_forward, bw_compiler=capture.compile_backward, partition_fn=capture
    )
    results = torch.compile(function, backend=backend)(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    sum(result.sum() for result in results if result.requires_grad).backward()
    return capture.rewritten[0]


def verdict_of(rewritten: Rewritten, operator: str) -> TensorVerdict:
    """Return the only verdict on a tensor of this operator."""
    (verdict,) = [v for v in rewritten.pair.plan.verdicts if v.activation.op == operator]
    return verdict


def names_of(graph: fx.Graph) -> list[str]:
    """Name the calls of a graph in order: ``mm``, ``d2h_start``."""
    return [
        str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else node.name
        for node in graph.nodes
        if node.op == "call_function"
    ]


def transfer_calls(graph: fx.Graph) -> list[fx.Node]:
    """Return the transfer operators of a graph in order."""
    ours = (OPS.d2h_start, OPS.d2h_wait, OPS.h2d_start, OPS.h2d_wait)
    return [node for node in graph.nodes if node.target in ours]
