"""What is exported for Megatron Bridge against Megatron-Core's own configuration classes, where they are installed.

They are not installed with this project; what is known of them stands in `targets_data/megatron-bridge.yaml`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from offload_runtime.export.exporter import export_policy
from offload_runtime.export.target_reading import load_target
from tests.export.policies import first_layers, policy

SMALL = {"num_layers": 32, "hidden_size": 64, "num_attention_heads": 4}
# Sections that Megatron-Core has a configuration class for; `train` is Megatron Bridge's own.
SECTIONS = ("model", "optimizer")


@pytest.fixture
def transformer_config() -> Any:
    return pytest.importorskip("megatron.core.transformer.transformer_config").TransformerConfig


@pytest.fixture
def optimizer_config() -> Any:
    return pytest.importorskip("megatron.core.optimizer.optimizer_config").OptimizerConfig


def exported(source: Any, section: str) -> dict[str, Any]:
    facts = {"pipeline_parallel": 1, "num_layers": 32}
    export = export_policy(source, "megatron-bridge", facts=facts)
    assert export.ok
    prefix = f"{section}."
    return {s.key.removeprefix(prefix): s.value for s in export.settings if s.key.startswith(prefix)}


@pytest.mark.parametrize(
    "source",
    [
        first_layers(),
        policy(parameters={"offload": True, "layers": ":8", "double_buffering": True}),
        policy(activations={"default": "recompute", "layer_outputs": "save"}),
        policy(activations={"default": "save"}),
    ],
    ids=["activations", "weights", "recompute", "save"],
)
def test_its_own_model_configuration_takes_the_export(transformer_config: Any, source: Any) -> None:
    written = exported(source, "model")
    parsed = transformer_config(**SMALL, **written)
    assert {key: getattr(parsed, key) for key in written} == written


def test_its_own_optimizer_configuration_takes_the_export(optimizer_config: Any) -> None:
    written = exported(policy(optimizer_state={"offload_fraction": 0.5, "overlap": True}), "optimizer")
    parsed = optimizer_config(**written)
    assert {key: getattr(parsed, key) for key in written} == written


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("precision-aware-is-adam", {"optimizer": "sgd", "use_distributed_optimizer": True}),
        ("precision-aware-is-distributed", {"use_distributed_optimizer": False}),
    ],
)
def test_it_refuses_a_precision_aware_optimizer_in_the_words_that_we_quote(
    optimizer_config: Any, constraint: str, broken: dict[str, Any]
) -> None:
    quoted = {c.name: c.error for c in load_target("megatron-bridge").constraints}[constraint]
    with pytest.raises(AssertionError) as caught:
        optimizer_config(use_precision_aware_optimizer=True, **broken)
    assert str(caught.value) == quoted


@pytest.mark.parametrize(
    ("constraint", "broken"),
    [
        ("one-pipeline-stage", {"pipeline_model_parallel_size": 2}),
        ("no-recompute", {"recompute_granularity": "selective"}),
        ("no-cuda-graphs", {"cuda_graph_impl": "local"}),
        (
            "no-fine-grained-offload",
            {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]},
        ),
    ],
)
def test_it_refuses_in_the_words_that_we_quote(
    transformer_config: Any, constraint: str, broken: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    quoted = {c.name: c.error for c in load_target("megatron-bridge").constraints}[constraint]
    written = {**SMALL, **exported(first_layers(), "model"), "pipeline_dtype": torch.float32}
    with pytest.raises((ValueError, AssertionError)) as caught:
        transformer_config(**{**written, **broken})
    assert str(caught.value) == quoted


def test_it_refuses_as_many_layers_as_there_are_in_the_words_that_we_quote(transformer_config: Any) -> None:
    setting = load_target("megatron-bridge").setting("model.cpu_offloading_num_layers")
    assert setting is not None
    assert setting.error is not None
    with pytest.raises(ValueError, match=setting.error):
        transformer_config(**SMALL, cpu_offloading=True, cpu_offloading_num_layers=32)
    transformer_config(**SMALL, cpu_offloading=True, cpu_offloading_num_layers=31)


def test_the_settings_known_of_it_have_its_defaults(transformer_config: Any, optimizer_config: Any) -> None:
    classes = {"model": transformer_config, "optimizer": optimizer_config}
    for setting in load_target("megatron-bridge").settings:
        section, _, name = setting.key.partition(".")
        if section not in SECTIONS:
            continue
        fields = {field.name: field for field in dataclasses.fields(classes[section])}
        assert (name in fields) is (setting.since is None), name
        if name in fields and setting.type != "list":
            assert fields[name].default == setting.default, name


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        ([], ""),
        (["mlp"], "Invalid choices for offload_modules: "),
        (["attn_proj"], "attn_proj cannot be set to offload_modules alone without core_attn"),
    ],
)
def test_it_refuses_modules_to_offload_in_the_words_that_we_quote(
    transformer_config: Any, modules: list[str], text: str
) -> None:
    with pytest.raises((ValueError, AssertionError)) as caught:
        transformer_config(**SMALL, fine_grained_activation_offloading=True, offload_modules=modules)
    assert str(caught.value).startswith(text)


def test_it_takes_every_module_that_we_name_but_the_newest(transformer_config: Any) -> None:
    setting = load_target("megatron-bridge").setting("model.offload_modules")
    assert setting is not None
    modules = [name for name in setting.choices if name != "fused_group_mlp"]
    transformer_config(**SMALL, fine_grained_activation_offloading=True, offload_modules=modules)


@pytest.mark.parametrize(
    ("constraint", "written"),
    [
        (
            "recomputed-experts-or-expert-modules",
            {
                "num_moe_experts": 4,
                "recompute_granularity": "selective",
                "recompute_modules": ["moe"],
                "offload_modules": ["expert_fc1"],
            },
        ),
        (
            "local-graphs-take-experts-only",
            {"cuda_graph_impl": "local", "offload_modules": ["core_attn"]},
        ),
    ],
)
def test_what_only_newer_versions_are_said_to_check_is_taken(
    transformer_config: Any, constraint: str, written: dict[str, Any]
) -> None:
    since = {c.name: c.since for c in load_target("megatron-bridge").constraints}[constraint]
    assert since is not None
    transformer_config(**SMALL, fine_grained_activation_offloading=True, **written)
