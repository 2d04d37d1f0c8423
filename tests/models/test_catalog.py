"""The table of built-in models says what the models are, and costs no torch to read."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from offload_runtime.models.builtin import build_builtin
from offload_runtime.models.catalog import BUILTINS, DTYPES, OPTIMIZERS, BuiltinModel, list_models
from offload_runtime.models.resolve import ModelRequest, resolve_model

EVERY_MODEL = pytest.mark.parametrize("entry", list_models(), ids=lambda entry: entry.name)

# From the published configurations; untied embeddings counted.
PUBLISHED_PARAMETERS = {
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
}


def test_the_models_of_the_design_are_all_there() -> None:
    assert set(BUILTINS) == {
        "llama-tiny",
        "llama-tiny-lora",
        "moe-tiny",
        "unet-tiny",
        "llama3-8b",
        "llama3-8b-lora",
        "llama3-70b",
        "qwen3-14b",
        "qwen3-30b-a3b",
        "dsv3-16b",
    }


def test_listing_the_models_imports_no_torch() -> None:
    script = (
        "import sys; from offload_runtime.models import list_models; list_models(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@EVERY_MODEL
def test_the_table_states_the_parameters_layers_and_choices_of_the_module(entry: BuiltinModel) -> None:
    model = resolve_model(f"builtin:{entry.name}", device="meta")
    assert model.num_parameters == entry.num_parameters
    assert sum(p.numel() for p in model.module.parameters()) == entry.num_parameters
    layers = [name for name, _ in model.module.named_modules() if name.rpartition(".")[2].isdigit()]
    assert len(layers) == entry.num_layers
    assert entry.dtype in DTYPES
    assert entry.optimizer in OPTIMIZERS


@pytest.mark.parametrize(("name", "num_parameters"), PUBLISHED_PARAMETERS.items())
def test_the_large_models_have_exactly_the_published_number_of_parameters(
    name: str, num_parameters: int
) -> None:
    assert BUILTINS[name].num_parameters == num_parameters


@pytest.mark.parametrize(
    ("name", "num_trained"), [("llama-tiny-lora", 28_672), ("llama3-8b-lora", 13_631_488)]
)
def test_of_a_model_with_adapters_these_alone_are_trained(name: str, num_trained: int) -> None:
    module = resolve_model(f"builtin:{name}", device="meta").module
    trained = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == num_trained
    assert {".".join(name.split(".")[-4:-1]) for name in trained} == {
        f"attention.{projection}.lora_{side}" for projection in ("wq", "wk", "wv", "wo") for side in "ab"
    }


@EVERY_MODEL
def test_a_model_on_the_meta_device_takes_no_memory(entry: BuiltinModel) -> None:
    model = build_builtin(ModelRequest(f"builtin:{entry.name}", device="meta"))
    tensors = [*model.module.parameters(), *model.module.buffers(), *model.example_args]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {str(p.dtype) for p in model.module.parameters()} == {f"torch.{entry.dtype}"}


@EVERY_MODEL
def test_the_default_loss_is_a_float32_scalar_with_a_gradient(entry: BuiltinModel) -> None:
    layers = None if entry.seq is None else 2
    model = resolve_model(f"builtin:{entry.name}", device="meta", layers=layers)
    loss = model.loss(model.module(*model.example_args))
    assert (loss.shape, loss.dtype) == (torch.Size([]), torch.float32)
    loss.backward()
    unused = [name for name, p in model.module.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []
