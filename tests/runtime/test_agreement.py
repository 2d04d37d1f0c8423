"""Ranks on the CPU (gloo, a process each) agree on limits and compare plans; nothing here may wait for ever."""

from __future__ import annotations

import datetime
import hashlib
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from offload_runtime.errors import OffloadError
from offload_runtime.policy import Limits
from offload_runtime.runtime.agreement import agree_on_limits, check_same_plan

PLAN_A = hashlib.sha256(b"a").hexdigest()
PLAN_B = hashlib.sha256(b"b").hexdigest()
TIMEOUT_S = 120
MIB = 2**20

Outcome = tuple[str, str, Any]


class Scenario(NamedTuple):
    """One call on each rank, each with its own argument, and how it has to go there."""

    function: Callable[[Any], Any]
    arguments: tuple[Any, ...]


def agree_under_fake_tensors(limits: Limits) -> Limits:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return agree_on_limits(limits)


def plan_then_check(plan_hash: str | None) -> None:
    """A rank without a plan failed before the comparison."""
    if plan_hash is None:
        raise RuntimeError("this rank could not plan")
    check_same_plan(plan_hash)


def train_planned(device_peak: int) -> tuple[str, int, int, int, list[float]]:
    """Train the small model on this rank's own data, gradients averaged over the ranks, under a planned policy.

    Returns the plan's hash, the bytes that were planned and moved, the forecast peak, and sums over the parameters.
    """
    import torch

    import offload_runtime as off
    from tests.passes.planned import HARDWARE, batch, planned_policy, stack

    torch.set_num_threads(1)
    model = stack()
    policy = planned_policy("save", rules=[PRODUCTS], limits={"device_peak": f"{device_peak}B"})
    model.compile(backend="offload", options={"policy": policy, "hardware": HARDWARE, "model": model})
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        parallel(batch(2 * step + dist.get_rank(), rows=1024)).backward()
        optimizer.step()
        optimizer.zero_grad()
    report = off.report(model)
    (graph,) = report.graphs
    assert graph.forecast is not None
    sums = [float(parameter.double().sum()) for parameter in model.parameters()]
    return graph.plan.hash, report.planned_bytes, report.moved_bytes, graph.forecast.peak_bytes, sums


PRODUCTS = {"name": "products", "match": {"op": "matmul"}, "action": "offload"}
SCENARIOS = {
    "least of each": Scenario(
        agree_on_limits,
        (Limits(8, 60, 64, 0.05), Limits(6, 70, 32, 0.02), Limits(7, 70, 64, 0.03)),
    ),
    "unlimited gives way": Scenario(agree_on_limits, (Limits(), Limits(0, None, 5, 0.0), Limits())),
    "all unlimited": Scenario(agree_on_limits, (Limits(), Limits(), Limits())),
    "more than 32 bits": Scenario(agree_on_limits, (Limits(1 << 40), Limits(), Limits((1 << 40) + 1))),
    "under fake tensors": Scenario(agree_under_fake_tensors, (Limits(4), Limits(3), Limits(5))),
    "auto on one": Scenario(agree_on_limits, (Limits(device_peak="auto"), Limits(), Limits())),
    "equal plans": Scenario(check_same_plan, (PLAN_A, PLAN_A, PLAN_A)),
    "different plans": Scenario(check_same_plan, (PLAN_A, PLAN_B, PLAN_A)),
    "no hash": Scenario(check_same_plan, (PLAN_A, "plan", PLAN_A)),
}
TRAINING = {
    "one has less": Scenario(train_planned, (10 * MIB, 64 * MIB)),
    "both have it": Scenario(train_planned, (10 * MIB, 10 * MIB)),
}
FAILING_RANK = {"a rank fails before": Scenario(plan_then_check, (PLAN_A, None))}


