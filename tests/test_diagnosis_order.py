"""When a fix is due: what is settled first, what comes after open checks, and what is none of offloading's faults."""

from __future__ import annotations

import pytest

from offload_runtime.advice_diagnosis import found_in, is_to_be_fixed_now, open_checks
from offload_runtime.diagnosis_table import FINDINGS
from offload_runtime.predicates import Scalar
from tests.test_advice_diagnosis import CLEAN, PROVEN, SLOW, advice, sheet_of

OWN: dict[str, Scalar] = {"offload_mechanism": "offload_runtime"}
FULL: dict[str, Scalar] = {"memory_headroom_fraction": 0.01}


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        ({**PROVEN, **FULL, "gpu_utilization": 0.4}, "a smaller micro-batch, or fewer live parameters"),
        ({**SLOW, **FULL, "pageable_fraction": 0.5}, "a smaller micro-batch, or fewer live parameters"),
        ({**SLOW, **OWN, "mode": "graph"}, 'give "mode": "inductor"'),
        ({**SLOW, **OWN, "num_graphs": 4}, "take the graph breaks out"),
    ],
    ids=str,
)
def test_what_is_cheap_and_changes_what_the_rest_shows_is_settled_first(
    facts: dict[str, Scalar], fix: str
) -> None:
    sheet = sheet_of(facts)
    assert open_checks(sheet)
    summary = advice(facts).summary
    assert "Settle this first, as it changes what the other checks show: " + fix in summary
    assert "then measure the pair again. Open still: " in summary
    assert "In this order" not in summary
    assert is_to_be_fixed_now(sheet)


@pytest.mark.parametrize(
    ("facts", "before", "after"),
    [
        (
            {**OWN, "stall_ms": 300.0, "offload_step_ms": 900.0},
            "the mode and the number of graphs; then a paired baseline; then warm steps only; then utilization with "
            "headroom; then NUMA binding of each rank; then the width and the generation of the link",
            "the host",
        ),
        (
            {**PROVEN, "offload_mechanism": "fsdp2", "pageable_fraction": 0.4},
            "utilization with headroom; then NUMA binding of each rank",
            "the share of copies; then the width",
        ),
        (
            {
                **SLOW,
                "offload_mechanism": "fsdp2",
                "numa_local": False,
                "memory_headroom_fraction": 0.3,
            },
            "a paired baseline; then warm steps only",
            "the share of copies; then utilization",
        ),
    ],
    ids=str,
)
def test_a_fix_comes_after_the_open_checks_that_may_find_what_is_fixed_before(
    facts: dict[str, Scalar], before: str, after: str
) -> None:
    summary = advice(facts).summary
    assert "Found so far: " in summary
    assert f"Before the first fix, in this order: {before}. Open still: {after}" in summary
    assert not any(text in summary for text in ("First fix", "Apply the first fix", "Settle this first"))
    assert not is_to_be_fixed_now(sheet_of(facts))


def test_a_fix_that_nothing_open_comes_before_is_applied_though_later_checks_are_open() -> None:
    known: dict[str, Scalar] = {**PROVEN, "offload_mechanism": "fsdp2", "memory_headroom_fraction": 0.3}
    summary = advice({**known, "numa_local": False}).summary
    assert "Apply the first fix, a wrapper with numactl for each rank" in summary
    assert "Open still: the share of copies; then utilization with headroom (gpu_utilization open)" in summary


def test_a_baseline_that_was_measured_badly_comes_before_every_fix_but_what_is_settled_first() -> None:
    done: dict[str, Scalar] = {**CLEAN, "exposed_copy_fraction": 0.4, "warm_steps_only": False}
    assert "Before the first fix, in this order: warm steps only." in advice(done).summary
    assert "Settle this first" in advice({**done, **FULL}).summary


@pytest.mark.parametrize("slowdown", [0.7, 1.0, 1.1])
@pytest.mark.parametrize(
    ("facts", "finding", "fix"),
    [
        (
            FULL,
            "device memory is full at the peak (memory_headroom_fraction 0.01)",
            "a smaller micro-batch",
        ),
        (
            {"host_cpu_fraction": 0.95},
            "the host is saturated (host_cpu_fraction 0.95)",
            "fewer workers of the data loader: they take",
        ),
    ],
    ids=str,
)
def test_what_slows_any_step_is_said_where_offloading_is_not_the_cause(
    facts: dict[str, Scalar], finding: str, fix: str, slowdown: float
) -> None:
    known: dict[str, Scalar] = {**PROVEN, "offload_mechanism": "fsdp2", "slowdown": slowdown, **facts}
    found = advice(known)
    assert found.conclusion == "not_slow"
    assert f"Found, and slow with or without offloading: {finding}. First fix: {fix}" in found.summary
    assert [each.finding for each in found.findings] == [finding.partition(" (")[0]]
    exposed = advice({**known, "exposed_copy_fraction": 0.5}).findings
    assert exposed == found.findings  # what offloading does is no finding where it is not the cause


MOVES_ACTIVATIONS = ("megatron_layers", "megatron_fine_grained", "activation_hooks", "offload_runtime")


@pytest.mark.parametrize("mechanism", MOVES_ACTIVATIONS)
def test_a_long_cpu_step_is_no_finding_where_activations_alone_move(mechanism: str) -> None:
    facts: dict[str, Scalar] = {**SLOW, "offload_mechanism": mechanism, "cpu_step_fraction": 0.5}
    facts["host_cpu_fraction"] = 0.1
    found = advice(facts)
    assert not any("optimizer's step" in each.finding for each in found.findings)
    assert f"cpu_step_fraction 0.5 does not count: {mechanism} moves activations alone" in found.summary
    assert "does not count" not in advice({**facts, "cpu_step_fraction": 0.05}).summary
    without_ratio = advice({name: value for name, value in facts.items() if name != "slowdown"})
    assert without_ratio.conclusion == "unknown"
    assert "cpu_step_fraction 0.5 does not count" in without_ratio.summary
    if mechanism in ("activation_hooks", "offload_runtime"):
        other = found_in(sheet_of({**facts, "optimizer_offload": True}))
        assert "the optimizer's step on the CPU is long" in [each.finding for each in other]


def test_a_long_cpu_step_contradicts_an_optimizer_that_is_not_offloaded() -> None:
    facts: dict[str, Scalar] = {**SLOW, "offload_mechanism": "zero_offload", "optimizer_offload": False}
    found = advice({**facts, "cpu_step_fraction": 0.5})
    assert found.findings == ()
    assert "cpu_step_fraction 0.5 does not count: optimizer_offload no says" in found.summary
    assert "the optimizer's step on the CPU" not in [check.name for check in open_checks(sheet_of(facts))]


def test_what_is_settled_first_stands_first() -> None:
    first = [each.settles_first for each in FINDINGS[1:]]
    assert sorted(first, reverse=True) == first
    assert 0 < sum(first) < len(first)
