"""A run that offloads and became slow is diagnosed first, in order, and what is off the device already is no cure."""

from __future__ import annotations

import pytest

from offload_runtime.advice import Advice, advise
from offload_runtime.advice_diagnosis import found_in, is_slow, open_checks
from offload_runtime.card import Card
from offload_runtime.card_verdicts import judge_card
from offload_runtime.diagnosis_table import CHECKS, FINDINGS, SIGNS
from offload_runtime.errors import UsageError
from offload_runtime.fact_sheet import FactSheet, FactsResult
from offload_runtime.facts import FACTS
from offload_runtime.predicates import Scalar, comparisons
from offload_runtime.state_facts import derived

GIB = 1 << 30
SLOW: dict[str, Scalar] = {"offload_enabled": True, "slowdown": 3.0}
PROVEN: dict[str, Scalar] = {**SLOW, "paired_baseline": True, "warm_steps_only": True}


def sheet_of(facts: dict[str, Scalar]) -> FactSheet:
    return derived(FactSheet().with_facts(facts, "given"))


def advice(facts: dict[str, Scalar]) -> Advice:
    return advise(FactsResult(sheet_of(facts)))


def test_a_slow_run_is_to_be_diagnosed_and_not_asked_whether_it_fits() -> None:
    found = advice({**SLOW, "framework": "deepspeed"})
    assert found.summary.startswith("Diagnose why a step takes 3 times as long as without offloading")
    assert "In this order: a paired baseline; then warm steps only; then the share of copies" in found.summary
    assert found.missing[:2] == ("paired_baseline", "warm_steps_only")
    assert "out_of_memory" not in found.missing


def test_what_was_checked_is_no_longer_in_the_order() -> None:
    found = advice({**PROVEN, "copy_fraction": 0.6, "exposed_copy_fraction": 0.1})
    assert "In this order: utilization with headroom; then" in found.summary


def test_a_check_that_is_done_in_part_says_what_is_open_of_it() -> None:
    found = advice({**PROVEN, "copy_fraction": 0.6})
    assert "In this order: the share of copies (exposed_copy_fraction open); then" in found.summary


@pytest.mark.parametrize("mechanism", ["offload_runtime", "activation_hooks"])
def test_where_activations_alone_move_the_optimizers_step_is_no_check(mechanism: str) -> None:
    checks = [check.name for check in open_checks(sheet_of({**SLOW, "offload_mechanism": mechanism}))]
    assert "the host" in checks
    assert "the optimizer's step on the CPU" not in checks
    assert "the optimizer's step on the CPU" in [check.name for check in open_checks(sheet_of(SLOW))]


def test_who_knows_nothing_yet_is_told_how_a_slow_run_is_diagnosed() -> None:
    assert "--fact slowdown=3" in advice({}).summary
    assert "--fact slowdown=3" not in advice({"out_of_memory": True}).summary


def test_a_baseline_that_was_not_paired_is_still_to_do() -> None:
    assert open_checks(sheet_of({**SLOW, "paired_baseline": False}))[0].facts == ("paired_baseline",)


def test_what_fits_on_the_device_and_is_slow_is_not_diagnosed_but_taken_off() -> None:
    found = advice({**SLOW, "fits": True})
    assert found.conclusion == "nothing"
    assert found.summary.startswith("It fits without offloading: ")
    assert "then time it again. Nothing has to be diagnosed." in found.summary
    assert "Diagnose why" not in found.summary
    assert "Nothing has to leave the device" in found.summary


@pytest.mark.parametrize(
    "facts",
    [
        {"offload_enabled": True, "slowdown": 1.19},
        {"offload_mechanism": "none", "slowdown": 3.0},
        {"offload_enabled": True},
        {"offload_mechanism": "activation_hooks"},
    ],
    ids=str,
)
def test_what_is_not_known_to_be_slow_by_offloading_is_not_diagnosed(facts: dict[str, Scalar]) -> None:
    assert not is_slow(sheet_of(facts))
    assert "Diagnose" not in advice(facts).summary


def test_every_check_leads_to_facts_of_the_table() -> None:
    assert {name for check in CHECKS for name in check.facts} <= set(FACTS)
    named = {comparison.fact for finding in FINDINGS for comparison in comparisons(finding.sign)}
    of_the_run = {"offload_mechanism", "offload_device", "fits", "link_d2h_gbps"}
    follow = {"cpu_step_cores_fraction", "nvme_rated_fraction"}
    assert named <= {name for check in CHECKS for name in check.facts} | of_the_run | follow


