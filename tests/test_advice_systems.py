"""What is said of the mechanisms of another system: which are on, which can be used, and which come along."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.advice_systems import (
    carried_out_by,
    refusal_summary,
    refused_by_system,
    system_mechanisms,
    system_summary,
)
from offload_runtime.errors import UsageError
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from offload_runtime.fact_sheet import FactSheet
from offload_runtime.offload_facts import of_offloading, refuse_contradictions


def sheet(framework: str = "megatron-bridge", **facts: Any) -> FactSheet:
    return FactSheet().with_facts({"framework": framework, **facts}, "given")


@pytest.mark.parametrize("name", EXPORT_TARGETS)
def test_what_comes_along_with_a_mechanism_is_no_choice_beside_it(name: str) -> None:
    mechanisms = load_target(name).mechanisms
    names = [mechanism.name for mechanism in mechanisms if mechanism.part_of is None]
    summary = str(system_summary(sheet(name)))
    assert [each for each in names if each not in summary] == []
    assert {each.part_of for each in mechanisms} - {None} <= set(names)
    assert [each.name for each in mechanisms if each.part_of is not None and each.name in summary] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("megatron-bridge", "copied to the host with offloaded state, and left on the device too"),
        ("deepspeed", "gradients of offloaded state go to the host as well"),
        ("fsdp2", "CPUOffloadPolicy, with the parameters"),
        ("torchtitan", "nothing that torchtitan graph_trainer has for this run"),
    ],
)
def test_what_becomes_of_gradients_is_said_where_the_order_of_offloading_names_them(
    name: str, words: str
) -> None:
    assert words in carried_out_by("gradients", sheet(name), "elsewhere")


def test_a_mechanism_that_is_on_and_cannot_be_says_what_it_needs() -> None:
    stages = sheet(pipeline_parallel=4, parameter_offload=True)
    assert "weight offload by layer (which cannot be)" in str(system_summary(stages))
    assert "cannot be" not in str(system_summary(sheet(pipeline_parallel=1, parameter_offload=True)))
    rows = {row.name: row for row in system_mechanisms(stages)}
    on = rows["weight offload by layer"]
    assert (on.state, on.is_on) == ("on, which cannot be", True)
    assert "one pipeline stage" in str(on.needs)


def test_of_two_that_exclude_each_other_the_one_that_cannot_be_anyway_has_to_go() -> None:
    both = {"layer_activation_offload": True, "fine_grained_offload": True}
    states = {row.name: row.state for row in system_mechanisms(sheet(pipeline_parallel=2, **both))}
    assert states["layer-level activation offload"] == "on, which cannot be"
    assert states["fine-grained activation offload"] == "on"
    one_stage = {row.name: row.state for row in system_mechanisms(sheet(pipeline_parallel=1, **both))}
    assert one_stage["layer-level activation offload"] == "on, which cannot be"
    assert one_stage["fine-grained activation offload"] == "on, which cannot be"


@pytest.mark.parametrize(
    ("fraction", "state", "is_settled"),
    [(None, "on", False), (0.5, "on, in part", True), (1.0, "on", True), (0.0, "on, which cannot be", False)],
)
def test_optimizer_offload_that_is_on_says_how_much_of_it_and_what_it_needs_still(
    fraction: float | None, state: str, is_settled: bool
) -> None:
    known: dict[str, Any] = {} if fraction is None else {"offload_fraction": fraction}
    facts = {"optimizer_offload": True, "distributed_optimizer": True, "optimizer": "adamw", **known}
    row = next(row for row in system_mechanisms(sheet(**facts)) if row.name == "optimizer offload")
    assert (row.state, row.needs is None) == (state, is_settled)


def test_weights_that_move_are_refused_with_pipeline_stages_as_activations_are() -> None:
    for fact in ("parameter_offload", "layer_activation_offload"):
        refused = refused_by_system(sheet(pipeline_parallel=4, **{fact: True}))
        assert ["[one-pipeline-stage]" in finding.message for finding in refused] == [True]
        assert refused_by_system(sheet(pipeline_parallel=1, **{fact: True})) == ()


def test_with_all_of_the_state_on_the_host_its_gradients_are_not_named_as_a_second_mechanism() -> None:
    summary = str(system_summary(sheet(optimizer_offload=True, gradient_offload=True)))
    assert summary.startswith(
        "Megatron Bridge has on already: optimizer offload. Besides it has for this run: "
    )


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        ("layer_activation_offload", "layer-level activation offload"),
        ("parameter_offload", "weight offload by layer"),
    ],
)
def test_what_is_on_and_cannot_be_stands_in_the_way_of_nothing(fact: str, name: str) -> None:
    summary = str(system_summary(sheet(pipeline_parallel=4, **{fact: True})))
    on, _, besides = summary.partition(" Besides it has for this run: ")
    assert f"{name} (which cannot be)" in on
    assert "fine-grained activation offload" in besides.partition(" Not ")[0]
    possible = str(system_summary(sheet(pipeline_parallel=1, **{fact: True})))
    assert "fine-grained activation offload" in possible.partition(" Not ")[2]


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"offload_mechanism": "nvme", "zero_stage": 2}, "nvme-needs-stage-3"),
        ({"offload_mechanism": "zero_offload", "parameter_offload": True, "zero_stage": 2}, "need-stage-3"),
    ],
)
@pytest.mark.parametrize("framework", ["deepspeed", "transformers", None])
def test_a_mechanism_that_is_named_keeps_the_rules_of_its_system_in_any_loop(
    facts: dict[str, Any], name: str, framework: str | None
) -> None:
    loop = {} if framework is None else {"framework": framework}
    found = of_offloading(FactSheet().with_facts({**facts, **loop, "optimizer_offload": True}, "given"))
    (refused,) = refused_by_system(found)
    assert name in refused.message
    assert refusal_summary(found, [refused]).startswith("DeepSpeed refuses this configuration: ")
    allowed = of_offloading(found.with_facts({"zero_stage": 3, "asynchronous_io": True}, "given"))
    assert refused_by_system(allowed) == ()


@pytest.mark.parametrize("mechanism", ["fsdp1", "fsdp2"])
@pytest.mark.parametrize("kind", ["optimizer", "gradient", "parameter"])
def test_offloaded_parameters_of_fsdp_take_gradients_and_state_along(mechanism: str, kind: str) -> None:
    named = FactSheet().with_facts({"offload_mechanism": mechanism}, "given")
    assert of_offloading(named).get(f"{kind}_offload") is True
    with pytest.raises(UsageError, match=f"{kind}_offload false: with that mechanism"):
        refuse_contradictions(named.with_facts({f"{kind}_offload": False}, "given"))
