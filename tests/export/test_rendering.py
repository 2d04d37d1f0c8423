from __future__ import annotations

import ast
import json

import pytest
import yaml

from offload_runtime.export.exporter import Export, export_policy
from offload_runtime.export.rendering import render_export, settings_tree
from offload_runtime.export.target_reading import EXPORT_TARGETS, load_target
from tests.export.policies import first_layers, policy

ONE_STAGE = {"pipeline_parallel": 1, "num_layers": 32}


@pytest.fixture
def layers() -> Export:
    return export_policy(first_layers(), "megatron-bridge", facts=ONE_STAGE)


def test_overrides_are_one_setting_a_line(layers: Export) -> None:
    lines = render_export(layers).splitlines()
    assert lines[:2] == ["model.cpu_offloading=true", "model.cpu_offloading_num_layers=16"]
    assert "model.recompute_granularity=null" in lines


def test_overrides_and_yaml_say_the_same(layers: Export) -> None:
    assert yaml.safe_load(render_export(layers, "yaml")) == settings_tree(layers)
    from_lines = {
        key: yaml.safe_load(value)
        for key, value in (line.split("=", 1) for line in render_export(layers).splitlines())
    }
    assert from_lines == {setting.key: setting.value for setting in layers.settings}


def test_assignments_are_python_and_say_what_the_overrides_say() -> None:
    given = ["model.fine_grained_activation_offloading=True", "model.offload_modules=[core_attn, attn_proj]"]
    source = policy(optimizer_state={"offload_fraction": 0.5})
    export = export_policy(source, "megatron-bridge", settings=[*given, "model.recompute_granularity=null"])
    assigned = [line.split(" = ", 1) for line in render_export(export, "python").splitlines()]
    values = {key.removeprefix("cfg."): ast.literal_eval(value) for key, value in assigned}
    assert values["model.offload_modules"] == ["core_attn", "attn_proj"]
    assert values["model.recompute_granularity"] is None
    written = {
        key: yaml.safe_load(value)
        for key, value in (line.split("=", 1) for line in render_export(export).splitlines())
    }
    assert written == values
    assert yaml.safe_load(render_export(export, "yaml"))["model"]["offload_modules"] == [
        "core_attn",
        "attn_proj",
    ]


def test_json_is_nested_as_deepspeed_reads_it() -> None:
    export = export_policy(policy(optimizer_state={"offload_fraction": 1.0}), "deepspeed")
    assert json.loads(render_export(export)) == {
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 1.0},
        }
    }


def test_flags_are_those_of_a_command_line() -> None:
    export = export_policy(
        policy(activations={"default": "offload"}, limits={"budget": "5GiB"}), "torchtitan"
    )
    assert render_export(export, "flags").split(" \\\n") == [
        "--compile.memory_policy sac_and_offload",
        "--compile.cpu_offload_budget_gb 5.0",
        "--compile.cpu_offload_defer_n_layers 1",
        "--compile.cpu_offload_prefetch_n_layers 1",
    ]


@pytest.mark.parametrize("name", ["torchtitan", "fsdp2"])
def test_python_parses_whatever_the_policy_is_called(name: str) -> None:
    sections = {
        "torchtitan": {"activations": {"default": "offload"}},
        "fsdp2": {"parameters": {"offload": True}},
    }
    text = render_export(export_policy(policy(**sections[name]), name))
    assert ast.get_docstring(ast.parse(text))
    assert not text.endswith("\n")


def test_a_form_that_the_target_does_not_read_is_the_callers_mistake(layers: Export) -> None:
    with pytest.raises(ValueError, match="megatron-bridge is written as overrides, yaml, python, not 'json'"):
        render_export(layers, "json")


def test_an_export_with_a_refusal_is_never_written() -> None:
    export = export_policy(first_layers(), "megatron-bridge", facts={"pipeline_parallel": 2})
    with pytest.raises(ValueError, match="megatron-bridge refused 1"):
        render_export(export)


def test_every_form_of_every_target_renders_an_empty_export() -> None:
    nothing = policy(parameters={"offload": False})
    for name in EXPORT_TARGETS:
        export = export_policy(nothing, name)
        for form in load_target(name).formats:
            assert isinstance(render_export(export, form), str)
