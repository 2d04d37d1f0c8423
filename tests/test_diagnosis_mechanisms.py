"""A diagnosis speaks of the mechanism that offloads: its switches, its price, its fixes, and what excludes it."""

from __future__ import annotations

import pytest

from offload_runtime.advice_diagnosis import found_in, open_checks
from offload_runtime.diagnosis_fixes import PRICES
from offload_runtime.diagnosis_table import FINDINGS
from offload_runtime.errors import UsageError
from offload_runtime.facts import FACTS
from offload_runtime.offload_mechanisms import MECHANISMS, mechanisms_on, mechanisms_possible
from offload_runtime.predicates import Scalar, comparisons
from tests.test_advice_diagnosis import CLEAN, SLOW, advice, sheet_of

MEGATRON: dict[str, Scalar] = {"framework": "megatron-bridge"}
GIB = 1 << 30


def fixes(facts: dict[str, Scalar]) -> list[str]:
    return [fix for found in found_in(sheet_of({**CLEAN, **facts})) for fix in found.fixes]


def test_the_mechanisms_are_the_choices_of_the_fact() -> None:
    assert {*MECHANISMS, "none", "unknown"} == set(FACTS["offload_mechanism"].choices)
    named = {name for finding in FINDINGS for name in finding.by_mechanism} | set(PRICES)
    assert named <= set(MECHANISMS)
    frameworks = {each for mechanism in MECHANISMS.values() for each in mechanism.frameworks}
    assert frameworks <= set(FACTS["framework"].choices)
    for mechanism in MECHANISMS.values():
        on_when = comparisons(mechanism.on_when) if mechanism.on_when is not None else ()
        assert {*mechanism.implies, *mechanism.asks, *(each.fact for each in on_when)} <= set(FACTS)


@pytest.mark.parametrize("more", [{}, {"optimizer_offload": False}], ids=str)
@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        ({"layer_activation_offload": True}, "a lower model.cpu_offloading_num_layers"),
        (
            {"layer_activation_offload": True, "num_offloaded_layers": 16},
            "model.cpu_offloading_num_layers lower than 16",
        ),
        ({"offload_mechanism": "megatron_layers"}, "a lower model.cpu_offloading_num_layers"),
        ({"fine_grained_offload": True}, "fewer model.offload_modules"),
        ({"offload_mechanism": "megatron_fine_grained"}, "fewer model.offload_modules"),
    ],
    ids=str,
)
def test_where_megatron_moves_activations_alone_nothing_is_said_of_the_optimizer(
    facts: dict[str, Scalar], fix: str, more: dict[str, Scalar]
) -> None:
    known = {**MEGATRON, **SLOW, "exposed_copy_fraction": 0.5, **facts, **more}
    found = advice(known)
    assert found.findings[0].fixes[0].startswith(fix)
    assert not any("optimizer" in fix for each in found.findings for fix in each.fixes)
    assert "optimizer" not in found.summary.lower()
    assert {"optimizer_offload", "offload_fraction", "offload_mechanism"}.isdisjoint(found.missing)
    assert "the optimizer's step on the CPU" not in [check.name for check in open_checks(sheet_of(known))]


def test_of_two_mechanisms_of_megatron_both_have_their_fixes_and_checks() -> None:
    both: dict[str, Scalar] = {**MEGATRON, "optimizer_offload": True, "fine_grained_offload": True}
    assert [each.name for each in mechanisms_on(both)] == ["megatron_optimizer", "megatron_fine_grained"]
    known = {**SLOW, **both, "exposed_copy_fraction": 0.5}
    found = advice(known).findings[0].fixes
    assert "a lower optimizer.optimizer_offload_fraction" in found
    assert any(fix.startswith("fewer model.offload_modules") for fix in found)
    assert "the optimizer's step on the CPU" in [check.name for check in open_checks(sheet_of(known))]
    assert "Name what offloads" not in advice(known).summary


