"""What a diagnosis finds, and its fix: for the system that offloads, and only what the facts leave to do."""

from __future__ import annotations

import re

import pytest

from offload_runtime.advice_diagnosis import found_in
from offload_runtime.cli.command_lookup import command_problem
from offload_runtime.diagnosed_run import with_mechanism
from offload_runtime.diagnosis_fixes import PAGEABLE, PINNED_ALWAYS, PINS
from offload_runtime.diagnosis_rows import Fix
from offload_runtime.diagnosis_table import FINDINGS
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.offload_mechanisms import MECHANISMS
from offload_runtime.predicates import Scalar
from offload_runtime.skills_catalog import list_skills
from tests.test_advice_diagnosis import CLEAN, PROVEN, advice, sheet_of


def test_checks_that_found_nothing_are_said_to_explain_nothing_and_no_more_is_offloaded() -> None:
    fsdp: dict[str, Scalar] = {**CLEAN, "offload_mechanism": "fsdp1"}
    found = advice({**fsdp, "fits": False, "resident_fits": True, "floor_fits": True})
    assert "None of the checks explains it. Compare one warm trace of each side" in found.summary
    assert (found.findings, found.order, found.missing) == ((), (), ())


@pytest.mark.parametrize(
    ("facts", "finding", "fix"),
    [
        ({"exposed_copy_fraction": 0.5}, "compute waits for copies", "move less"),
        (
            {"exposed_copy_fraction": 0.5, "framework": "deepspeed"},
            "compute waits for copies",
            "zero_optimization.off",
        ),
        (
            {"cpu_step_fraction": 0.5, "offload_mechanism": "zero_offload"},
            "the optimizer's step on the CPU is long",
            "zero_optimization.offload_optimizer.ratio",
        ),
        (
            {"cpu_step_fraction": 0.5, "framework": "megatron-bridge"},
            "the optimizer's step on the CPU is long",
            "a lower optimizer.optimizer_offload_fraction",
        ),
        (
            {"pageable_fraction": 0.5, "offload_mechanism": "fsdp2"},
            "copies are pageable",
            "CPUOffloadPolicy(pin_memory=True)",
        ),
        ({"pcie_link_width": 8}, "the link is narrow", "the slot"),
        (
            {"numa_local": False},
            "the process runs on another NUMA node than its GPU",
            "a wrapper with numactl",
        ),
        ({"host_cpu_fraction": 0.95}, "the host is saturated", "fewer workers"),
        ({"memory_headroom_fraction": 0.01}, "device memory is full at the peak", "a smaller micro-batch"),
    ],
    ids=str,
)
def test_a_finding_is_named_with_the_fix_for_the_system_that_offloads(
    facts: dict[str, Scalar], finding: str, fix: str
) -> None:
    found = advice({**CLEAN, **facts})
    (only,) = found.findings
    assert only.finding == finding
    assert only.fixes[0].startswith(fix)
    assert f"Found: {finding} (" in found.summary
    assert "None of the checks" not in found.summary


def test_hooks_are_a_finding_before_anything_is_measured() -> None:
    found = advice({"slowdown": 3.0, "offload_mechanism": "activation_hooks"})
    assert [each.finding for each in found.findings] == ["hooks copy on the compute stream"]
    assert "Found so far: hooks copy on the compute stream" in found.summary
    assert "pin_memory=True" in found.findings[0].fixes[0]
    assert 'backend="offload"' in found.findings[0].fixes[2]


def test_every_finding_has_a_fix_whatever_is_known() -> None:
    named = ((), *((name,) for name in MECHANISMS))
    for finding in FINDINGS:
        for names in named:
            facts = with_mechanism(sheet_of({"offload_mechanism": names[0]} if names else {}))
            for more in (
                {},
                {"zero_stage": 2},
                {"memory_headroom_fraction": 0.01},
                {"optimizer_offload": True},
            ):
                assert finding.fixes_for(names, {**facts, **more}), (finding.name, names, more)


