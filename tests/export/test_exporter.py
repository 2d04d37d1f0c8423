"""What each target is told, refuses, approximates and cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.compiler import CompiledPolicy, load_policy
from offload_runtime.export.exporter import Export, export_policy
from offload_runtime.export.target_reading import EXPORT_TARGETS
from tests.export.policies import EVERY_CLAUSE, first_layers, policy

ONE_STAGE = {"pipeline_parallel": 1, "num_layers": 32}
OPTIMIZER = {"optimizer_state": {"offload_fraction": 1.0}}
PARAMETERS = {"parameters": {"offload": True}}


def settings(export: Export) -> dict[str, Any]:
    assert export.refusals == ()
    return {setting.key: setting.value for setting in export.settings}


def refused(export: Export) -> dict[str | None, str]:
    """The clause (or constraint) of each refusal and its code."""
    return {finding.path: finding.code for finding in export.refusals}


def megatron(source: CompiledPolicy, **facts: Any) -> Export:
    return export_policy(source, "megatron-bridge", facts=facts)


def deepspeed(*given: str, facts: dict[str, Any] | None = None, **sections: Any) -> Export:
    return export_policy(policy(**sections), "deepspeed", facts=facts, settings=given)


# Every target


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_a_policy_that_says_everything_is_judged_clause_by_clause_with_lines(
    target: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    data = {"apiVersion": "offload/v1", "kind": "Policy", "name": "all", **EVERY_CLAUSE}
    file.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in data.items()))
    export = export_policy(load_policy(file), target)
    codes = {finding.code for finding in export.refusals}
    assert "EXP901" in codes
    for finding in export.refusals:
        if finding.code == "EXP901":
            assert finding.line is not None
            assert finding.path is not None
            assert finding.hint
    assert [n for n in export.notes if n.severity != "note"] == []


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_what_no_system_counts_is_refused(target: str) -> None:
    export = export_policy(
        policy(activations={"default": "save"}, expect={"moved": {"min": "1MiB"}}, limits={"host": "1GiB"}),
        target,
    )
    assert {"expect.moved", "limits.host"} <= set(refused(export))


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_requires_is_checked_against_the_facts_given(target: str) -> None:
    source = policy(activations={"default": "save"}, requires={"fact": "num_gpus", "ge": 8})
    assert refused(export_policy(source, target, facts={"num_gpus": 1})) == {"requires": "EXP904"}
    assert refused(export_policy(source, target, facts={"num_gpus": 8})) == {}
    unknown = export_policy(source, target)
    assert [n.code for n in unknown.notes if n.path == "requires"] == ["EXP911"]


def test_a_python_callable_cannot_be_written_down() -> None:
    export = export_policy(load_policy(lambda activation: "save"), "torchtitan")
    assert "EXP906" in {finding.code for finding in export.refusals}


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_the_same_input_gives_an_equal_export(target: str) -> None:
    assert export_policy(first_layers(), target) == export_policy(first_layers(), target)


# Megatron Bridge


def test_the_first_layers_become_layer_offload_without_recompute_and_cuda_graphs() -> None:
    assert settings(megatron(first_layers(), **ONE_STAGE)) == {
        "model.cpu_offloading": True,
        "model.cpu_offloading_num_layers": 16,
        "model.cpu_offloading_activations": True,
        "model.cpu_offloading_weights": False,
        "model.recompute_granularity": None,
        "model.cuda_graph_impl": "none",
        "model.fine_grained_activation_offloading": False,
        "model.pipeline_model_parallel_size": 1,
    }


@pytest.mark.parametrize(
    ("facts", "name", "text"),
    [
        (
            {"pipeline_parallel": 2},
            "one-pipeline-stage",
            "no support for Pipeline parallelism with CPU offloading",
        ),
        (
            {"activation_recompute": True},
            "no-recompute",
            "does not work when activation recomputation is enabled",
        ),
        ({"cuda_graphs": True}, "no-cuda-graphs", "CUDA graphs not supported with CPU offloading."),
        ({"fine_grained_offload": True}, "no-fine-grained-offload", "cannot be enabled with cpu_offloading."),
    ],
)
def test_layer_offload_is_refused_where_megatron_refuses_it_in_its_words(
    facts: dict[str, Any], name: str, text: str
) -> None:
    export = megatron(first_layers(), **{**ONE_STAGE, **facts})
    (finding,) = export.refusals
    assert finding.code == "EXP902"
    assert f"[{name}]" in finding.message
    assert text in finding.message
    assert finding.path == "activations"


@pytest.mark.parametrize(
    "facts", [{"pipeline_parallel": 4}, {"cuda_graphs": True}, {"activation_recompute": True}]
)
def test_optimizer_offload_bears_pipeline_stages_graphs_and_recompute(facts: dict[str, Any]) -> None:
    source = policy(optimizer_state={"offload_fraction": 0.25, "overlap": True})
    stages = {"model.pipeline_model_parallel_size": 4} if "pipeline_parallel" in facts else {}
    assert settings(megatron(source, **facts)) == {
        **stages,
        "optimizer.optimizer_cpu_offload": True,
        "optimizer.optimizer_offload_fraction": 0.25,
        "optimizer.overlap_cpu_optimizer_d2h_h2d": True,
        "optimizer.use_distributed_optimizer": True,
    }


def test_optimizer_offload_needs_the_distributed_optimizer() -> None:
    assert refused(megatron(policy(**OPTIMIZER), distributed_optimizer=False)) == {
        "optimizer_state": "EXP902"
    }


def test_an_unknown_number_of_stages_is_noted_and_not_refused() -> None:
    export = megatron(first_layers())
    assert export.ok
    assert sum("one-pipeline-stage" in note.message for note in export.notes) == 1
    assert sum("num_layers" in note.message for note in export.notes) == 1


@pytest.mark.parametrize(("layers", "num_layers"), [(":32", 32), (":100%", 8)])
def test_all_layers_are_one_too_many(layers: str, num_layers: int) -> None:
    export = megatron(
        first_layers(layers, schedule={"keep_last": 0}), pipeline_parallel=1, num_layers=num_layers
    )
    (finding,) = export.refusals
    assert finding.code == "EXP903"
    assert f"between 0 and {num_layers - 1}, not {num_layers}" in finding.message
    assert f"'CPU offloading can be done only for layers less than {num_layers}'" in finding.message


def test_layers_from_the_end_need_their_number() -> None:
    assert [f.code for f in megatron(first_layers(":-4")).refusals] == ["EXP905"]
    found = settings(megatron(first_layers(":-4"), **ONE_STAGE))
    assert found["model.cpu_offloading_num_layers"] == 28


def test_weights_move_by_layer_too_and_share_the_number_with_activations() -> None:
    weights = policy(parameters={"offload": True, "layers": ":8"})
    found = settings(megatron(weights, **ONE_STAGE))
    assert found["model.cpu_offloading_activations"] is False
    assert found["model.cpu_offloading_weights"] is True
    assert found["model.cpu_offloading_num_layers"] == 8
    both = first_layers(":16", parameters={"offload": True, "layers": ":8"})
    assert [f.code for f in megatron(both, **ONE_STAGE).refusals] == ["EXP902"]
    open_range = first_layers(":16", parameters={"offload": True, "layers": ":-4"})
    assert refused(megatron(open_range, pipeline_parallel=1))["parameters.layers"] == "EXP901"
    same = first_layers(":8", parameters={"offload": True, "layers": ":8", "double_buffering": True})
    assert settings(megatron(same, **ONE_STAGE))["model.cpu_offloading_double_buffering"] is True


def test_full_recompute_has_a_form_and_excludes_weights_that_move() -> None:
    recompute = {"activations": {"default": "recompute", "layer_outputs": "save"}}
    assert settings(megatron(policy(**recompute))) == {
        "model.recompute_granularity": "full",
        "model.recompute_method": "uniform",
        "model.recompute_num_layers": 1,
    }
    both = policy(**recompute, parameters={"offload": True, "layers": ":8"})
    (finding,) = megatron(both, **ONE_STAGE).refusals
    assert "[no-recompute]" in finding.message


def test_a_setting_given_by_hand_is_checked_like_those_of_the_policy() -> None:
    def given(*texts: str) -> list[str]:
        export = export_policy(first_layers(), "megatron-bridge", facts=ONE_STAGE, settings=texts)
        return [finding.code for finding in export.refusals]

    assert given("optimizer.optimizer_offload_fraction=1.5") == ["EXP903"]
    assert given("model.cpu_offloading_num_layers=32") == ["EXP903"]
    assert given("model.cpu_offloading_num_layers=many") == ["EXP903"]
    assert given("model.cpu_offloading_num_layers=31") == []
    assert given("model.moe_paged_stash=true") == ["EXP902"]
    assert given("model.offloading=true") == given("model.cpu_offloading") == ["EXP920"]


# DeepSpeed


def test_optimizer_state_goes_to_the_cpu_with_its_gradients_noted() -> None:
    export = deepspeed(**OPTIMIZER)
    assert settings(export) == {
        "zero_optimization.stage": 2,
        "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.offload_optimizer.pin_memory": True,
        "zero_optimization.offload_optimizer.ratio": 1.0,
    }
    assert any("gradients of offloaded state" in note.message for note in export.notes)


@pytest.mark.parametrize(("stage", "ok"), [(0, False), (1, True), (2, True), (3, True)])
def test_optimizer_offload_is_for_stages_1_to_3(stage: int, ok: bool) -> None:
    assert deepspeed(facts={"zero_stage": stage}, **OPTIMIZER).ok is ok


@pytest.mark.parametrize(
    "sections", [PARAMETERS, {"optimizer_state": {"offload_fraction": 0.5}}], ids=["parameters", "a part"]
)
def test_parameters_and_a_part_of_the_state_need_stage_3(sections: dict[str, Any]) -> None:
    assert settings(deepspeed(**sections))["zero_optimization.stage"] == 3
    assert deepspeed(facts={"zero_stage": 3}, **sections).ok
    assert [f.code for f in deepspeed(facts={"zero_stage": 2}, **sections).refusals] == ["EXP902"]


def test_nvme_needs_stage_3_the_extension_and_a_path() -> None:
    device = "zero_optimization.offload_optimizer.device=nvme"
    path = "zero_optimization.offload_optimizer.nvme_path=/local"
    wrong = deepspeed(device, facts={"zero_stage": 2, "asynchronous_io": False}, **OPTIMIZER)
    assert {f.message.partition("[")[2].partition("]")[0] for f in wrong.refusals} == {
        "nvme-needs-asynchronous-io",
        "nvme-needs-a-path-for-the-optimizer",
        "nvme-needs-stage-3",
    }
    right = deepspeed(device, path, facts={"zero_stage": 3, "asynchronous_io": True}, **OPTIMIZER)
    assert settings(right)["zero_optimization.offload_optimizer.nvme_path"] == "/local"


def test_checkpoints_on_the_host_have_a_switch() -> None:
    export = deepspeed(
        activations={"default": "recompute", "layer_outputs": "offload"}, schedule={"keep_last": 0}
    )
    assert settings(export) == {"activation_checkpointing.cpu_checkpointing": True}


# FSDP2


@pytest.mark.parametrize(
    ("sections", "codes"),
    [
        (PARAMETERS, {}),
        ({**PARAMETERS, **OPTIMIZER, "gradients": {"offload": True}}, {}),
        (OPTIMIZER, {"optimizer_state.offload_fraction": "EXP901"}),
        ({"gradients": {"offload": True}}, {"gradients.offload": "EXP901"}),
        ({**PARAMETERS, "gradients": {"offload": False}}, {"gradients.offload": "EXP901"}),
        (
            {**PARAMETERS, "optimizer_state": {"offload_fraction": 0.5, "step_device": "gpu"}},
            {"optimizer_state.offload_fraction": "EXP901", "optimizer_state.step_device": "EXP901"},
        ),
        ({**PARAMETERS, "activations": {"default": "offload"}}, {"activations.default": "EXP901"}),
    ],
)
def test_fsdp2_has_one_switch_for_parameters_gradients_and_state(
    sections: dict[str, Any], codes: dict[str, str]
) -> None:
    assert refused(export_policy(policy(**sections), "fsdp2")) == codes


def test_what_moves_without_being_asked_is_noted() -> None:
    notes = [note.path for note in export_policy(policy(**PARAMETERS), "fsdp2").notes]
    assert "parameters.offload" in notes
    whole = policy(**PARAMETERS, **OPTIMIZER, gradients={"offload": True})
    assert "parameters.offload" not in [note.path for note in export_policy(whole, "fsdp2").notes]


# torchtitan


def test_a_shipped_policy_gives_budget_in_gibibytes_defer_and_prefetch() -> None:
    found = settings(export_policy(load_policy("balanced"), "torchtitan", facts={"is_moe": False}))
    assert found == {
        "compile.memory_policy": "sac_and_offload",
        "compile.cpu_offload_budget_gb": 10e9 / 2**30,
        "compile.cpu_offload_defer_n_layers": 8,
        "compile.cpu_offload_prefetch_n_layers": 1,
    }


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"limits": {"budget": "0B"}}, "limits.budget"),
        ({"schedule": {"keep_last": 2}}, "schedule.keep_last"),
        ({"schedule": {"select": "planned"}}, "schedule.select"),
        ({"schedule": {"defer": "auto", "select": "planned"}}, "schedule.defer"),
        ({"activations": {"default": "auto"}}, "activations.default"),
        ({"activations": {"default": "save", "layer_outputs": "recompute"}}, "activations.layer_outputs"),
        (OPTIMIZER, "optimizer_state.offload_fraction"),
        (PARAMETERS, "parameters.offload"),
    ],
)
def test_torchtitan_refuses_what_it_has_no_means_for(sections: dict[str, Any], path: str) -> None:
    activations = {"activations": {"default": "offload"}}
    assert path in refused(export_policy(policy(**{**activations, **sections}), "torchtitan"))


@pytest.mark.parametrize(("action", "ok"), [("save", True), ("offload", False), ("recompute", False)])
def test_must_is_refused_where_torchtitan_would_do_otherwise_without_an_error(action: str, ok: bool) -> None:
    rules = [{"name": "r", "match": {"op": "matmul"}, "action": action, "must": True}]
    source = policy(activations={"default": "recompute", "rules": rules})
    assert export_policy(source, "torchtitan").ok is ok


def test_no_limit_is_a_budget_of_zero_there() -> None:
    source = policy(activations={"default": "offload"})
    assert settings(export_policy(source, "torchtitan"))["compile.cpu_offload_budget_gb"] == 0


def test_a_long_defer_is_refused_for_a_mixture_of_experts() -> None:
    source = load_policy("balanced")
    assert [f.path for f in export_policy(source, "torchtitan", facts={"is_moe": True}).refusals] == [
        "schedule.defer"
    ]
    assert export_policy(load_policy("moe"), "torchtitan", facts={"is_moe": True}).ok


def test_deepspeed_says_what_stays_where_parameters_alone_leave() -> None:
    stays = "a rank's share of the optimizer's state stays there"
    assert any(stays in note.message for note in deepspeed(**PARAMETERS).notes)
    assert not any(stays in note.message for note in deepspeed(**PARAMETERS, **OPTIMIZER).notes)


def test_deepspeed_takes_the_switch_of_bfloat16() -> None:
    assert settings(deepspeed("bf16.enabled=true", **OPTIMIZER))["bf16.enabled"] is True