def test_where_it_is_not_known_which_of_megatron_s_is_on_it_is_asked_for() -> None:
    found = advice({**MEGATRON, **SLOW})
    assert "Name what offloads (offload_mechanism)" in found.summary
    assert found.missing[0] == "offload_mechanism"
    left = mechanisms_possible({**MEGATRON, "optimizer_offload": False, "fine_grained_offload": False})
    assert [each.name for each in left] == ["megatron_layers"]


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name.startswith("megatron")])
def test_a_mechanism_of_megatron_and_its_switch_are_the_same_fact(name: str) -> None:
    named = sheet_of({"offload_mechanism": name})
    switches = dict(MECHANISMS[name].implies)
    assert {fact: named.get(fact) for fact in switches} == switches
    by_switch = sheet_of(switches)
    assert (by_switch.get("offload_mechanism"), by_switch.get("offload_enabled")) == (name, True)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"framework": "deepspeed", "offload_mechanism": "fsdp2"}, "fsdp2 and framework deepspeed"),
        (
            {"framework": "megatron-bridge", "offload_mechanism": "offload_runtime"},
            "offload_runtime and framework megatron-bridge",
        ),
        ({"framework": "fsdp2", "offload_mechanism": "zero_offload"}, "zero_offload and framework fsdp2"),
        (
            {"framework": "deepspeed", "layer_activation_offload": True},
            "megatron_layers is on and framework deepspeed",
        ),
        (
            {"offload_mechanism": "megatron_optimizer", "optimizer_offload": False},
            "optimizer_offload false: with that mechanism optimizer_offload is true",
        ),
        (
            {"offload_mechanism": "none", "fine_grained_offload": True},
            "offload_mechanism is none and megatron_fine_grained is on",
        ),
    ],
    ids=str,
)
def test_facts_that_exclude_each_other_are_refused_by_name(facts: dict[str, Scalar], said: str) -> None:
    with pytest.raises(UsageError, match="CLI614") as error:
        sheet_of({**SLOW, **facts} if facts.get("offload_mechanism") != "none" else facts)
    assert any(said in found.message for found in error.value.diagnostics)
    assert all(found.hint for found in error.value.diagnostics)


OWN: dict[str, Scalar] = {"offload_mechanism": "offload_runtime", "mode": "inductor", "num_graphs": 1}


def test_how_a_policy_is_compiled_is_looked_at_first() -> None:
    own = {**CLEAN, **OWN}
    assert open_checks(sheet_of({**SLOW, "offload_mechanism": "offload_runtime"}))[0].facts == (
        "mode",
        "num_graphs",
    )
    assert advice(own).findings == ()
    found = advice({**own, "mode": "graph", "num_graphs": 9, "pcie_link_width": 8}).findings
    assert [each.because.rpartition(", ")[2] for each in found] == [
        "mode graph",
        "num_graphs 9",
        "pcie_link_width 8",
    ]
    assert '"mode": "inductor"' in found[0].fixes[0]
    assert "graph_breaks" in found[1].fixes[0]
    assert advice({**own, "offload_mechanism": "fsdp2", "mode": "graph", "num_graphs": 9}).findings == ()


def test_the_mode_that_a_plan_was_asked_for_is_not_that_of_the_run() -> None:
    sheet = sheet_of({**SLOW, "offload_mechanism": "offload_runtime"})
    planned = sheet.beneath({"mode": "graph", "pcie_generation": 1, "pcie_link_width": 4}, "elsewhere")
    assert found_in(planned) == ()
    assert open_checks(planned) == open_checks(sheet)


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ({}, "a lower limits.budget, where it is above"),
        (
            {"budget_bytes": 20 * GIB, "window_bytes": 12 * GIB},
            "limits.budget down to what can leave while compute hides it, 12 GiB, from 20 GiB",
        ),
        ({"budget_bytes": 8 * GIB, "window_bytes": 12 * GIB}, "schedule.defer higher where stalls are waits"),
        (
            {"budget_bytes": 8 * GIB, "window_bytes": 12 * GIB, "is_moe": True, "defer": 8},
            "schedule.defer: 1",
        ),
        (
            {"budget_bytes": 20 * GIB, "window_bytes": 12 * GIB, "fits": True},
            "torch.compile(model) without the policy",
        ),
    ],
    ids=str,
)
def test_the_first_fix_of_a_policy_that_stalls_hangs_on_its_budget(
    facts: dict[str, Scalar], first: str
) -> None:
    found = fixes({**OWN, "exposed_copy_fraction": 0.5, **facts})
    assert found[0].startswith(first)
    within = facts.get("budget_bytes") == 8 * GIB
    assert any("limits.budget" in fix for fix in found) is not within