@pytest.mark.parametrize(
    ("facts", "impossible"),
    [
        (
            {"exposed_copy_fraction": 0.5, "offload_mechanism": "zero_offload", "parameter_offload": False},
            "offload_param",
        ),
        (
            {"pageable_fraction": 0.5, "offload_mechanism": "zero_offload", "parameter_offload": False},
            "offload_param",
        ),
        (
            {"cpu_step_fraction": 0.5, "offload_mechanism": "zero_offload", "zero_stage": 2},
            "offload_optimizer.ratio",
        ),
        (
            {"cpu_step_fraction": 0.5, "framework": "megatron-bridge", "offload_overlap": True},
            "overlap_cpu_optimizer_d2h_h2d",
        ),
        ({"exposed_copy_fraction": 0.5, "memory_headroom_fraction": 0.01}, "a larger batch"),
    ],
    ids=str,
)
def test_a_fix_that_the_facts_leave_nothing_to_do_is_not_named(
    facts: dict[str, Scalar], impossible: str
) -> None:
    def named(known: dict[str, Scalar]) -> bool:
        return any(
            impossible in fix for found in found_in(sheet_of({**CLEAN, **known})) for fix in found.fixes
        )

    last = list(facts)[-1]
    assert named({name: value for name, value in facts.items() if name != last})
    assert not named(facts)


@pytest.mark.parametrize(
    ("facts", "is_named"),
    [
        ({"optimizer_offload": False, "parameter_offload": True}, True),
        ({"optimizer_offload": True, "parameter_offload": True}, False),
        ({}, False),
    ],
    ids=str,
)
def test_state_leaves_in_place_of_parameters_where_these_alone_are_off(
    facts: dict[str, Scalar], is_named: bool
) -> None:
    exposed: dict[str, Scalar] = {**CLEAN, "exposed_copy_fraction": 0.5, "copy_fraction": 0.6, **facts}
    fixes = [fix for found in found_in(sheet_of(exposed)) for fix in found.fixes]
    assert ("optimizer state off the device before parameters" in fixes) is is_named


@pytest.mark.parametrize(("copy_fraction", "is_found"), [(0.1, False), (0.5, True)])
def test_a_narrow_link_is_no_finding_where_hardly_anything_is_copied(
    copy_fraction: float, is_found: bool
) -> None:
    slow: dict[str, Scalar] = {**CLEAN, "copy_fraction": copy_fraction, "cpu_step_fraction": 0.7}
    narrow = found_in(sheet_of({**slow, "pcie_link_width": 8, "offload_mechanism": "megatron_optimizer"}))
    assert ("the link is narrow" in [found.finding for found in narrow]) is is_found
    unread = {name: value for name, value in slow.items() if name != "pcie_link_width"}
    summary = advice({**unread, "slowdown": 3.0, "offload_mechanism": "fsdp2"}).summary
    assert ("the width and the generation of the link" in summary) is is_found


def test_full_memory_is_fixed_before_anything_else() -> None:
    found = advice({**PROVEN, "numa_local": False, "memory_headroom_fraction": 0.01})
    assert [each.finding for each in found.findings] == [
        "device memory is full at the peak",
        "the process runs on another NUMA node than its GPU",
    ]
    measured = [
        each for each in FINDINGS if each.is_in({"memory_headroom_fraction": 0.01, "numa_local": False})
    ]
    assert measured[0].name == found.findings[0].finding


def test_the_optimizer_s_state_on_the_host_has_a_price_of_its_own() -> None:
    on: dict[str, Scalar] = {"optimizer_offload": True}
    skill = "offload skills show offload-optimizer-state"
    slow = advice({"slowdown": 1.9, "offload_fraction": 0.25, **on}).summary
    assert "this may be its price" in slow
    assert f"offload_fraction 0.25, {skill}" in slow
    little = advice({"slowdown": 1.1, **on}).summary
    assert little.startswith("This is little for the optimizer's state on the host")
    assert skill in little
    assert skill in advice({"slowdown": 1.1}).summary
    assert skill not in advice({"slowdown": 1.1, "offload_mechanism": "offload_runtime"}).summary
    assert "price" not in advice({"slowdown": 1.9, "optimizer_offload": False}).summary
    assert skill.rpartition(" ")[2] in {each.name for each in list_skills()}


