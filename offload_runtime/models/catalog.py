"""The built-in reference models: names, shapes and defaults. No torch is needed to read this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offload_runtime.models.configs import (
    Adapters,
    DecoderConfig,
    Experts,
    GroupedQueryAttention,
    LatentAttention,
    UNetConfig,
)

DTYPES = ("float32", "bfloat16", "float16")
# `adamw-fused` is torch.optim.AdamW(fused=True); the others are torch's default forms.
OPTIMIZERS = ("adamw", "adamw-fused", "sgd", "none")


def algorithm_of(optimizer: str) -> str:
    """Return the algorithm that an optimizer of this table carries out, whatever kernels do it: ``adamw``."""
    return optimizer.removesuffix("-fused")


@dataclass(frozen=True)
class BuiltinModel:
    """One built-in model and how it is trained where nothing else is asked.

    ``seq`` is None for a model without a sequence. ``num_parameters`` is that of the default number of
    layers.
    """

    name: str
    summary: str
    config: DecoderConfig | UNetConfig
    batch: int
    seq: int | None
    dtype: str
    optimizer: str
    learning_rate: float
    num_parameters: int
    loss: str

    @property
    def num_layers(self) -> int:
        """Number of layers, counted as a policy's ``layers:`` counts them."""
        if isinstance(self.config, UNetConfig):
            return 2 * len(self.config.channels)
        return self.config.num_layers


_TEXT_LOSS = "next-byte cross entropy in float32"