def test_a_step_that_ran_out_of_memory_is_not_said_to_fit() -> None:
    assert not any("off, such" in fix for fix in fixes({"fits": True, "out_of_memory": True}))


@pytest.mark.parametrize(
    ("facts", "said", "unsaid"),
    [
        ({"offload_mechanism": "fsdp2"}, "no share of it can be set there", "lower"),
        ({"framework": "fsdp2", "optimizer_offload": True}, "CPUOffloadPolicy is on fewer modules", "lower"),
        (
            {"offload_mechanism": "megatron_optimizer"},
            "lower optimizer.optimizer_offload_fraction",
            "no share",
        ),
        (
            {"offload_mechanism": "zero_offload", "optimizer_offload": True, "zero_stage": 2},
            "no share of it can be set below ZeRO-3",
            "lower the share",
        ),
        (
            {"offload_mechanism": "zero_offload", "optimizer_offload": True},
            "lower the share if that is all it is (offload_optimizer.ratio",
            "no share",
        ),
    ],
    ids=str,
)
def test_the_price_of_the_state_is_lowered_as_the_mechanism_can(
    facts: dict[str, Scalar], said: str, unsaid: str
) -> None:
    summary = advice({**SLOW, "cpu_step_fraction": 0.6, **facts}).summary
    price = summary[summary.index("this may be its price") :].partition(". ")[0]
    assert said in price
    assert unsaid not in price


@pytest.mark.parametrize(
    ("facts", "is_said"),
    [
        ({"cpu_step_fraction": 0.02, "copy_fraction": 0.05}, False),
        ({"cpu_step_fraction": 0.02, "exposed_copy_fraction": 0.05}, False),
        ({"cpu_step_fraction": 0.02}, True),
        ({"copy_fraction": 0.05}, True),
        ({"cpu_step_fraction": 0.02, "copy_fraction": 0.5}, True),
        ({"cpu_step_fraction": 0.5, "copy_fraction": 0.05}, True),
    ],
    ids=str,
)
def test_the_price_of_the_state_is_not_named_where_neither_its_step_nor_its_copies_take_long(
    facts: dict[str, Scalar], is_said: bool
) -> None:
    summary = advice({**SLOW, "optimizer_offload": True, **facts}).summary
    assert ("this may be its price" in summary) is is_said


@pytest.mark.parametrize(
    ("facts", "impossible"),
    [
        ({"exposed_copy_fraction": 0.5, "framework": "fsdp2"}, "before parameters"),
        ({"exposed_copy_fraction": 0.5, "offload_mechanism": "fsdp1"}, "before parameters"),
        ({"cpu_step_fraction": 0.5, "offload_mechanism": "fsdp2"}, "fewer offloaded states"),
        (
            {"exposed_copy_fraction": 0.5, "offload_mechanism": "zero_offload", "optimizer_offload": True},
            "before parameters",
        ),
        (
            {"cpu_step_fraction": 0.5, "offload_mechanism": "megatron_optimizer", "offload_fraction": 0.25},
            "overlap_cpu_optimizer_d2h_h2d",
        ),
        ({"offload_mechanism": "activation_hooks", "pageable_fraction": 0.0}, "if it is not"),
        ({"offload_mechanism": "activation_hooks", "host_cpu_fraction": 0.95}, "states"),
    ],
    ids=str,
)
def test_a_fix_that_is_impossible_or_done_is_not_named(facts: dict[str, Scalar], impossible: str) -> None:
    assert fixes(facts)
    assert not any(impossible in fix for fix in fixes(facts))