def test_the_command_for_hooks_compares_with_the_step_without_offloading() -> None:
    (found,) = found_in(sheet_of({"slowdown": 3.0, "offload_mechanism": "activation_hooks"}))
    (command,) = re.findall(r"offload bench .*", "\n".join(found.fixes))
    assert command_problem(command) is None
    assert "--peer save-on-cpu --baseline eager" in command
    assert '"mode": "inductor"' in "\n".join(found.fixes)


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-bridge", "fsdp2"])
def test_hooks_under_another_system_are_replaced_by_nothing_that_this_back_end_compiles(
    framework: str,
) -> None:
    facts: dict[str, Scalar] = {"offload_mechanism": "activation_hooks", "framework": framework}
    (found,) = found_in(sheet_of({"slowdown": 3.0, **facts}))
    assert any("checkpointing" in fix for fix in found.fixes)
    assert not any("backend=" in fix or "offload bench" in fix for fix in found.fixes)


@pytest.mark.parametrize(
    ("mechanism", "fix"),
    [
        ("fsdp2", "OffloadPolicy() in place of CPUOffloadPolicy()"),
        ("zero_offload", "without offload_optimizer and offload_param"),
        ("megatron_layers", "model.cpu_offloading: false"),
        ("offload_runtime", "torch.compile(model) without the policy"),
    ],
)
def test_a_step_that_fits_without_offloading_is_told_so_and_nothing_is_to_be_checked(
    mechanism: str, fix: str
) -> None:
    found = advice({"slowdown": 3.0, "offload_mechanism": mechanism, "fits": True})
    assert f"It fits without offloading: {fix}" in found.summary.replace("offload_policy=", "").replace(
        "zero_optimization ", ""
    )
    assert "In this order" not in found.summary


def test_below_stage_3_deepspeed_moves_no_parameters_and_leaves_no_share() -> None:
    facts: dict[str, Scalar] = {
        **PROVEN,
        "offload_mechanism": "zero_offload",
        "zero_stage": 2,
        "exposed_copy_fraction": 0.4,
        "cpu_step_fraction": 0.6,
    }
    fixes = "\n".join(fix for found in found_in(sheet_of(facts)) for fix in found.fixes)
    assert "offload_param" not in fixes
    assert "fewer offloaded states" not in fixes
    assert "ZeRO-3, under which a share of the state can stay on the GPU" in fixes


@pytest.mark.parametrize(
    ("share", "is_found"), [(0.000001, False), (0.049, False), (PAGEABLE, True), (0.9, True)]
)
def test_pageable_copies_matter_from_a_share_of_the_copied_bytes_on(share: float, is_found: bool) -> None:
    found = found_in(sheet_of({**CLEAN, "offload_mechanism": "fsdp2", "pageable_fraction": share}))
    assert [each.finding for each in found] == ["copies are pageable"] * is_found


def test_how_each_mechanism_pins_says_what_its_default_is_or_that_it_has_no_setting() -> None:
    assert set(PINS) == set(MECHANISMS)
    for name, fixes in PINS.items():
        text = " ".join(fix.text if isinstance(fix, Fix) else fix for fix in fixes)
        assert ("has no setting" if name in PINNED_ALWAYS else "default") in text
        given: dict[str, Scalar] = {**PROVEN, "offload_mechanism": name, "pageable_fraction": 0.5}
        found = next(each for each in found_in(sheet_of(given)) if each.finding == "copies are pageable")
        assert not any(fix.startswith("pin the host memory") for fix in found.fixes)
        assert "look for what else copies" in found.fixes[-1]


def test_the_defaults_of_the_pin_switches_are_those_of_the_systems_that_are_known() -> None:
    settings = {
        setting.key: setting.default for target in EXPORT_TARGETS for setting in load_target(target).settings
    }
    pins = ("offload_optimizer.pin_memory", "offload_param.pin_memory")
    assert [settings[f"zero_optimization.{key}"] for key in pins] == [True, True]
    assert [settings[f"optimizer.pin_cpu_{what}"] for what in ("grads", "params")] == [True, True]
    assert settings["pin_memory"] is True  # of FSDP2's policy
    given: dict[str, Scalar] = {**CLEAN, "offload_mechanism": "zero_offload", "pageable_fraction": 0.5}
    (found,) = found_in(sheet_of(given))
    assert "true (the default of DeepSpeed 0.19.8" in found.fixes[0]


