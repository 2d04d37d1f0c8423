"""Hugging Face configurations resolve to models that train without masks, caches or data-dependent shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from offload_runtime.errors import OffloadError, RefusedError, UnreadableError, UsageError
from offload_runtime.models.resolve import ModelRequest, resolve_model
from tests.models.configurations import CONFIGURATIONS, TEXT_FAMILIES

pytest.importorskip("transformers")
pytest.importorskip("diffusers")

EVERY_FAMILY = pytest.mark.parametrize("family", CONFIGURATIONS)
WITHOUT_SOFTCAP = [family for family in TEXT_FAMILIES if family not in ("gemma2", "t5")]


def saved(folder: Path, config: dict[str, Any] | str) -> str:
    """Write a config.json and return its specification."""
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    return f"hf:{folder}"


class AttentionCalls(TorchFunctionMode):
    """Record how attention is called: its mask and its ``is_causal``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.calls.append((kwargs.get("attn_mask"), kwargs.get("is_causal")))
        return func(*args, **kwargs)


@EVERY_FAMILY
def test_a_family_trains_from_its_configuration(family: str, tmp_path: Path) -> None:
    model = resolve_model(saved(tmp_path, CONFIGURATIONS[family]), optimizer="sgd")
    assert model.module.training
    loss = model.loss(model.module(*model.example_args))
    assert loss.ndim == 0
    loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.module.parameters())


@EVERY_FAMILY
def test_a_family_can_be_built_of_fake_tensors_and_on_meta(family: str, tmp_path: Path) -> None:
    spec = saved(tmp_path, CONFIGURATIONS[family])
    with FakeTensorMode():
        resolve_model(spec)
    assert {p.device.type for p in resolve_model(spec, device="meta").module.parameters()} == {"meta"}


def test_the_loss_is_inside_and_the_names_stay_the_model_s(tmp_path: Path) -> None:
    model = resolve_model(saved(tmp_path, CONFIGURATIONS["llama"]))
    names = dict(model.module.named_modules())
    assert type(model.module).__name__ == "LlamaForCausalLM"
    assert "model.layers.2.self_attn.q_proj" in names
    assert "lm_head" in names


@pytest.mark.parametrize("family", WITHOUT_SOFTCAP)
def test_causal_attention_is_fused_and_takes_no_mask(family: str, tmp_path: Path) -> None:
    model = resolve_model(saved(tmp_path, CONFIGURATIONS[family]), seq=16)  # within every sliding window
    with AttentionCalls() as seen:
        model.module(*model.example_args)
    assert seen.calls == [(None, True)] * model.num_layers


def test_a_sliding_window_shorter_than_the_sequence_keeps_its_band(tmp_path: Path) -> None:
    """With a window of 2 in one layer, a token sees itself and the one before."""
    config = {**CONFIGURATIONS["gemma3"], "num_hidden_layers": 1, "sliding_window": 2}
    model = resolve_model(saved(tmp_path, {**config, "layer_types": ["sliding_attention"]}), seq=8)
    backbone = model.module.model
    tokens = model.example_args[0]
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 256
    ours = backbone(input_ids=tokens, use_cache=False).last_hidden_state[0]
    theirs = backbone(input_ids=changed, use_cache=False).last_hidden_state[0]
    differs = [not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert differs == [True, True, False, False, False, False, False, False]


@pytest.mark.parametrize(
    ("family", "stacks"), [("llama", 1), ("gpt2", 1), ("gemma3", 1), ("t5", 2), ("vit", 1)]
)
def test_layers_shapes_every_stack(family: str, stacks: int, tmp_path: Path) -> None:
    model = resolve_model(saved(tmp_path, CONFIGURATIONS[family]), layers=2)
    layers = [
        n
        for n, _ in model.module.named_modules()
        if n.split(".")[-2:-1] in (["layers"], ["h"], ["block"], ["layer"])
    ]
    outermost = [n for n in layers if sum(part.isdigit() for part in n.split(".")) == 1]
    assert len(outermost) == 2 * stacks
    assert model.num_layers == 2


def test_batch_seq_and_dtype_shape_the_model(tmp_path: Path) -> None:
    model = resolve_model(saved(tmp_path, CONFIGURATIONS["llama"]), batch=3, seq=32, dtype="bfloat16")
    assert model.example_args[0].shape == (3, 32)
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}