def test_a_disk_that_does_what_it_can_has_a_price() -> None:
    nvme: dict[str, Scalar] = {
        **CLEAN,
        "offload_mechanism": "nvme",
        "offload_device": "nvme",
        "slowdown": 8.0,
    }
    unrated = advice({**nvme, "nvme_read_gbps": 6.0})
    assert (unrated.findings, unrated.missing[0]) == ((), "nvme_rated_gbps")
    slow = advice({**nvme, "nvme_read_gbps": 3.5, "nvme_rated_gbps": 7.0})
    assert [each.finding for each in slow.findings] == ["the disk is slow"]
    small = advice({**nvme, "nvme_read_gbps": 2.8, "nvme_rated_gbps": 3.0})
    assert ["the price of NVMe" in each.finding for each in small.findings] == [True]
    found = advice({**nvme, "nvme_read_gbps": 6.0, "nvme_rated_gbps": 7.0})
    (only,) = found.findings
    assert "the price of NVMe" in only.finding
    assert only.fixes[0].startswith("zero_optimization.offload_optimizer.device: cpu")
    assert "None of the checks explains it" not in found.summary
    assert "the price of NVMe" not in advice({**nvme, "nvme_read_gbps": 1.0}).summary
    assert advice({**CLEAN, "offload_mechanism": "zero_offload", "nvme_read_gbps": 6.0}).findings == ()


@pytest.mark.parametrize(
    ("facts", "is_found"),
    [
        ({"pcie_generation": 1}, True),
        ({"pcie_generation": 2}, True),
        ({"pcie_generation": 3}, False),
        ({"pcie_generation": 4}, False),
        ({"pcie_generation": 4, "link_d2h_gbps": 26.0}, False),
        ({"pcie_generation": 3, "link_d2h_gbps": 26.0}, True),
        ({"pcie_generation": 4, "link_d2h_gbps": 55.3}, True),
        ({"pcie_generation": 5, "link_d2h_gbps": 55.3}, False),
        ({"pcie_generation": 1, "link_is_coherent": True}, False),
    ],
    ids=str,
)
def test_a_link_below_the_generation_that_its_rate_needs_is_a_finding(
    facts: dict[str, Scalar], is_found: bool
) -> None:
    found = found_in(sheet_of({**CLEAN, "offload_mechanism": "fsdp1", **facts}))
    assert [each.finding for each in found] == ["the link runs at a low generation"] * is_found


def test_a_symptom_does_not_repeat_the_fixes_of_its_cause() -> None:
    stalls: dict[str, Scalar] = {"gpu_utilization": 0.3, "memory_headroom_fraction": 0.4}
    alone = fixes({"offload_mechanism": "fsdp2", **stalls})
    both = fixes({"offload_mechanism": "fsdp2", **stalls, "exposed_copy_fraction": 0.5})
    assert alone[0].startswith("offload_policy OffloadPolicy")
    assert len(both) == len(set(both))


@pytest.mark.parametrize(
    ("mechanism", "is_said"), [("zero_offload", True), ("fsdp2", False), ("offload_runtime", False)]
)
def test_three_sides_are_measured_where_one_of_two_can_come_back(mechanism: str, is_said: bool) -> None:
    summary = advice({**CLEAN, **OWN, "offload_mechanism": mechanism}).summary
    assert "None of the checks explains it" in summary
    assert ("measure three sides" in summary) is is_said


@pytest.mark.parametrize(
    ("step", "host", "is_idle"),
    [(0.5, 0.24, True), (0.9, 0.4, True), (0.3, 0.2, False), (0.5, 0.3, False), (0.95, 0.92, False)],
)
def test_cores_are_idle_where_the_step_keeps_less_than_half_of_them_busy(
    step: float, host: float, is_idle: bool
) -> None:
    facts: dict[str, Scalar] = {"cpu_step_fraction": step, "host_cpu_fraction": host}
    found = advice({**CLEAN, "offload_mechanism": "fsdp2", **facts}).findings
    assert any("cores are idle" in each.finding for each in found) is is_idle


def test_two_switches_of_activations_name_no_disk_and_no_price_of_state() -> None:
    both: dict[str, Scalar] = {"layer_activation_offload": True, "fine_grained_offload": True}
    summary = advice({"slowdown": 3.0, **both}).summary
    assert "disk" not in summary
    assert "price" not in summary


def test_a_run_without_offloading_that_did_not_run_out_of_memory_fits() -> None:
    switched_off: dict[str, Scalar] = {"offload_mechanism": "none", "out_of_memory": False}
    assert sheet_of(switched_off).get("fits") is True
    assert advice(switched_off).conclusion == "nothing"
    assert sheet_of({**switched_off, "out_of_memory": True}).get("fits") is None
    assert sheet_of({**switched_off, "offload_mechanism": "fsdp2"}).get("fits") is None
