"""Building of the built-in reference models."""

from __future__ import annotations

from dataclasses import replace

import torch

from offload_runtime.models.batches import DenoisingBatches, TextBatches
from offload_runtime.models.catalog import BUILTINS, BuiltinModel
from offload_runtime.models.configs import DecoderConfig, UNetConfig
from offload_runtime.models.construction import allocates, construct
from offload_runtime.models.decoder import Decoder
from offload_runtime.models.resolve import ModelRequest, refuse_options, unknown_model
from offload_runtime.models.under_test import ModelUnderTest, count_parameters
from offload_runtime.models.unet import UNet


def build_builtin(request: ModelRequest) -> ModelUnderTest:
    """Build the model that ``request.spec``, ``builtin:NAME``, names."""
    entry = BUILTINS.get(request.spec.partition(":")[2])
    if entry is None:
        raise unknown_model(request.spec)
    if isinstance(entry.config, UNetConfig):
        return _build_unet(request, entry, entry.config)
    return _build_decoder(request, entry, entry.config)


def _build_decoder(request: ModelRequest, entry: BuiltinModel, config: DecoderConfig) -> ModelUnderTest:
    batch, seq = request.batch or entry.batch, request.seq or entry.seq or 1
    config = replace(config, num_layers=request.layers or config.num_layers)
    dtype_name = request.dtype or entry.dtype
    dtype, device = getattr(torch, dtype_name), torch.device(request.device)
    module = construct(request.spec, lambda: Decoder(config, seq), dtype, device)
    if allocates(device):
        module.init_weights()
    batches = TextBatches(batch, seq, config.vocab_size, device, request.seed)
    shape = f"{config.num_layers} layers, {batch} x {seq} tokens"
    return ModelUnderTest(
        name=request.spec,
        description=f"{entry.summary} ({shape}, {dtype_name})",
        module=module,
        example_args=batches(0),
        loss_fn=None,
        make_batch=batches,
        num_parameters=count_parameters(module),
        num_layers=config.num_layers,
        dtype=dtype_name,
        device=device,
        optimizer=request.optimizer or entry.optimizer,
        learning_rate=entry.learning_rate,
    )


def _build_unet(request: ModelRequest, entry: BuiltinModel, config: UNetConfig) -> ModelUnderTest:
    refuse_options(
        request,
        ("seq", "layers"),
        "it has images and a fixed set of blocks",
        "--batch and --dtype shape it",
    )
    batch, dtype_name = request.batch or entry.batch, request.dtype or entry.dtype
    dtype, device = getattr(torch, dtype_name), torch.device(request.device)
    module = construct(request.spec, lambda: UNet(config), dtype, device)
    if allocates(device):
        module.init_weights()
    batches = DenoisingBatches(batch, config.image_channels, config.image_size, dtype, device, request.seed)
    shape = f"{batch} images of {config.image_size} x {config.image_size}"
    return ModelUnderTest(
        name=request.spec,
        description=f"{entry.summary} ({shape}, {dtype_name})",
        module=module,
        example_args=batches(0),
        loss_fn=None,
        make_batch=batches,
        num_parameters=count_parameters(module),
        num_layers=None,
        dtype=dtype_name,
        device=device,
        optimizer=request.optimizer or entry.optimizer,
        learning_rate=entry.learning_rate,
    )