def test_the_configured_type_is_the_default(tmp_path: Path) -> None:
    assert (
        resolve_model(saved(tmp_path, {**CONFIGURATIONS["llama"], "dtype": "bfloat16"})).dtype == "bfloat16"
    )


def test_a_sequence_longer_than_the_positions_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--seq 129 is longer than the 128 positions"):
        resolve_model(saved(tmp_path, CONFIGURATIONS["llama"]), seq=129)


@pytest.mark.parametrize(("family", "option"), [("vit", "seq"), ("unet", "seq"), ("unet", "layers")])
def test_an_option_that_the_family_does_not_have_is_a_usage_error(
    family: str, option: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"--{option}"):
        ModelRequest(saved(tmp_path, CONFIGURATIONS[family]), **{option: 4}).resolve()


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ("{", UnreadableError, "cannot be read"),
        ("[1]", UnreadableError, "a JSON list, not an object"),
        ("\udcff", UnreadableError, "cannot be read"),
        ({}, RefusedError, "names no model_type"),
        ({"model_type": "no-such"}, RefusedError, "knows no model_type 'no-such'"),
        ({"model_type": "llama", "auto_map": {}}, RefusedError, "its code is not part of transformers"),
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            RefusedError,
            "BertForMaskedLM is none",
        ),
        ({"model_type": "clip"}, RefusedError, "no number for num_channels and image_size"),
        ({"model_type": "whisper"}, RefusedError, "none of the kinds"),
        ({"_class_name": "AutoencoderKL"}, RefusedError, "AutoencoderKL"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_name(
    config: dict[str, Any] | str, error: type[OffloadError], words: str, tmp_path: Path
) -> None:
    if config == "\udcff":
        (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
        spec = f"hf:{tmp_path}"
    else:
        spec = saved(tmp_path, config)
    with pytest.raises(error) as caught:
        resolve_model(spec)
    (diagnostic,) = caught.value.diagnostics
    assert words in diagnostic.message
    assert diagnostic.hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": -32}, "RuntimeError"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": 33}, "33"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"vocab_size": 0}, "ZeroDivisionError"),
        ({"hidden_act": "no-such"}, "KeyError: 'no-such'"),
        ({"torch_dtype": "no-such"}, "no-such"),
    ],
)
def test_values_that_no_model_can_be_built_of_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError) as caught:
        resolve_model(saved(tmp_path, {**CONFIGURATIONS["llama"], **changes}))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "MOD706"
    assert words in diagnostic.message
    assert "\n" not in diagnostic.message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"])
def test_json_beyond_the_bounds_of_the_reader_is_unreadable(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        resolve_model(saved(tmp_path, text))


@pytest.mark.parametrize("path", ["x" * 5000, "~no-such-user/config.json"], ids=["long", "of nobody"])
def test_a_path_that_no_file_can_have_is_no_file(path: str) -> None:
    with pytest.raises(UnreadableError, match="there is no file"):
        resolve_model(f"hf:{path}")


def test_a_broken_configuration_is_pointed_at(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError) as caught:
        resolve_model(saved(tmp_path, '{\n "model_type": llama\n}'))
    diagnostic = caught.value.diagnostics[0]
    assert (diagnostic.line, diagnostic.column) == (2, 16)


def test_a_name_on_the_hub_is_not_downloaded() -> None:
    with pytest.raises(UnreadableError, match="nothing is downloaded"):
        resolve_model("hf:meta-llama/Meta-Llama-3-8B")


@pytest.mark.parametrize(("family", "package"), [("llama", "transformers"), ("unet", "diffusers")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    family: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("transformer", "diffusion"):
        monkeypatch.delitem(sys.modules, f"offload_runtime.models.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RefusedError) as caught:
        resolve_model(saved(tmp_path, CONFIGURATIONS[family]))
    (diagnostic,) = caught.value.diagnostics
    assert package in diagnostic.message
    assert "offload-runtime[hf]" in (diagnostic.hint or "")
