"""Conditional U-Nets of the diffusers package, built from a configuration, with the denoising loss inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from torch import Tensor

from offload_runtime.models.batches import DenoisingBatches, normal
from offload_runtime.models.construction import construct
from offload_runtime.models.huggingface import KINDS, unsupported
from offload_runtime.models.resolve import ModelRequest, refuse_options
from offload_runtime.models.transformer import use_loss
from offload_runtime.models.under_test import Batch, ModelUnderTest, count_parameters

_LEARNING_RATE = 1e-4
_NUM_TRAIN_TIMESTEPS = 1000
_TEXT_LENGTH = 77  # the prompt length of CLIP, which these models are conditioned on


def build_diffusion(request: ModelRequest, data: Mapping[str, Any]) -> ModelUnderTest:
    """Build the ``UNet2DConditionModel`` of the configuration ``data``; a batch is one image by default."""
    refuse_options(
        request, ("seq", "layers"), "it has images and fixed blocks", "--batch and --dtype shape it"
    )
    name = data["_class_name"]
    if name != "UNet2DConditionModel":
        raise unsupported(request.spec, f"{name} is not built from a configuration", f"use {KINDS}")
    dtype_name = request.dtype or "float32"
    dtype, device = getattr(torch, dtype_name), torch.device(request.device)
    from_config: Callable[[dict[str, Any]], Any] = diffusers.UNet2DConditionModel.from_config
    module = construct(request.spec, lambda: from_config(dict(data)).train(), dtype, device)
    config = module.config
    use_loss(module, _denoising_loss)
    images = DenoisingBatches(
        request.batch or 1, config.in_channels, config.sample_size, dtype, device, request.seed
    )
    batches = ConditionedBatches(images, config.cross_attention_dim)
    return ModelUnderTest(
        name=request.spec,
        description=f"{name} of {request.spec} ({dtype_name})",
        module=module,
        example_args=batches(0),
        loss_fn=None,
        make_batch=batches,
        num_parameters=count_parameters(module),
        num_layers=None,
        dtype=dtype_name,
        device=device,
        optimizer=request.optimizer or "adamw",
        learning_rate=_LEARNING_RATE,
    )


def _denoising_loss(
    call: Callable[..., Any], images: Tensor, timesteps: Tensor, prompt: Tensor, noise: Tensor
) -> Tensor:
    predicted: Tensor = call(images, timesteps, encoder_hidden_states=prompt).sample
    return F.mse_loss(predicted.float(), noise.float())


@dataclass(frozen=True)
class ConditionedBatches:
    """Batches ``(noisy images, timesteps, prompt, noise)``: a denoising batch with a random text encoding."""

    images: DenoisingBatches
    prompt_dim: int

    def __call__(self, step: int) -> Batch:
        """Return the batch of ``step``; ``prompt`` is ``[batch, 77, prompt_dim]``."""
        noisy, timesteps, noise = self.images(step)
        prompt = normal(
            (self.images.batch, _TEXT_LENGTH, self.prompt_dim),
            step=step,
            stream="prompt",
            dtype=self.images.dtype,
            device=self.images.device,
            seed=self.images.seed,
        )
        return noisy, timesteps * _NUM_TRAIN_TIMESTEPS, prompt, noise