ZERO_2: dict[str, Scalar] = {
    "offload_mechanism": "zero_offload",
    "zero_stage": 2,
    "optimizer_offload": True,
    "parameter_offload": False,
}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            ZERO_2,
            (
                "take the state back on the device, all of it, where memory is free, or recompute",
                "a larger batch",
                "more micro-batches for each step",
                "ZeRO-3",
            ),
        ),
        (
            {**ZERO_2, "zero_stage": 3, "parameter_offload": True},
            (
                "zero_optimization.offload_param.device: none",
                "zero_optimization.offload_optimizer.ratio below 1",
                "take state back on the device where memory is free, or recompute",
                "a larger batch",
                "more micro-batches for each step",
            ),
        ),
        (
            {"offload_mechanism": "fsdp2"},
            (
                "offload_policy OffloadPolicy",
                "take state back on the device where memory is free, or recompute",
                "a larger batch",
            ),
        ),
        (
            {"offload_mechanism": "megatron_layers"},
            ("a lower model.cpu_offloading_num_layers", "move less: recompute activations instead"),
        ),
        (
            {"offload_mechanism": "offload_runtime", "mode": "inductor", "num_graphs": 1},
            ("a lower limits.budget", "move less: recompute activations instead"),
        ),
    ],
    ids=str,
)
def test_recomputing_activations_moves_less_where_they_move_and_makes_room_for_state_where_it_does(
    facts: dict[str, Scalar], said: tuple[str, ...]
) -> None:
    (found,) = found_in(sheet_of({**CLEAN, "exposed_copy_fraction": 0.5, **facts}))
    assert len(found.fixes) == len(said)
    assert all(fix.startswith(text) for fix, text in zip(found.fixes, said, strict=True))


def test_every_key_of_a_fix_is_one_of_a_system_that_is_known() -> None:
    known = {setting.key for target in EXPORT_TARGETS for setting in load_target(target).settings}
    fixes = [
        fix.text if isinstance(fix, Fix) else fix
        for finding in FINDINGS
        for fixes in finding.by_mechanism.values()
        for fix in fixes
    ]
    keys = {
        key
        for fix in fixes
        for key in re.findall(r"\b(?:zero_optimization|optimizer|model|aio)\.[a-z0-9_.]*[a-z0-9]", fix)
    }
    assert len(keys) > 8
    assert keys <= known
    assert "offload_policy" in known


def test_a_long_step_of_the_optimizer_on_idle_cores_is_not_a_matter_of_more_cores_first() -> None:
    facts: dict[str, Scalar] = {
        "offload_mechanism": "fsdp2",
        "cpu_step_fraction": 0.6,
        "host_cpu_fraction": 0.06,
    }
    idle, long = (found.fixes for found in found_in(sheet_of({**PROVEN, **facts})))
    assert idle[0].startswith("OMP_NUM_THREADS")
    assert "fused=True" in idle[1]
    assert "more cores for each rank" not in long
    assert len(found_in(sheet_of({**PROVEN, **facts, "host_cpu_fraction": 0.2}))) == 2
    (busy,) = found_in(sheet_of({**PROVEN, **facts, "host_cpu_fraction": 0.6}))
    assert not any("OMP_NUM_THREADS" in fix for fix in busy.fixes)
    assert "more cores for each rank" in busy.fixes


@pytest.mark.parametrize(("stage", "asks"), [(2, False), (3, True)])
def test_the_share_that_is_offloaded_is_asked_for_where_there_is_one(stage: int, asks: bool) -> None:
    facts: dict[str, Scalar] = {
        "slowdown": 3.0,
        "offload_mechanism": "zero_offload",
        "zero_stage": stage,
        "optimizer_offload": True,
    }
    found = advice(facts)
    assert ("offload_fraction" in found.missing) is asks
    assert ("at offload_fraction 1" in found.summary) is not asks