def run_ranks(scenarios: dict[str, Scenario], world_size: int, store: Path) -> dict[str, list[Outcome]]:
    """Run the scenarios in order on spawned ranks of one group; return how each went on each rank."""
    # Ranks are forks of one server that has torch imported: seven imports of it were most of the time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._inductor.compile_fx", "torch.distributed", "offload_runtime"])
    outcomes = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, world_size, str(store), scenarios, outcomes))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    try:
        received = dict(outcomes.get(timeout=TIMEOUT_S) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    return {name: [received[rank][name] for rank in range(world_size)] for name in scenarios}


def _rank(rank: int, world_size: int, store: str, scenarios: dict[str, Scenario], outcomes: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{store}", datetime.timedelta(seconds=20), world_size, rank)
    results = {
        name: _outcome(scenario.function, scenario.arguments[rank]) for name, scenario in scenarios.items()
    }
    outcomes.put((rank, results))
    outcomes.close()
    outcomes.join_thread()
    # Without waiting for the other ranks: one of them may never come.
    os._exit(0)


def _outcome(function: Callable[[Any], Any], argument: Any) -> Outcome:
    try:
        return "returned", "", function(argument)
    except OffloadError as error:
        return type(error).__name__, str(error), [(d.code, d.message, d.hint) for d in error.diagnostics]
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, str(error), None


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    return run_ranks(SCENARIOS, 3, tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize(
    ("scenario", "agreed"),
    [
        ("least of each", Limits(6, 60, 32, 0.02)),
        ("unlimited gives way", Limits(0, None, 5, 0.0)),
        ("all unlimited", Limits()),
        ("more than 32 bits", Limits(1 << 40)),
        ("under fake tensors", Limits(3)),
    ],
)
def test_each_limit_is_the_least_over_the_ranks(
    outcomes: dict[str, list[Outcome]], scenario: str, agreed: Limits
) -> None:
    assert outcomes[scenario] == [("returned", "", agreed)] * 3


def test_a_peak_that_is_still_auto_on_one_rank_is_an_error_on_all(outcomes: dict[str, list[Outcome]]) -> None:
    assert [outcome[0] for outcome in outcomes["auto on one"]] == ["ValueError"] * 3
    assert all("auto" in outcome[1] for outcome in outcomes["auto on one"])


def test_equal_plans_pass(outcomes: dict[str, list[Outcome]]) -> None:
    assert outcomes["equal plans"] == [("returned", "", None)] * 3


def test_different_plans_are_refused_on_every_rank_by_rank_and_hash(
    outcomes: dict[str, list[Outcome]],
) -> None:
    assert [outcome[0] for outcome in outcomes["different plans"]] == ["RefusedError"] * 3
    for _, _, findings in outcomes["different plans"]:
        ((code, message, hint),) = findings
        assert code == "RUN530"
        assert message == "3 ranks made 2 different plans for one graph"
        assert f"ranks 0, 2: {PLAN_A[:12]}" in hint
        assert f"rank 1: {PLAN_B[:12]}" in hint


def test_a_text_that_is_no_hash_is_an_error_on_all(outcomes: dict[str, list[Outcome]]) -> None:
    assert [outcome[0] for outcome in outcomes["no hash"]] == ["ValueError"] * 3


def test_a_rank_that_fails_before_the_comparison_makes_the_other_fail_and_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    waiting, failed = run_ranks(FAILING_RANK, 2, tmp_path / "store")["a rank fails before"]
    assert failed[:2] == ("RuntimeError", "this rank could not plan")
    assert waiting[0] == "RuntimeError"


def test_ranks_train_under_the_plan_of_the_one_that_has_least_memory(tmp_path: Path) -> None:
    outcomes = run_ranks(TRAINING, 2, tmp_path / "store")
    assert [how for ranks in outcomes.values() for how, _, _ in ranks] == ["returned"] * 4, outcomes
    results = [result for ranks in outcomes.values() for _, _, result in ranks]
    plan_hash, planned_bytes, moved_bytes, peak_bytes, sums = results[0]
    assert 0 < planned_bytes == moved_bytes
    assert peak_bytes <= 10 * MIB
    assert all(result == results[0] for result in results), "equal plans, and equal parameters on both ranks"
    assert len(plan_hash) == 64
    assert len(sums) > 10


def test_without_a_process_group_nothing_is_compared() -> None:
    limits = Limits(device_peak="auto")
    assert agree_on_limits(limits) is limits
    check_same_plan(PLAN_A)
    with pytest.raises(ValueError, match="hexadecimal"):
        check_same_plan("plan")


def test_a_group_of_one_rank_agrees_with_itself(tmp_path: Path) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", world_size=1, rank=0)
    try:
        limits = Limits(1)
        assert agree_on_limits(limits) is limits
        check_same_plan(PLAN_A)
    finally:
        dist.destroy_process_group()
