"""A policy where torch asks for one: FX nodes and eager checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import offload_runtime as off
from offload_runtime.compiler import Decision
from offload_runtime.graph.checkpoint_policy import checkpoint_policy_of


def policy(default: str, *rules: dict[str, Any]) -> off.CompiledPolicy:
    activations = {"default": default, "rules": list(rules)}
    return off.load_policy(
        {"apiVersion": "offload/v1", "kind": "Policy", "name": "p", "activations": activations}
    )


def test_action_and_must_map_one_to_one_to_torchs_members() -> None:
    pairs = [(action, must) for action in ("save", "recompute", "offload") for must in (True, False)]
    members = [checkpoint_policy_of(Decision(action, must)) for action, must in pairs]  # type: ignore[arg-type]
    assert set(members) == set(CheckpointPolicy)


def test_auto_is_what_the_partitioner_treats_as_no_mark() -> None:
    assert checkpoint_policy_of(Decision("auto")) is CheckpointPolicy.PREFER_SAVE


def graph_of_two_layers() -> torch.fx.Graph:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.relu(torch.mm(x, w)), w)

    graph = make_fx(run, tracing_mode="fake")(torch.randn(4, 4), torch.randn(4, 4)).graph
    for index, node in enumerate(node for node in graph.nodes if node.op == "call_function"):
        node.meta["nn_module_stack"] = {"m": (f"L['self'].layers.{min(index // 2, 1)}.linear", nn.Linear)}
    return graph


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({"op": "matmul"}, ["MUST_CPU_OFFLOAD", "PREFER_RECOMPUTE", "MUST_CPU_OFFLOAD"]),
        ({"op": "matmul", "layers": ":1"}, ["MUST_CPU_OFFLOAD", "PREFER_RECOMPUTE", "PREFER_RECOMPUTE"]),
        ({"op": "aten.relu.default"}, ["PREFER_RECOMPUTE", "MUST_CPU_OFFLOAD", "PREFER_RECOMPUTE"]),
        ({"module": "layers.1.*"}, ["PREFER_RECOMPUTE", "PREFER_RECOMPUTE", "MUST_CPU_OFFLOAD"]),
        ({"bytes": {"min": "1KiB"}}, ["PREFER_RECOMPUTE"] * 3),
    ],
)
def test_a_node_is_judged_by_operator_module_layer_and_size(
    match: dict[str, Any], expected: list[str]
) -> None:
    rules = {"name": "r", "match": match, "action": "offload", "must": True}
    compiled = policy("recompute", rules)
    nodes = [node for node in graph_of_two_layers().nodes if node.op == "call_function"]
    assert [compiled.policy_fn(node).name for node in nodes] == expected


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.num_products = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def backward_operators(compiled: off.CompiledPolicy) -> list[str]:
    """Return the operators that run in the backward of a checkpointed block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    out = checkpoint(
        Counting(), torch.randn(2, 8, requires_grad=True), use_reentrant=False, context_fn=compiled.context_fn
    )
    with Recorder():
        out.sum().backward()
    return seen


def test_eager_checkpointing_saves_what_the_policy_saves() -> None:
    save = policy("recompute", {"name": "products", "match": {"op": "matmul"}, "action": "save"})
    assert "aten.addmm.default" in backward_operators(policy("recompute"))
    assert "aten.addmm.default" not in backward_operators(save)


@pytest.mark.parametrize(
    "compiled",
    [
        policy("recompute", {"name": "products", "match": {"op": "matmul"}, "action": "offload"}),
        policy("offload"),
        off.load_policy("balanced"),
    ],
)
def test_offloading_is_refused_in_eager_checkpointing(compiled: off.CompiledPolicy) -> None:
    with pytest.raises(off.RefusedError, match="GRF310"):
        compiled.context_fn()


def test_a_rule_that_asks_for_more_than_the_operator_is_refused_by_name() -> None:
    compiled = policy(
        "recompute", {"name": "early", "match": {"op": "matmul", "layers": ":1"}, "action": "save"}
    )
    with pytest.raises(off.RefusedError, match=r"GRF311.*'early' asks for layer"):
        backward_operators(compiled)
