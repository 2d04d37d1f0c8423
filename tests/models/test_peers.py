"""Peers as they are written on the command line."""

from __future__ import annotations

import pytest

from offload_runtime.compiler import SavedActivation, load_policy
from offload_runtime.errors import UsageError
from offload_runtime.models.peers import (
    PEERS,
    ActivationBudget,
    Compile,
    Eager,
    EagerCheckpoint,
    LargestFirst,
    Peer,
    Planned,
    SaveOnCpu,
    TorchOffload,
    parse_peer,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "peer", "title"),
    [
        ("eager", Eager(), "eager"),
        ("eager-checkpoint", EagerCheckpoint(), "eager-checkpoint"),
        ("save-on-cpu", SaveOnCpu(), "save-on-cpu"),
        ("compile", Compile(), "compile"),
        ("torch-offload", TorchOffload(), "torch-offload"),
        ("activation-budget:0.6", ActivationBudget(0.6), "activation-budget:0.6"),
        ("activation-budget:0.60", ActivationBudget(0.6), "activation-budget:0.6"),
        ("activation-budget:0", ActivationBudget(0), "activation-budget:0"),
        ("activation-budget:1", ActivationBudget(1), "activation-budget:1"),
        ("largest-first:12GiB", LargestFirst(12 * GIB), "largest-first:12GiB"),
        ("largest-first:12288MiB,defer=8", LargestFirst(12 * GIB), "largest-first:12GiB"),
        ("largest-first:0B", LargestFirst(0), "largest-first:0B"),
        ("planned:40960MiB", Planned(40 * GIB), "planned:40GiB"),
        (
            "largest-first:1GB,prefetch=3,defer=0",
            LargestFirst(10**9, 0, 3),
            "largest-first:1GB,defer=0,prefetch=3",
        ),
    ],
)
def test_a_peer_is_a_value_whose_title_reads_back_as_it(text: str, peer: Peer, title: str) -> None:
    assert parse_peer(text) == peer
    assert peer.title == title
    assert parse_peer(title) == peer


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("eagr", "BEN901", "did you mean eager?"),
        ("Compile", "BEN901", "did you mean compile?"),
        ("zzz", "BEN901", "the peers are activation-budget, compile, eager"),
        ("", "BEN901", "the peers are"),
        ("eager:", "BEN902", "write eager"),
        ("planned", "BEN902", "such as planned:40GiB"),
        ("planned:40", "BEN902", "such as planned:40GiB"),
        ("compile:1", "BEN902", "takes no argument"),
        ("activation-budget", "BEN902", "needs an argument"),
        ("activation-budget:", "BEN902", "such as activation-budget:0.6"),
        ("activation-budget:1.5", "BEN902", "a share from 0 to 1"),
        ("activation-budget:-0.5", "BEN902", "a share from 0 to 1"),
        ("activation-budget:nan", "BEN902", "a share from 0 to 1"),
        ("activation-budget:60%", "BEN902", "a share from 0 to 1"),
        ("largest-first", "BEN902", "needs an argument"),
        ("largest-first:12", "BEN902", "12GiB"),
        ("largest-first:12gib", "BEN902", "did you mean 12GiB?"),
        ("largest-first:1GiB,defr=1", "BEN902", "did you mean defer?"),
        ("largest-first:1GiB,x=1", "BEN902", "behind the budget stand defer and prefetch"),
        ("largest-first:1GiB,defer=1,defer=2", "BEN902", "give defer once"),
        ("largest-first:1GiB,defer=two", "BEN902", "a number of layers"),
        ("largest-first:1GiB,defer=-1", "BEN902", "a number of layers"),
        ("largest-first:1GiB,defer=9999", "BEN902", "a number of layers up to 1000"),
        ("largest-first:1GiB,defer=²", "BEN902", "a number of layers"),
        ("largest-first:1GiB,", "BEN902", "behind the budget stand"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_with_a_cure(text: str, code: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_peer(text)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert said in str(found)


def test_every_peer_is_known_by_its_name_and_says_what_it_is() -> None:
    for name, peer in PEERS.items():
        assert peer.name == name
        assert peer.syntax.startswith(name)
        assert peer.summary


def saved(op_class: str, num_bytes: int) -> SavedActivation:
    """Return an activation of the middle of a model."""
    op = {"matmul": "aten.mm.default", "elementwise": "aten.mul.Tensor"}[op_class]
    return SavedActivation(
        name="x",
        op=op,
        op_class=op_class,
        module="layers.1.up",
        layer=1,
        num_layers=4,
        num_bytes=num_bytes,
        dtype="bfloat16",
        layout="dense",
    )


@pytest.mark.parametrize(
    ("mode", "op_class", "num_bytes", "action"),
    [
        ("graph", "matmul", 4096, "offload"),
        ("graph", "matmul", 4095, "save"),
        ("graph", "elementwise", 2**24, "recompute"),
        ("inductor", "matmul", 2**20, "offload"),
        ("inductor", "matmul", 2**20 - 1, "auto"),
        ("inductor", "elementwise", 2**24, "auto"),
    ],
)
def test_largest_first_offloads_what_is_heavy_and_leaves_the_rest_as_published(
    mode: str, op_class: str, num_bytes: int, action: str
) -> None:
    policy = load_policy(LargestFirst(GIB).policy_source(mode))
    assert policy.decide(saved(op_class, num_bytes)).action == action


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_largest_first_passes_on_its_budget_and_schedule(mode: str) -> None:
    policy = load_policy(LargestFirst(3 * GIB, defer=5, prefetch=2).policy_source(mode)).policy
    assert policy.name == "largest-first-3gib-defer-5-prefetch-2"
    assert policy.limits.budget == 3 * GIB
    assert (policy.schedule.select, policy.schedule.defer, policy.schedule.prefetch) == (
        "largest_first",
        5,
        2,
    )


@pytest.mark.parametrize("mode", ["graph", "inductor"])
def test_planned_is_the_shipped_policy_under_a_limit(mode: str) -> None:
    policy = load_policy(Planned(40 * GIB).policy_source(mode)).policy
    assert (policy.schedule.select, policy.limits.device_peak) == ("planned", 40 * GIB)
    assert [rule.name for rule in policy.rules] == [rule.name for rule in load_policy("fit").policy.rules]
