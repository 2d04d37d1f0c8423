from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offload_runtime.compiler import CompiledPolicy
from offload_runtime.graph.joint import forward_activations, read_joint_graph
from offload_runtime.passes.candidates import SavedStorage, collect_candidates, saved_storages
from offload_runtime.passes.choices import collect_choices, find_leaders
from offload_runtime.passes.partition import partition_pass
from offload_runtime.passes.tag import JudgedStorage, tag_activations_pass
from offload_runtime.passes.trace import Choice
from offload_runtime.runtime.capture import capture_joint_graphs
from tests.passes.planned import HARDWARE, captured, planned_policy

Chosen = dict[str, frozenset[str]]


def judged_choices(
    policy: CompiledPolicy, graph: Any = None, mode: str = "graph"
) -> tuple[list[SavedStorage], list[Choice]]:
    """Return what crosses with everything saved, and what the policy lets become of it."""
    graph = graph or captured(mode)
    gm = graph.copy()
    gm.graph.eliminate_dead_code()
    joint = read_joint_graph(
        gm,
        num_fwd_outputs=graph.inputs.num_fwd_outputs,
        static_input_indices=graph.inputs.static_input_indices,
        names=graph.inputs.names,
    )
    judged = [
        JudgedStorage(storage, activation, None if storage.is_input else policy.decide(activation))
        for storage, activation in forward_activations(joint)
    ]
    saved = policy_that_saves()
    tag_activations_pass(
        gm,
        joint=joint,
        judged=[
            JudgedStorage(
                item.storage,
                item.activation,
                None if item.decision is None else saved.decide(item.activation),
            )
            for item in judged
        ],
    )
    partition = partition_pass(
        gm,
        graph.inputs.example_inputs,
        num_fwd_outputs=graph.inputs.num_fwd_outputs,
        static_input_indices=graph.inputs.static_input_indices,
        splitter="min_cut",
    )
    stored = saved_storages(partition, judged)
    candidates = collect_candidates(joint, partition, stored)
    choices = collect_choices(joint, partition, stored, candidates, policy, mode=mode, profile=HARDWARE)
    return stored, choices


@cache
def policy_that_saves() -> CompiledPolicy:
    return planned_policy("save")


def fates_by_op(policy: CompiledPolicy) -> Mapping[str, set[frozenset[str]]]:
    """Return the permitted fates that the storages of each operator have."""
    stored, choices = judged_choices(policy)
    found: dict[str, set[frozenset[str]]] = {}
    for item, choice in zip(stored, choices, strict=True):
        key = "input" if item.judged.decision is None else item.judged.activation.op
        found.setdefault(key, set()).add(choice.fates)
    return found


SAVE, OFFLOAD, RECOMPUTE = "save", "offload", "recompute"
EVERYTHING = frozenset({SAVE, OFFLOAD, RECOMPUTE})


@pytest.mark.parametrize(
    ("action", "permitted"),
    [
        ("save", {SAVE}),
        ("offload", {SAVE, OFFLOAD}),
        ("recompute", {SAVE, RECOMPUTE}),
        ("auto", {SAVE, RECOMPUTE}),  # offload, too, from 1 MiB on
    ],
)
def test_an_action_permits_its_fates(action: str, permitted: set[str]) -> None:
    found = fates_by_op(planned_policy(action))
    assert found["aten.addmm.default"] == {frozenset(permitted)}
    assert found["aten.silu.default"] == {frozenset(permitted)}


@pytest.mark.parametrize("action", ["save", "offload", "recompute"])
def test_must_leaves_one_fate(action: str) -> None:
    rule = {"name": "fixed", "match": {"op": "matmul"}, "action": action, "must": True}
    found = fates_by_op(planned_policy("auto", rules=[rule]))
    assert found["aten.addmm.default"] == {frozenset({action})}
    assert found["aten.silu.default"] == {frozenset({SAVE, RECOMPUTE})}


def test_what_no_policy_judges_is_saved() -> None:
    for default in ("offload", "recompute", "auto"):
        assert fates_by_op(planned_policy(default))["input"] == {frozenset({SAVE})}


class Wide(nn.Module):
    """A product of 1 MiB and one of half of that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 1024), nn.Linear(1024, 512)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sin()).sin()


def test_auto_lets_large_tensors_leave() -> None:
    (graph,) = capture_joint_graphs(Wide(), [torch.randn(256, 8)], accelerator=False)
    stored, choices = judged_choices(planned_policy("auto"), graph)
    permitted = {
        (item.storage.num_bytes, OFFLOAD in choice.fates)
        for item, choice in zip(stored, choices, strict=True)
        if item.judged.activation.op == "aten.addmm.default"
    }
    assert permitted == {(2**20, True), (2**19, False)}
    stored, choices = judged_choices(planned_policy("offload"), graph)
    assert all(
        OFFLOAD in choice.fates for item, choice in zip(stored, choices, strict=True) if item.judged.decision
    )


@pytest.mark.parametrize(
    ("keep_last", "leaving"), [(0, {0, 1, 2, 3, None}), (1, {0, 1, 2}), (3, {0}), (4, set())]
)
def test_the_last_layers_and_what_follows_them_stay(keep_last: int, leaving: set[int | None]) -> None:
    stored, choices = judged_choices(planned_policy("offload", keep_last=keep_last))
    layers = {
        item.judged.activation.layer
        for item, choice in zip(stored, choices, strict=True)
        if OFFLOAD in choice.fates
    }
    assert layers == leaving


def test_must_overrides_keep_last() -> None:
    rule = {"name": "fixed", "match": {"op": "matmul"}, "action": "offload", "must": True}
    stored, choices = judged_choices(planned_policy("offload", rules=[rule], keep_last=4))
    for item, choice in zip(stored, choices, strict=True):
        if item.judged.decision is not None:
            expected = OFFLOAD if item.judged.activation.op_class == "matmul" else SAVE
            assert choice.fates == {expected}


def norms(policy: CompiledPolicy) -> list[tuple[int, frozenset[str]]]:
    """Return, norm by norm, size and permitted fates of its results, leaders first."""
    stored, choices = judged_choices(policy)
    leaders = find_leaders(stored)
    return [
        (leaders[index] == index, choices[index].fates)
        for index, item in enumerate(stored)
        if item.judged.activation.op == "aten.native_layer_norm.default"
    ]


def test_of_the_results_of_one_call_the_largest_leads() -> None:
    stored, _ = judged_choices(planned_policy())
    leaders = find_leaders(stored)
    calls = {leader for index, leader in leaders.items() if leader != index}
    assert len(calls) == 4
    for index, leader in leaders.items():
        assert stored[leader].storage.num_bytes >= stored[index].storage.num_bytes
    results = norms(planned_policy())
    assert {fates for is_leader, fates in results if is_leader} == {frozenset({SAVE, RECOMPUTE})}
    assert {fates for is_leader, fates in results if not is_leader} == {frozenset({SAVE})}


def test_results_of_one_call_are_recomputed_only_if_all_may_be() -> None:
    small = {"name": "small", "match": {"op": "norm", "bytes": {"max": "8KiB"}}, "action": "save"}
    assert {fates for _, fates in norms(planned_policy("auto", rules=[small]))} == {frozenset({SAVE})}


def test_a_result_that_must_be_recomputed_takes_its_leader_along() -> None:
    small = {
        "name": "small",
        "match": {"op": "norm", "bytes": {"max": "8KiB"}},
        "action": "recompute",
        "must": True,
    }
    results = norms(planned_policy("auto", rules=[small]))
    assert {fates for is_leader, fates in results if is_leader} == {frozenset({RECOMPUTE})}
