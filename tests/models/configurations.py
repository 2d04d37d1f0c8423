"""Small configurations of the model families that tests train, as ``config.json`` files hold them."""

from __future__ import annotations

from typing import Any

_DECODER: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_key_value_heads": 4}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **_DECODER},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **_DECODER, "head_dim": 16},
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 256,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        **_DECODER,
        "head_dim": 16,
        "sliding_window": 16,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        **_DECODER,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "head_dim": 16,
        "sliding_window": 16,
    },
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        **_DECODER,
        "num_local_experts": 4,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **_DECODER,
        **_EXPERTS,
        "num_experts": 4,
        "head_dim": 16,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        **_DECODER,
        **_EXPERTS,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": 256,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 3,
        "num_heads": 4,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
    "unet": {
        "_class_name": "UNet2DConditionModel",
        "sample_size": 16,
        "block_out_channels": [32, 64],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "cross_attention_dim": 32,
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    },
}
TEXT_FAMILIES = tuple(name for name in CONFIGURATIONS if name not in ("vit", "unet"))
