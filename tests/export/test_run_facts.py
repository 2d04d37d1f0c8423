"""Facts about the run: written, checked only, contradicting a setting, or such that no run can have them."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.export.exporter import Export, export_policy
from tests.export.policies import first_layers, policy

STATE = policy(optimizer_state={"offload_fraction": 0.5})


def export(*given: str, target: str = "megatron-bridge", source: Any = STATE, **facts: Any) -> Export:
    return export_policy(source, target, facts=facts, settings=given)


def noted(found: Export, code: str) -> list[str]:
    return [note.message for note in found.notes if note.code == code]


def test_facts_that_are_settings_are_written_and_the_others_said_to_be_checked_only() -> None:
    found = export(
        pipeline_parallel=2, tensor_parallel=4, expert_parallel=2, micro_batch=1, world_size=8, num_layers=32
    )
    written = {setting.key: setting.value for setting in found.settings}
    assert written["model.pipeline_model_parallel_size"] == 2
    assert written["model.tensor_model_parallel_size"] == 4
    assert written["model.expert_model_parallel_size"] == 2
    assert written["train.micro_batch_size"] == 1
    (checked,) = noted(found, "EXP914")
    assert checked.endswith("not written as a setting: world_size")


def test_what_a_target_has_no_setting_for_is_checked_only() -> None:
    (checked,) = noted(export(target="deepspeed", zero_stage=3, pipeline_parallel=2), "EXP914")
    assert checked.endswith(": pipeline_parallel")


@pytest.mark.parametrize(
    ("facts", "setting", "contradicts"),
    [
        ({"pipeline_parallel": 4}, "model.pipeline_model_parallel_size=2", True),
        ({"pipeline_parallel": 2}, "model.pipeline_model_parallel_size=2", False),
        ({"cuda_graphs": True}, "model.cuda_graph_impl=none", True),
        ({"cuda_graphs": False}, "model.cuda_graph_impl=local", True),
        ({"cuda_graphs": True}, "model.cuda_graph_impl=local", False),
        ({"activation_recompute": True}, "model.recompute_granularity=null", True),
        ({"activation_recompute": False}, "model.recompute_granularity=null", False),
        ({"precision_aware_optimizer": False}, "optimizer.use_precision_aware_optimizer=True", True),
        ({"fine_grained_offload": False}, "model.cuda_graph_impl=none", False),
    ],
    ids=str,
)
def test_a_setting_that_says_otherwise_than_a_fact_is_refused(
    facts: dict[str, Any], setting: str, contradicts: bool
) -> None:
    assert ("EXP907" in {f.code for f in export(setting, **facts).refusals}) is contradicts


def test_a_setting_settles_what_would_hang_on_the_fact() -> None:
    assert noted(export(source=first_layers(), num_layers=32), "EXP911") != []
    one = export("model.pipeline_model_parallel_size=1", source=first_layers(), num_layers=32)
    assert (one.refusals, noted(one, "EXP911")) == ((), [])
    two = export("model.pipeline_model_parallel_size=2", source=first_layers(), num_layers=32)
    assert [finding.code for finding in two.refusals] == ["EXP902"]


@pytest.mark.parametrize(
    ("target", "facts", "word"),
    [
        ("megatron-bridge", {"world_size": 6, "pipeline_parallel": 4}, "no multiple of 4"),
        (
            "megatron-bridge",
            {"world_size": 8, "tensor_parallel": 4, "pipeline_parallel": 4},
            "multiple of 16",
        ),
        ("megatron-bridge", {"world_size": 8, "expert_parallel": 3}, "expert_parallel 3"),
        ("deepspeed", {"pipeline_parallel": 0}, "1 or more"),
        ("deepspeed", {"framework": "megatron-bridge"}, "another system"),
        ("megatron-bridge", {"optimizer": "sgd"}, "keeps no state"),
    ],
)
def test_facts_that_no_run_can_have_are_refused(target: str, facts: dict[str, Any], word: str) -> None:
    found = [f.message for f in export(target=target, **facts).refusals if f.code == "EXP908"]
    assert len(found) == 1
    assert word in found[0]


@pytest.mark.parametrize(
    ("target", "facts"),
    [
        (
            "megatron-bridge",
            {"world_size": 16, "tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 4},
        ),
        ("megatron-bridge", {"framework": "megatron-bridge", "optimizer": "adamw"}),
        ("deepspeed", {"framework": "accelerate"}),
        ("deepspeed", {"framework": "transformers"}),
    ],
)
def test_facts_that_a_run_can_have_are_not(target: str, facts: dict[str, Any]) -> None:
    assert export(target=target, **facts).refusals == ()


@pytest.mark.parametrize(
    ("num_layers", "keep_last", "message"),
    [
        (16, 1, "names 16 layers, and 15 are offloaded: schedule.keep_last keeps the last one"),
        (8, 1, "names 16 layers, and 7 are offloaded: there are 8 and schedule.keep_last keeps the last one"),
        (18, 4, "names 16 layers, and 14 are offloaded: schedule.keep_last keeps the last 4"),
        (32, 1, None),
        (17, 1, None),
    ],
)
def test_fewer_layers_than_the_rule_names_are_noted(
    num_layers: int, keep_last: int, message: str | None
) -> None:
    source = first_layers(":16", schedule={"keep_last": keep_last})
    found = export(source=source, pipeline_parallel=1, num_layers=num_layers)
    assert found.refusals == ()
    assert noted(found, "EXP915") == ([] if message is None else [f"megatron-bridge: the rule {message}"])