@pytest.mark.parametrize("more", [{}, {"offload_mechanism": "activation_hooks"}], ids=str)
def test_a_slowdown_by_itself_says_that_something_is_offloaded(more: dict[str, Scalar]) -> None:
    found = advice({"slowdown": 3.0, **more})
    assert found.conclusion == "diagnose"
    assert found.summary.startswith("Diagnose why a step takes 3 times as long")
    named = ("offload_mechanism",) if not more else ()
    assert found.missing[: len(named) + 1] == (*named, "paired_baseline")
    assert ("Name what offloads (offload_mechanism)" in found.summary) is (not more)


@pytest.mark.parametrize(
    ("slowdown", "headline"),
    [(1.02, "Offloading is not the cause of a slow step"), (1.1, "This is the normal price of offloading")],
)
def test_a_step_that_is_hardly_longer_is_said_to_be_no_finding(slowdown: float, headline: str) -> None:
    found = advice({"slowdown": slowdown})
    assert found.conclusion == "not_slow"
    assert found.summary.startswith(headline)
    assert found.missing == ("paired_baseline", "warm_steps_only")
    settled = advice({**PROVEN, "slowdown": slowdown})
    assert settled.missing == ()
    assert "That holds if" not in settled.summary


CLEAN: dict[str, Scalar] = {
    **PROVEN,
    "copy_fraction": 0.5,
    "exposed_copy_fraction": 0.1,
    "gpu_utilization": 0.9,
    "memory_headroom_fraction": 0.3,
    "numa_local": True,
    "pageable_fraction": 0.0,
    "pcie_link_width": 16,
    "pcie_generation": 5,
    "host_cpu_fraction": 0.3,
    "cpu_step_fraction": 0.1,
    "offload_device": "cpu",
}


@pytest.mark.parametrize(
    ("facts", "asked", "not_asked"),
    [
        (
            {"slowdown": 3.0},
            {
                "offload_mechanism",
                "optimizer_offload",
                "parameter_offload",
                "offload_fraction",
                "nvme_read_gbps",
            },
            set(),
        ),
        (
            {"slowdown": 3.0, "offload_mechanism": "unknown"},
            {"offload_mechanism", "nvme_read_gbps"},
            set(),
        ),
        (
            {"slowdown": 3.0, "framework": "deepspeed"},
            {"offload_mechanism", "optimizer_offload", "nvme_read_gbps"},
            set(),
        ),
        (
            {"slowdown": 3.0, "offload_mechanism": "zero_offload", "optimizer_offload": False},
            {"parameter_offload"},
            {"offload_mechanism", "offload_fraction", "optimizer_offload", "nvme_read_gbps"},
        ),
        (
            {"slowdown": 3.0, "offload_mechanism": "activation_hooks"},
            {"paired_baseline"},
            {"offload_mechanism", "optimizer_offload", "parameter_offload", "nvme_read_gbps"},
        ),
    ],
)
def test_what_offloads_and_what_of_the_state_is_asked_for(
    facts: dict[str, Scalar], asked: set[str], not_asked: set[str]
) -> None:
    found = advice(facts)
    assert asked <= set(found.missing)
    assert not not_asked & set(found.missing)
    assert ("the disk by itself, if one is used" in found.summary) is ("nvme_read_gbps" in asked)


@pytest.mark.parametrize(
    ("facts", "finding", "fix"),
    [
        (
            {"gpu_utilization": 0.35, "memory_headroom_fraction": 0.5, "offload_mechanism": "fsdp2"},
            "the GPU waits while its memory is free, the signature of offload stalls",
            "offload_policy OffloadPolicy for as many modules as fit",
        ),
        (
            {"offload_mechanism": "offload_runtime", "stall_ms": 300.0, "offload_step_ms": 900.0},
            "compute waits for copies",
            "a lower limits.budget",
        ),
        (
            {"offload_mechanism": "fsdp2", "pageable_fraction": 0.4},
            "copies are pageable",
            "CPUOffloadPolicy(pin_memory=True)",
        ),
        (
            {"offload_mechanism": "fsdp2", "cpu_step_fraction": 0.4},
            "the optimizer's step on the CPU is long",
            "no share can be set",
        ),
    ],
    ids=str,
)
def test_a_sign_of_stalls_is_diagnosed_without_a_slowdown(
    diagnosis_card: Card, facts: dict[str, Scalar], finding: str, fix: str
) -> None:
    found = advice(facts)
    assert found.conclusion == "diagnose"
    assert found.summary.startswith("Diagnose what a step that offloads waits for, ")
    assert finding in found.summary
    assert "Before the first fix, in this order: " in found.summary
    assert found.findings[0].fixes[0].startswith(fix)
    assert "slowdown" in found.missing
    assert "out_of_memory" not in found.missing
    assert is_slow(sheet_of(facts))
    assert judge_card(diagnosis_card, dict(sheet_of(facts).values)).applies is True
    assert not is_slow(sheet_of({**facts, "offload_mechanism": "none"}))
    assert not is_slow(sheet_of({**facts, "slowdown": 1.0}))


