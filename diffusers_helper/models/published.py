"""The configurations of the published models' networks, for weights that come as a single file."""

from __future__ import annotations

from typing import Any

# Both FramePack models have the same one.
_TRANSFORMER = {
    "_class_name": "HunyuanVideoFramepackTransformer3DModel",
    "attention_head_dim": 128, "guidance_embeds": True, "has_clean_x_embedder": True, "has_image_proj": True,
    "image_proj_dim": 1152, "in_channels": 16, "mlp_ratio": 4.0, "num_attention_heads": 24, "num_layers": 20,
    "num_refiner_layers": 2, "num_single_layers": 40, "out_channels": 16, "patch_size": 2, "patch_size_t": 1,
    "pooled_projection_dim": 768, "qk_norm": "rms_norm", "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0,
    "text_embed_dim": 4096,
}  # fmt: skip
_DOWN, _UP = ["HunyuanVideoDownBlock3D"] * 4, ["HunyuanVideoUpBlock3D"] * 4
CONFIGS: dict[str, dict[str, Any]] = {
    "transformer": _TRANSFORMER,
    "vae": {
        "_class_name": "AutoencoderKLHunyuanVideo", "act_fn": "silu",
        "block_out_channels": [128, 256, 512, 512], "down_block_types": _DOWN, "in_channels": 3,
        "latent_channels": 16, "layers_per_block": 2, "mid_block_add_attention": True, "norm_num_groups": 32,
        "out_channels": 3, "scaling_factor": 0.476986, "spatial_compression_ratio": 8,
        "temporal_compression_ratio": 4, "up_block_types": _UP,
    },
    "text_encoder": {
        "architectures": ["LlamaModel"], "attention_bias": False, "bos_token_id": 128000,
        "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "vocab_size": 128320,
    },
    "text_encoder_2": {
        "architectures": ["CLIPTextModel"], "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "quick_gelu",
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-5, "max_position_embeddings": 77,
        "model_type": "clip_text_model", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 1, "projection_dim": 768, "vocab_size": 49408,
    },
    "image_encoder": {
        "architectures": ["SiglipVisionModel"], "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
        "image_size": 384, "intermediate_size": 4304, "layer_norm_eps": 1e-6,
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_channels": 3,
        "num_hidden_layers": 27, "patch_size": 14,
    },
}  # fmt: skip
_UMT5 = {
    "architectures": ["UMT5EncoderModel"], "d_ff": 10240, "d_kv": 64, "d_model": 4096, "dropout_rate": 0.1,
    "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6, "model_type": "umt5", "num_heads": 64,
    "num_layers": 24, "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32, "vocab_size": 256384,
}  # fmt: skip
_HELIOS: dict[str, dict[str, Any]] = {
    "transformer": {
        "_class_name": "HeliosTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 13824,
        "in_channels": 16, "num_attention_heads": 40, "num_layers": 40, "out_channels": 16, "text_dim": 4096,
    },
    "vae": {"_class_name": "AutoencoderKLWan", "base_dim": 96, "num_res_blocks": 2, "z_dim": 16},
    "text_encoder": _UMT5,
}  # fmt: skip
CONFIGS_OF = {"framepack": CONFIGS, "helios": _HELIOS}
"""The same by the families of the models."""
