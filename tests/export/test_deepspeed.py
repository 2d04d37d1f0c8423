"""What is exported for DeepSpeed against DeepSpeed's own configuration classes, where it is installed.

It is not installed with this project: building it wants a compiler and torch. What is known of its settings stands in
`targets_data/deepspeed.yaml` with its version; here the two are compared.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from offload_runtime.export.exporter import export_policy
from offload_runtime.export.rendering import render_export
from offload_runtime.export.target_reading import load_target
from offload_runtime.predicates import Scalar
from tests.export.policies import policy

SECTIONS: dict[str, dict[str, Any]] = {
    "optimizer": {"optimizer_state": {"offload_fraction": 1.0}},
    "a part of it": {"optimizer_state": {"offload_fraction": 0.5}},
    "parameters": {"parameters": {"offload": True}},
    "all": {
        "optimizer_state": {"offload_fraction": 1.0},
        "gradients": {"offload": True},
        "parameters": {"offload": True},
    },
}


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_its_own_configuration_takes_the_export(sections: dict[str, Any]) -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    written = json.loads(render_export(export_policy(policy(**sections), "deepspeed")))["zero_optimization"]
    parsed = config.DeepSpeedZeroConfig(**written)
    assert int(parsed.stage) == written["stage"]
    for section in ("offload_optimizer", "offload_param"):
        given, read = written.get(section), getattr(parsed, section)
        assert (given is None) == (read is None)
        for key, value in (given or {}).items():
            assert getattr(read, key) == value


def test_its_own_configuration_refuses_a_part_below_stage_3_in_the_words_that_we_quote() -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    quoted = next(c.error for c in load_target("deepspeed").constraints if c.name == "a-part-needs-stage-3")
    with pytest.raises(ValueError, match=quoted):
        config.DeepSpeedZeroConfig(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5})


def test_the_settings_known_of_it_have_its_defaults_and_bounds() -> None:
    offload = pytest.importorskip("deepspeed.runtime.zero.offload_config")
    classes = {
        "offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
        "offload_param": offload.DeepSpeedZeroOffloadParamConfig,
    }
    prefix = "zero_optimization."
    for section, config in classes.items():
        ours = {
            setting.key.rpartition(".")[2]: setting
            for setting in load_target("deepspeed").settings
            if setting.key.startswith(f"{prefix}{section}.")
        }
        assert set(ours) == set(config.model_fields)
        for name, field in config.model_fields.items():
            assert ours[name].default == ("" if field.default is None else field.default), name
            bounds = {
                kind: getattr(m, kind) for m in field.metadata for kind in ("ge", "le") if hasattr(m, kind)
            }
            assert bounds.get("le") == ours[name].maximum, name
            assert bounds.get("ge") == ours[name].minimum, name


@pytest.mark.parametrize("offload_outputs", [True, False])
def test_its_own_checkpointing_configuration_takes_the_switch(offload_outputs: bool) -> None:
    config = pytest.importorskip("deepspeed.runtime.activation_checkpointing.config")
    source = policy(
        activations={"default": "recompute", "layer_outputs": "offload" if offload_outputs else "save"},
        schedule={"keep_last": 0},
    )
    written = json.loads(render_export(export_policy(source, "deepspeed")))
    parsed = config.DeepSpeedActivationCheckpointingConfig(written)
    assert parsed.cpu_checkpointing is offload_outputs


@pytest.mark.parametrize(
    ("dtype", "written"),
    [
        ("bfloat16", {"bf16.enabled": True}),
        ("float16", {"fp16.enabled": True}),
        ("float32", {"bf16.enabled": False, "fp16.enabled": False}),
        (None, {}),
    ],
)
def test_the_type_of_the_weights_is_written_from_its_fact_and_asked_for_without(
    dtype: str | None, written: dict[str, bool]
) -> None:
    facts: dict[str, Scalar] = {} if dtype is None else {"dtype": dtype}
    found = export_policy(policy(**SECTIONS["optimizer"]), "deepspeed", facts=facts)
    kinds = {each.key: each.value for each in found.settings if each.key in ("bf16.enabled", "fp16.enabled")}
    assert (found.refusals, kinds) == ((), written)
    assert any("dtype=" in note.message for note in found.notes) is (dtype is None)


@pytest.mark.parametrize(
    ("dtype", "setting"),
    [
        ("float32", "bf16.enabled=true"),
        ("float16", "bf16.enabled=true"),
        ("bfloat16", "fp16.enabled=true"),
        ("float32", "fp16.enabled=true"),
    ],
)
def test_a_type_that_is_set_and_said_otherwise_is_refused(dtype: str, setting: str) -> None:
    found = export_policy(
        policy(**SECTIONS["optimizer"]), "deepspeed", facts={"dtype": dtype}, settings=[setting]
    )
    assert {each.code for each in found.refusals} == {"EXP902"}


def test_its_own_configuration_refuses_both_types_in_the_words_that_we_quote() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    quoted = next(c.error for c in load_target("deepspeed").constraints if c.name == "one-type")
    both = {"train_batch_size": 1, "bf16": {"enabled": True}, "fp16": {"enabled": True}}
    with pytest.raises(AssertionError, match=quoted):
        config.DeepSpeedConfig(both)
