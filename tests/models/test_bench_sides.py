"""Which sides a measurement has, and which of them is the baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload_runtime.errors import OffloadError
from offload_runtime.models.bench_result import Side
from offload_runtime.models.bench_sides import SidesPlan, plan_sides


def names(plan: SidesPlan) -> list[str]:
    return [side.name for side in plan.sides]


@pytest.mark.parametrize(
    ("mode", "policies", "peers", "baseline", "expected"),
    [
        ("graph", ["balanced"], ["eager"], None, ["sac-default", "balanced", "eager"]),
        ("inductor", ["balanced"], ["eager"], None, ["compile", "balanced", "eager"]),
        ("inductor", ["balanced"], ["eager", "compile"], None, ["compile", "balanced", "eager"]),
        ("graph", ["balanced", "sac-default"], [], None, ["sac-default", "balanced"]),
        ("graph", [], [], None, ["sac-default"]),
        ("graph", ["balanced", "moe"], [], "moe", ["moe", "balanced"]),
        ("graph", ["balanced"], [], "eager", ["eager", "balanced"]),
        ("graph", ["balanced"], [], "max-savings", ["max-savings", "balanced"]),
        (
            "graph",
            [],
            ["eager", "largest-first:1GiB"],
            "largest-first:1024MiB,defer=8",
            ["largest-first:1GiB", "eager"],
        ),
    ],
)
def test_the_baseline_comes_first_and_is_added_where_it_is_not_listed(
    mode: str, policies: list[str], peers: list[str], baseline: str | None, expected: list[str]
) -> None:
    plan = plan_sides(policies, peers, mode=mode, baseline=baseline)
    assert names(plan) == expected
    assert plan.baseline == expected[0]
    assert plan.control == f"{expected[0]} again"


def test_sides_are_recorded_with_the_policies_that_they_run() -> None:
    plan = plan_sides(["balanced"], ["eager", "largest-first:1GiB"], mode="graph")
    hashes = {side.name: side.policy_hash for side in plan.recorded}
    assert hashes["eager"] is None
    assert hashes["sac-default"] == hashes["sac-default again"] is not None
    assert len({hashes["sac-default"], hashes["balanced"], hashes["largest-first:1GiB"]}) == 3
    assert [side.kind for side in plan.recorded] == ["policy", "policy", "peer", "peer", "control"]
    assert plan.recorded[2] == Side("eager", "peer")


def test_largest_first_is_another_policy_in_each_mode() -> None:
    graph, inductor = (plan_sides([], ["largest-first:1GiB"], mode=mode) for mode in ("graph", "inductor"))
    assert graph.recorded[1].policy_hash != inductor.recorded[1].policy_hash


def test_overrides_change_the_policies_and_neither_peers_nor_an_added_baseline() -> None:
    asked = (["balanced"], ["largest-first:1GiB"])
    plain = plan_sides(*asked, mode="graph")
    changed = plan_sides(*asked, mode="graph", overrides=["limits.budget=1MiB"])
    same = [
        before.policy_hash == after.policy_hash
        for before, after in zip(plain.recorded, changed.recorded, strict=True)
    ]
    assert same == [True, False, True, True]


@pytest.mark.parametrize(
    ("policies", "peers", "baseline", "exit_code", "said"),
    [
        (["balanced", "balanced"], [], None, 2, "BEN903 two sides are called balanced"),
        ([], ["eager", "eager"], None, 2, "BEN903 two sides are called eager"),
        ([], ["largest-first:1GiB", "largest-first:1024MiB"], None, 2, "BEN903 two sides"),
        (["balanced"], [], "balancd", 2, "BEN904 there is no side 'balancd' .*did you mean balanced?"),
        (["balanced"], [], "egaer", 2, "did you mean eager?"),
        (["balanced"], [], "qqq", 2, "name a side, a peer or a policy: balanced, eager"),
        (["balanced"], [], "eager:1", 2, "BEN902"),
        (["balanced"], [], "no/such.yaml", 3, "YAML001"),
        (["balancd"], [], None, 3, "YAML002"),
        ([], ["egaer"], None, 2, "BEN901"),
    ],
)
def test_names_that_mean_nothing_or_stand_twice_are_refused(
    policies: list[str], peers: list[str], baseline: str | None, exit_code: int, said: str
) -> None:
    with pytest.raises(OffloadError, match=said) as caught:
        plan_sides(policies, peers, mode="graph", baseline=baseline)
    assert caught.value.exit_code == exit_code


def test_a_policy_called_like_a_peer_cannot_stand_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("apiVersion: offload/v1\nkind: Policy\nname: eager\nactivations: {default: save}\n")
    with pytest.raises(OffloadError, match="two sides are called eager"):
        plan_sides([str(path)], ["eager"], mode="graph")
