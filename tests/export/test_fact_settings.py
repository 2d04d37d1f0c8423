"""Facts for which the target has a setting: written, checked like the setting, and held against what is written."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.export.exporter import Export, export_policy
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from tests.export.policies import first_layers, policy

STATE = policy(optimizer_state={"offload_fraction": 0.5})
# A policy that moves nothing, for what only settings and facts say.
NOTHING = policy(optimizer_state={"offload_fraction": 0.0})
CORE = "model.offload_modules=[core_attn]"


def export(*given: str, source: Any = NOTHING, target: str = "megatron-bridge", **facts: Any) -> Export:
    return export_policy(source, target, facts=facts, settings=given)


def names(found: Export) -> set[str]:
    """The constraints that are broken."""
    return {f.message.partition("[")[2].partition("]")[0] for f in found.refusals if f.code == "EXP902"}


def noted(found: Export, code: str) -> list[str]:
    return [note.message for note in found.notes if note.code == code]


def written(found: Export) -> dict[str, Any]:
    return {setting.key: setting.value for setting in found.settings}


@pytest.mark.parametrize(
    ("facts", "given", "broken"),
    [
        ({"layer_activation_offload": True, "pipeline_parallel": 2}, (), {"one-pipeline-stage"}),
        ({"layer_activation_offload": True, "activation_recompute": True}, (), {"no-recompute"}),
        ({"layer_activation_offload": True, "cuda_graphs": True}, (), {"no-cuda-graphs"}),
        (
            {"layer_activation_offload": True, "fine_grained_offload": True},
            (CORE,),
            {"no-fine-grained-offload"},
        ),
        ({"layer_activation_offload": True}, ("model.moe_paged_stash=true",), {"no-paged-stash"}),
        ({"fine_grained_offload": True}, (), {"modules-to-offload"}),
        (
            {"fine_grained_offload": True},
            ("model.offload_modules=[attn_proj]",),
            {"attn-proj-with-core-attn"},
        ),
        ({"optimizer_offload": True, "distributed_optimizer": False}, (), {"distributed-optimizer"}),
    ],
    ids=str,
)
def test_a_fact_is_checked_like_the_setting_that_says_the_same(
    facts: dict[str, Any], given: tuple[str, ...], broken: set[str]
) -> None:
    assert names(export(*given, **facts)) == broken
    target = load_target("megatron-bridge")
    by_hand = {
        f"{setting.key}={str(facts[setting.fact]).lower()}"
        for setting in target.settings
        if setting.fact in facts and setting.stands_for_no is None
    }
    rest = {name: value for name, value in facts.items() if name in ("activation_recompute", "cuda_graphs")}
    assert names(export(*given, *sorted(by_hand), **rest)) == broken


def test_all_of_a_forbidden_combination_is_refused_and_nothing_said_to_be_checked() -> None:
    found = export(
        source=STATE, pipeline_parallel=2, layer_activation_offload=True, fine_grained_offload=True
    )
    assert names(found) == {"one-pipeline-stage", "no-fine-grained-offload", "modules-to-offload"}
    assert noted(found, "EXP914") == []


@pytest.mark.parametrize(
    ("fact", "value", "key", "setting"),
    [
        ("layer_activation_offload", True, "model.cpu_offloading", True),
        ("layer_activation_offload", False, "model.cpu_offloading", False),
        ("num_offloaded_layers", 0, "model.cpu_offloading_num_layers", 0),
        ("fine_grained_offload", False, "model.fine_grained_activation_offloading", False),
        ("cuda_graphs", False, "model.cuda_graph_impl", "none"),
        ("activation_recompute", False, "model.recompute_granularity", None),
        ("optimizer_offload", False, "optimizer.optimizer_cpu_offload", False),
        ("pipeline_parallel", 4, "model.pipeline_model_parallel_size", 4),
    ],
)
def test_a_fact_is_written_as_its_setting(fact: str, value: Any, key: str, setting: Any) -> None:
    facts = {"pipeline_parallel": 1, "activation_recompute": False, "cuda_graphs": False, fact: value}
    found = export(**facts)
    assert found.refusals == ()
    assert written(found)[key] == setting
    assert noted(found, "EXP914") == []


def test_a_yes_that_leaves_the_value_open_is_checked_and_the_setting_is_named() -> None:
    found = export(cuda_graphs=True, activation_recompute=True)
    assert written(found) == {}
    by_message = {note.message: note.hint or "" for note in found.notes if note.code == "EXP914"}
    (graphs,) = [hint for message, hint in by_message.items() if "cuda_graphs" in message]
    assert "--setting model.cuda_graph_impl=VALUE, one of local, transformer_engine, full_iteration" in graphs
    (recompute,) = [hint for message, hint in by_message.items() if "activation_recompute" in message]
    assert "--setting model.recompute_granularity=VALUE, one of full, selective" in recompute
    given = export("model.cuda_graph_impl=local", "model.recompute_granularity=selective", cuda_graphs=True)
    assert noted(given, "EXP914") == []


def test_what_nothing_compares_is_not_said_to_be_checked() -> None:
    found = export(world_size=8, sequence_length=4096, source=STATE)
    checked, unchecked = noted(found, "EXP914")
    assert checked.endswith("checked, and not written as a setting: world_size")
    assert unchecked.endswith("neither checked nor written as a setting: sequence_length")


@pytest.mark.parametrize(
    ("source", "facts", "text"),
    [
        (
            policy(activations={"default": "save"}),
            {"activation_recompute": True},
            "model.recompute_granularity=null contradicts --fact activation_recompute=true",
        ),
        (
            policy(activations={"default": "recompute", "layer_outputs": "save"}),
            {"activation_recompute": False},
            "model.recompute_granularity=full contradicts --fact activation_recompute=false",
        ),
        (STATE, {"offload_fraction": 1.0}, "offload_fraction=0.5 contradicts --fact offload_fraction=1.0"),
        (
            first_layers(":16"),
            {"num_layers": 32, "pipeline_parallel": 1, "num_offloaded_layers": 8},
            "model.cpu_offloading_num_layers=16 contradicts --fact num_offloaded_layers=8",
        ),
    ],
    ids=["save", "recompute", "fraction", "layers"],
)
def test_what_the_policy_writes_is_held_against_the_facts(
    source: Any, facts: dict[str, Any], text: str
) -> None:
    (refusal,) = export(source=source, **facts).refusals
    assert refusal.code == "EXP907"
    assert text in refusal.message
    assert refusal.line is None or refusal.path is not None


def test_a_contradiction_that_a_constraint_names_is_not_named_twice() -> None:
    found = export(source=first_layers(), num_layers=32, pipeline_parallel=1, activation_recompute=True)
    assert [finding.code for finding in found.refusals] == ["EXP902"]


@pytest.mark.parametrize(
    "source", [policy(activations={"default": "save"}), first_layers()], ids=["save", "layers"]
)
def test_recompute_that_the_export_switches_off_is_said(source: Any) -> None:
    found = export(source=source, num_layers=32, pipeline_parallel=1)
    (note,) = [text for text in noted(found, "EXP910") if "recompute_granularity=null" in text]
    assert "selective" in note
    assert not any("recompute_granularity=null" in text for text in noted(export(source=STATE), "EXP910"))


def test_what_the_export_writes_itself_is_verified() -> None:
    found = export(source=STATE, precision_aware_optimizer=True)
    assert written(found)["optimizer.use_distributed_optimizer"] is True
    assert noted(found, "EXP911") == []


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_a_fact_of_a_setting_goes_into_the_type_of_its_setting(target: str) -> None:
    for setting in load_target(target).settings:
        if setting.stands_for_no is not None:
            assert setting.fact is not None
            assert setting.type == "text"
            assert setting.choices


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("adamw", {"optimizer.optimizer": "adam"}),
        ("adam", {"optimizer.optimizer": "adam"}),
        ("sgd-momentum", {"optimizer.optimizer": "sgd"}),
        ("sgd", {"optimizer.optimizer": "sgd", "optimizer.sgd_momentum": 0.0}),
        ("other", {}),
        ("none", {}),
    ],
)
def test_a_fact_that_is_a_word_is_written_in_the_words_of_its_setting(
    optimizer: str, settings: dict[str, Any]
) -> None:
    found = export(optimizer=optimizer)
    assert found.refusals == ()
    assert written(found) == settings
    assert bool(noted(found, "EXP914")) is (not settings)


@pytest.mark.parametrize(
    ("optimizer", "setting", "contradicts"),
    [
        ("adamw", "adam", False),
        ("adam", "adam", False),
        ("sgd", "sgd", False),
        ("other", "muon", False),
        ("adamw", "sgd", True),
        ("other", "adam", True),
        ("sgd-momentum", "muon", True),
    ],
)
def test_a_word_of_a_setting_is_held_against_the_word_of_the_fact(
    optimizer: str, setting: str, contradicts: bool
) -> None:
    found = export(f"optimizer.optimizer={setting}", optimizer=optimizer)
    assert [f.code for f in found.refusals] == (["EXP907"] if contradicts else [])


def test_weights_that_move_are_layer_offload_whoever_says_it() -> None:
    weights = policy(parameters={"offload": True, "layers": ":8"})
    by_fact = export(pipeline_parallel=4, parameter_offload=True)
    by_policy = export(source=weights, pipeline_parallel=4)
    assert names(by_fact) == names(by_policy) == {"one-pipeline-stage"}
    alone = {"pipeline_parallel": 1, "parameter_offload": True, "num_layers": 32}
    found = export(**alone, layer_activation_offload=False, num_offloaded_layers=8)
    assert found.refusals == ()
    moved = {key: value for key, value in written(found).items() if "cpu_offloading" in key}
    assert moved == {
        "model.cpu_offloading": True,
        "model.cpu_offloading_num_layers": 8,
        "model.cpu_offloading_activations": False,
        "model.cpu_offloading_weights": True,
    }
    beside = "the activations of these layers move beside their weights"
    assert not any(beside in note for note in noted(found, "EXP910"))
    assert any(beside in note for note in noted(export(**alone, num_offloaded_layers=8), "EXP910"))
    assert export(source=weights, **{**alone, "layer_activation_offload": False}).refusals == ()


def test_the_export_that_a_fact_asks_for_writes_the_distributed_optimizer_too() -> None:
    found = export(optimizer_offload=True)
    assert found.refusals == ()
    assert written(found)["optimizer.use_distributed_optimizer"] is True


@pytest.mark.parametrize(
    ("section", "cure"),
    [
        ({"parameters": {"offload": True}}, 'write parameters.layers ":31": at most 31 layers, and 0 is off'),
        (
            {"activations": {"default": "offload"}, "schedule": {"keep_last": 0}},
            'write schedule.keep_last: 1, or a rule with match {layers ":31"}: at most 31 layers, and 0 is off',
        ),
    ],
    ids=["parameters", "activations"],
)
def test_a_count_out_of_range_is_cured_in_the_policy_s_own_key(section: dict[str, Any], cure: str) -> None:
    found = export(source=policy(**section), pipeline_parallel=1, num_layers=32)
    assert [(f.code, f.hint) for f in found.refusals] == [("EXP903", cure)]
    by_hand = export("model.cpu_offloading_num_layers=32", num_layers=32)
    assert [f.hint for f in by_hand.refusals] == ["choose 1 to 31 layers; 0 is off"]