def test_every_sign_is_a_reason_of_the_card(diagnosis_card: Card) -> None:
    reasons = [set(comparisons(condition.when)) for condition in diagnosis_card.enable_when if condition.when]
    assert all(any(set(comparisons(sign)) <= reason for reason in reasons) for sign in SIGNS)


def test_a_step_that_is_shorter_with_offloading_may_be_a_ratio_the_other_way_round() -> None:
    found = advice({"slowdown": 0.3})
    assert found.summary.startswith("The step is faster with offloading: a step takes 0.3 times as long")
    assert "give --fact slowdown=3.333" in found.summary
    assert "medians are close" not in found.summary
    assert "medians are close" in advice({"slowdown": 0.97}).summary
    assert "the other way round" not in advice({"slowdown": 0.0}).summary


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"offload_mechanism": "none"}, "offload_mechanism none"),
        ({"offload_enabled": False}, "offload_enabled"),
    ],
    ids=str,
)
def test_a_slowdown_of_nothing_is_a_contradiction(facts: dict[str, Scalar], named: str) -> None:
    found = advice({**facts, "slowdown": 3.0})
    assert found.summary.startswith(named)
    assert "says that nothing is offloaded, and slowdown 3 is" in found.summary
    assert (found.conclusion, found.findings) == ("unknown", ())
    assert "out_of_memory" in found.missing
    assert "says that nothing is offloaded" not in advice({**facts, "slowdown": 1.0}).summary


def test_the_disk_is_in_the_order_of_runs_that_use_one() -> None:
    nvme: dict[str, Scalar] = {**CLEAN, "offload_mechanism": "nvme", "offload_device": "nvme"}
    assert "In this order: the disk by itself." in advice(nvme).summary
    (found,) = advice({**nvme, "nvme_read_gbps": 1.0}).findings
    extension, queue, *_ = found.fixes
    assert extension.startswith("the asynchronous I/O extension")
    (built,) = advice({**nvme, "nvme_read_gbps": 1.0, "asynchronous_io": True}).findings
    assert built.fixes[0] == queue == "aio.queue_depth and aio.block_size higher"
    assert open_checks(sheet_of(CLEAN)) == ()


@pytest.mark.parametrize(
    ("facts", "is_open"),
    [
        ({"copy_fraction": 0.1}, False),
        ({"copy_fraction": 0.6}, True),
        ({"exposed_copy_fraction": 0.3}, False),
        ({"offload_mechanism": "offload_runtime", "stall_ms": 300.0, "offload_step_ms": 900.0}, False),
        ({"offload_mechanism": "offload_runtime", "stall_ms": 300.0, "step_ms": 300.0}, False),
        ({"offload_mechanism": "zero_offload", "stall_ms": 300.0, "offload_step_ms": 900.0}, True),
    ],
    ids=str,
)
def test_what_settles_the_share_of_copies(facts: dict[str, Scalar], is_open: bool) -> None:
    names = [check.name for check in open_checks(sheet_of({**PROVEN, **facts}))]
    assert ("the share of copies" in names) is is_open


def test_what_this_package_measured_says_how_much_is_exposed() -> None:
    mine: dict[str, Scalar] = {**SLOW, "offload_mechanism": "offload_runtime", "stall_ms": 300.0}
    assert sheet_of({**mine, "offload_step_ms": 900.0}).number("exposed_copy_fraction") == pytest.approx(
        1 / 3
    )
    # A step without a policy is shorter by the slowdown.
    assert sheet_of({**mine, "step_ms": 300.0}).number("exposed_copy_fraction") == pytest.approx(1 / 3)
    assert sheet_of({**SLOW, "offload_mechanism": "offload_runtime", "hidden_fraction": 1.0}).number(
        "exposed_copy_fraction"
    ) == pytest.approx(0)
    assert sheet_of({**mine, "offload_step_ms": 900.0}).get("cpu_step_fraction") == 0.0
    assert sheet_of({**mine, "optimizer_offload": True}).get("cpu_step_fraction") is None
    (found,) = found_in(sheet_of({**mine, "offload_step_ms": 900.0}))
    assert found.fixes[0].startswith("a lower limits.budget")