_BUILTINS = (
    BuiltinModel(
        name="llama-tiny",
        summary="byte-level Llama that learns English on a laptop's CPU",
        config=DecoderConfig(
            vocab_size=256,
            dim=128,
            num_layers=4,
            ffn_dim=384,
            attention=GroupedQueryAttention(num_heads=4, num_kv_heads=2, head_dim=32),
            rope_theta=10_000.0,
            norm_eps=1e-5,
        ),
        batch=4,
        seq=256,
        dtype="float32",
        optimizer="adamw",
        learning_rate=3e-3,
        num_parameters=853_120,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="llama-tiny-lora",
        summary="llama-tiny with adapters of rank 8 on attention; all else is frozen",
        config=DecoderConfig(
            vocab_size=256,
            dim=128,
            num_layers=4,
            ffn_dim=384,
            attention=GroupedQueryAttention(num_heads=4, num_kv_heads=2, head_dim=32),
            rope_theta=10_000.0,
            norm_eps=1e-5,
            adapters=Adapters(rank=8, alpha=16.0),
        ),
        batch=4,
        seq=256,
        dtype="float32",
        optimizer="adamw",
        learning_rate=3e-3,
        num_parameters=881_792,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="moe-tiny",
        summary="byte-level mixture of experts: 4 experts in each layer, 2 for each token",
        config=DecoderConfig(
            vocab_size=256,
            dim=64,
            num_layers=4,
            ffn_dim=192,
            attention=GroupedQueryAttention(num_heads=4, num_kv_heads=2, head_dim=16),
            rope_theta=10_000.0,
            norm_eps=1e-5,
            experts=Experts(num_experts=4, top_k=2, hidden_dim=128, normalize=True),
        ),
        batch=4,
        seq=128,
        dtype="float32",
        optimizer="adamw",
        learning_rate=3e-3,
        num_parameters=476_736,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="unet-tiny",
        summary="denoising U-Net with skip connections, group norm and convolutions",
        config=UNetConfig(image_channels=3, image_size=32, channels=(32, 64, 128), num_groups=8, time_dim=64),
        batch=8,
        seq=None,
        dtype="float32",
        optimizer="adamw",
        learning_rate=1e-3,
        num_parameters=1_533_955,
        loss="mean squared error of the predicted noise in float32",
    ),
    BuiltinModel(
        name="llama3-8b",
        summary="the shape of Llama-3-8B, one sequence of 8192 tokens",
        config=DecoderConfig(
            vocab_size=128_256,
            dim=4096,
            num_layers=32,
            ffn_dim=14_336,
            attention=GroupedQueryAttention(num_heads=32, num_kv_heads=8, head_dim=128),
            rope_theta=500_000.0,
            norm_eps=1e-5,
        ),
        batch=1,
        seq=8192,
        dtype="bfloat16",
        optimizer="sgd",
        learning_rate=1e-3,
        num_parameters=8_030_261_248,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="llama3-8b-lora",
        summary="the shape of Llama-3-8B, frozen, with adapters of rank 16 on attention (LoRA)",
        config=DecoderConfig(
            vocab_size=128_256,
            dim=4096,
            num_layers=32,
            ffn_dim=14_336,
            attention=GroupedQueryAttention(num_heads=32, num_kv_heads=8, head_dim=128),
            rope_theta=500_000.0,
            norm_eps=1e-5,
            adapters=Adapters(rank=16, alpha=32.0),
        ),
        batch=2,
        seq=8192,
        dtype="bfloat16",
        optimizer="adamw",
        learning_rate=1e-4,
        num_parameters=8_043_892_736,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="llama3-70b",
        summary="the shape of Llama-3-70B, for planning",
        config=DecoderConfig(
            vocab_size=128_256,
            dim=8192,
            num_layers=80,
            ffn_dim=28_672,
            attention=GroupedQueryAttention(num_heads=64, num_kv_heads=8, head_dim=128),
            rope_theta=500_000.0,
            norm_eps=1e-5,
        ),
        batch=1,
        seq=8192,
        dtype="bfloat16",
        optimizer="sgd",
        learning_rate=1e-3,
        num_parameters=70_553_706_496,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="qwen3-14b",
        summary="the shape of Qwen3-14B, two sequences of 4096 tokens",
        config=DecoderConfig(
            vocab_size=151_936,
            dim=5120,
            num_layers=40,
            ffn_dim=17_408,
            attention=GroupedQueryAttention(num_heads=40, num_kv_heads=8, head_dim=128, qk_norm=True),
            rope_theta=1_000_000.0,
            norm_eps=1e-6,
        ),
        batch=2,
        seq=4096,
        dtype="bfloat16",
        optimizer="sgd",
        learning_rate=1e-3,
        num_parameters=14_768_307_200,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="qwen3-30b-a3b",
        summary="the shape of Qwen3-30B-A3B: 128 experts, 8 for each token",
        config=DecoderConfig(
            vocab_size=151_936,
            dim=2048,
            num_layers=48,
            ffn_dim=6144,
            attention=GroupedQueryAttention(num_heads=32, num_kv_heads=4, head_dim=128, qk_norm=True),
            rope_theta=1_000_000.0,
            norm_eps=1e-6,
            experts=Experts(num_experts=128, top_k=8, hidden_dim=768, normalize=True),
        ),
        batch=1,
        seq=4096,
        dtype="bfloat16",
        optimizer="sgd",
        learning_rate=1e-3,
        num_parameters=30_532_122_624,
        loss=_TEXT_LOSS,
    ),
    BuiltinModel(
        name="dsv3-16b",
        summary="a 16B DeepSeek-V3: latent attention, 64 experts, 6 for each token, 2 shared",
        config=DecoderConfig(
            vocab_size=102_400,
            dim=2048,
            num_layers=27,
            ffn_dim=10_944,
            attention=LatentAttention(num_heads=16, kv_rank=512, nope_dim=128, rotary_dim=64, value_dim=128),
            rope_theta=10_000.0,
            norm_eps=1e-5,
            experts=Experts(
                num_experts=64, top_k=6, hidden_dim=1408, normalize=False, num_shared=2, num_dense_layers=1
            ),
        ),
        batch=1,
        seq=4096,
        dtype="bfloat16",
        optimizer="sgd",
        learning_rate=1e-3,
        num_parameters=15_706_484_224,
        loss=_TEXT_LOSS,
    ),
)

BUILTINS: Mapping[str, BuiltinModel] = MappingProxyType({model.name: model for model in _BUILTINS})


def list_models() -> tuple[BuiltinModel, ...]:
    """Return the built-in models; the small ones, which train anywhere, come first."""
    return tuple(BUILTINS.values())