@pytest.mark.parametrize(
    "facts",
    [
        {"copy_fraction": 0.2, "exposed_copy_fraction": 0.3},
        {"offload_mechanism": "offload_runtime", "stall_ms": 300.0, "offload_step_ms": 200.0},
    ],
    ids=str,
)
def test_a_part_that_is_larger_than_the_whole_is_refused(facts: dict[str, Scalar]) -> None:
    with pytest.raises(UsageError, match="CLI614"):
        sheet_of({**PROVEN, **facts})


def test_a_proven_slowdown_is_diagnosed_even_where_memory_is_full(diagnosis_card: Card) -> None:
    full: dict[str, Scalar] = {"gpu_utilization": 0.3, "memory_headroom_fraction": 0.01}
    found = judge_card(diagnosis_card, {**PROVEN, **full, "pageable_fraction": 0.4})
    assert found.applies is True
    assert any("num_alloc_retries" in interaction.text for interaction in found.interactions)
    fine = judge_card(diagnosis_card, {**PROVEN, **full, "slowdown": 1.0})
    assert fine.applies is False
    assert any("cudaMalloc" in reason for reason in fine.reasons)


@pytest.mark.parametrize(
    ("slowdown", "applies", "reason"),
    [
        (1.01, False, "offloading is not the cause"),
        (1.1, False, "within what offloading normally costs"),
        (1.2, True, "at least a fifth longer"),
    ],
)
def test_the_slowdown_has_three_verdicts(
    diagnosis_card: Card, slowdown: float, applies: bool, reason: str
) -> None:
    found = judge_card(diagnosis_card, {**PROVEN, "slowdown": slowdown})
    assert found.applies is applies
    assert any(reason in text for text in found.reasons)


@pytest.mark.parametrize("name", ["paired_baseline", "warm_steps_only"])
def test_a_measurement_that_is_not_paired_or_warm_is_a_requirement_that_is_missing(
    diagnosis_card: Card, name: str
) -> None:
    labels = [found.label for found in judge_card(diagnosis_card, {**PROVEN, name: False}).interactions]
    assert labels.count("required (missing)") == 1
    unknown = {fact: value for fact, value in PROVEN.items() if fact != name}
    labels = [found.label for found in judge_card(diagnosis_card, unknown).interactions]
    assert labels.count("required (unknown)") == 1


def test_the_next_command_of_the_diagnosis_runs_where_another_system_trains(diagnosis_card: Card) -> None:
    assert diagnosis_card.next_command is not None
    assert diagnosis_card.next_command.endswith("--file references/measuring.md")


def test_a_long_step_on_the_cpu_is_a_reason_by_itself(diagnosis_card: Card) -> None:
    long: dict[str, Scalar] = {"offload_enabled": True, "cpu_step_fraction": 0.5, "copy_fraction": 0.1}
    assert judge_card(diagnosis_card, {**long, "optimizer_offload": True}).applies is True
    found = judge_card(diagnosis_card, {**long, "offload_mechanism": "zero_offload"})
    assert found.applies is True
    assert any("no setting of the link helps" in interaction.text for interaction in found.interactions)


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"warm_steps_only": False, "paired_baseline": True}, "warm"),
        ({"paired_baseline": False}, "in a pair"),
        ({"paired_baseline": False, "warm_steps_only": False}, "in a pair and warm"),
    ],
)
def test_a_ratio_that_was_measured_badly_says_nothing(facts: dict[str, Scalar], wrong: str) -> None:
    found = advice({"slowdown": 1.03, "offload_mechanism": "zero_offload", **facts})
    assert found.summary.startswith(f"The ratio of 1.03 does not count yet: it was not measured {wrong}.")
    assert "Look elsewhere" not in found.summary


def test_whether_it_fits_without_is_asked_in_the_headline_until_it_is_known() -> None:
    question = "Does it fit without offloading (fits)?"
    assert question in advice(SLOW).summary
    assert question not in advice({**SLOW, "fits": False}).summary
    assert question not in advice({**SLOW, "out_of_memory": True}).summary


def test_where_only_a_disk_is_open_that_may_not_be_used_the_first_fix_is_applied() -> None:
    checked = {name: value for name, value in CLEAN.items() if name != "offload_device"}
    found = advice({**checked, "exposed_copy_fraction": 0.4, "framework": "deepspeed"})
    assert "Apply the first fix, " in found.summary
    assert found.summary.endswith("Open still: the disk by itself, if one is used.")
