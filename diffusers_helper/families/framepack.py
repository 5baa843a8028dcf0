"""FramePack without torch: its networks, the names of their layers, and its published models."""

from typing import Any

from diffusers_helper.families import packing
from diffusers_helper.families.family import (
    OF_CLIPS,
    Family,
    FamilyNetwork,
    LayerNames,
    ParameterCounts,
    PromptFormat,
    PublishedModel,
    SmallDecoder,
    buckets,
)

# HunyuanVideo's template for videos
_TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)
# The mag_ratios of FramePack I2V and F1 at 25 steps and 640 pixels, as measured by the authors of MagCache
# (Zehong-Ma/MagCache, MagCache4FramePack; Apache License 2.0)
_MAGNITUDES: dict[packing.Mode, tuple[float, ...]] = {
    "inverted": (
        1.0, 1.26562, 1.23438, 1.03125, 1.02344, 1.03906, 1.01562, 1.03906, 1.05469, 1.02344, 1.03906,
        0.99609, 1.03125, 1.02344, 1.01562, 1.02344, 1.00781, 1.04688, 0.98828, 1.0, 1.00781, 0.98828,
        0.94141, 0.94141, 0.78906,
    ),
    "forward": (
        1.0, 1.25781, 1.08594, 1.02344, 1.00781, 1.02344, 1.00781, 1.02344, 1.05469, 0.99609, 1.03906,
        1.00781, 1.01562, 1.00781, 1.02344, 1.01562, 0.98047, 1.05469, 0.98047, 0.96875, 1.03125, 0.97266,
        0.9375, 0.96484, 0.78516,
    ),
}  # fmt: skip
_LAYERS = {
    "": """
        x_embedder.proj clean_x_embedder.proj clean_x_embedder.proj_2x clean_x_embedder.proj_4x
        image_projection.up image_projection.down norm_out.linear proj_out""",
    "context_embedder.": """
        proj_in time_text_embed.timestep_embedder.linear_1 time_text_embed.timestep_embedder.linear_2
        time_text_embed.text_embedder.linear_1 time_text_embed.text_embedder.linear_2""",
    "context_embedder.token_refiner.refiner_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.to_out.0 ff.net.0.proj ff.net.2 norm1 norm2 norm_out.linear""",
    "time_text_embed.": """
        timestep_embedder.linear_1 timestep_embedder.linear_2 text_embedder.linear_1 text_embedder.linear_2
        guidance_embedder.linear_1 guidance_embedder.linear_2""",
    "transformer_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.to_out.0 attn.norm_q attn.norm_k attn.add_q_proj attn.add_k_proj
        attn.add_v_proj attn.to_add_out attn.norm_added_q attn.norm_added_k norm1.linear norm1_context.linear
        ff.net.0.proj ff.net.2 ff_context.net.0.proj ff_context.net.2""",
    "single_transformer_blocks.*.": """
        attn.to_q attn.to_k attn.to_v attn.norm_q attn.norm_k norm.linear proj_mlp proj_out""",
}
_ATTENTION = "attn.to_q attn.to_k attn.to_v"
# HunyuanVideo's own layers
_HUNYUAN_NAMES: dict[tuple[str, str], dict[str, str]] = {
    ("double_blocks.*.", "transformer_blocks.*."): {
        "img_attn_qkv": _ATTENTION,
        "img_attn_q_norm": "attn.norm_q",
        "img_attn_k_norm": "attn.norm_k",
        "img_attn_proj": "attn.to_out.0",
        "img_mod.linear": "norm1.linear",
        "img_mlp.fc1": "ff.net.0.proj",
        "img_mlp.fc2": "ff.net.2",
        "txt_attn_qkv": "attn.add_q_proj attn.add_k_proj attn.add_v_proj",
        "txt_attn_q_norm": "attn.norm_added_q",
        "txt_attn_k_norm": "attn.norm_added_k",
        "txt_attn_proj": "attn.to_add_out",
        "txt_mod.linear": "norm1_context.linear",
        "txt_mlp.fc1": "ff_context.net.0.proj",
        "txt_mlp.fc2": "ff_context.net.2",
    },
    ("single_blocks.*.", "single_transformer_blocks.*."): {
        "linear1": f"{_ATTENTION} proj_mlp",
        "q_norm": "attn.norm_q",
        "k_norm": "attn.norm_k",
        "linear2": "proj_out",
        "modulation.linear": "norm.linear",
    },
    ("txt_in.individual_token_refiner.blocks.*.", "context_embedder.token_refiner.refiner_blocks.*."): {
        "self_attn_qkv": _ATTENTION,
        "self_attn_proj": "attn.to_out.0",
        "norm1": "norm1",
        "norm2": "norm2",
        "mlp.fc1": "ff.net.0.proj",
        "mlp.fc2": "ff.net.2",
        "adaLN_modulation.1": "norm_out.linear",
    },
    ("txt_in.", "context_embedder."): {
        "input_embedder": "proj_in",
        "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
        "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
        "c_embedder.linear_1": "time_text_embed.text_embedder.linear_1",
        "c_embedder.linear_2": "time_text_embed.text_embedder.linear_2",
    },
    ("", "time_text_embed."): {
        "time_in.mlp.0": "timestep_embedder.linear_1",
        "time_in.mlp.2": "timestep_embedder.linear_2",
        "vector_in.in_layer": "text_embedder.linear_1",
        "vector_in.out_layer": "text_embedder.linear_2",
        "guidance_in.mlp.0": "guidance_embedder.linear_1",
        "guidance_in.mlp.2": "guidance_embedder.linear_2",
    },
    ("", ""): {
        "img_in.proj": "x_embedder.proj",
        "final_layer.linear": "proj_out",
        "final_layer.adaLN_modulation.1": "norm_out.linear!",
    },
}
# The layers that ComfyUI's class names differently from HunyuanVideo's authors
_COMFYUI_RESPELLINGS = (
    ("_mod.linear", "_mod.lin"), ("modulation.linear", "modulation.lin"),
    ("mlp.fc1", "mlp.0"), ("mlp.fc2", "mlp.2"), ("t_embedder.mlp.0", "t_embedder.in_layer"),
    ("t_embedder.mlp.2", "t_embedder.out_layer"), ("c_embedder.linear_1", "c_embedder.in_layer"),
    ("c_embedder.linear_2", "c_embedder.out_layer"), ("_in.mlp.0", "_in.in_layer"),
    ("_in.mlp.2", "_in.out_layer"), ("q_norm", "norm.query_norm"), ("k_norm", "norm.key_norm"),
)  # fmt: skip
_DOWN, _UP = ["HunyuanVideoDownBlock3D"] * 4, ["HunyuanVideoUpBlock3D"] * 4
CONFIGS: dict[str, dict[str, Any]] = {
    "transformer": {
        "_class_name": "HunyuanVideoFramepackTransformer3DModel", "attention_head_dim": 128,
        "guidance_embeds": True, "has_clean_x_embedder": True, "has_image_proj": True,
        "image_proj_dim": 1152, "in_channels": 16, "mlp_ratio": 4.0, "num_attention_heads": 24,
        "num_layers": 20, "num_refiner_layers": 2, "num_single_layers": 40, "out_channels": 16,
        "patch_size": 2, "patch_size_t": 1, "pooled_projection_dim": 768, "qk_norm": "rms_norm",
        "rope_axes_dim": [16, 56, 56], "rope_theta": 256.0, "text_embed_dim": 4096,
    },
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
_DUAL = ParameterCounts(113_338_880, 226_492_416, rows=55_296)
_SINGLE = ParameterCounts(28_345_600, 113_246_208, rows=24_576)
_ENCODER = ("hidden_size", "intermediate_size")
_NETWORKS = {
    "transformer": FamilyNetwork(
        "HunyuanVideoFramepackTransformer3DModel", "FramePack",
        ("num_attention_heads", "attention_head_dim", "num_layers"), CONFIGS["transformer"],
        ParameterCounts(3_743_446_080, 9_130_868_736, rows=2_119_680), (_DUAL,) * 20 + (_SINGLE,) * 40,
        ("transformer_blocks", "single_transformer_blocks"), "bfloat16", 12288 * 3072,
        ("HunyuanVideoTransformer3DModelPacked",),  # FramePack's authors, in the published configurations
    ),
    "vae": FamilyNetwork(
        "AutoencoderKLHunyuanVideo", "Hunyuan VAE", ("layers_per_block", "block_out_channels"),
        CONFIGS["vae"], ParameterCounts(246_478_803),
    ),
    "text_encoder": FamilyNetwork(
        "LlamaModel", "Llama", (*_ENCODER, "num_hidden_layers"), CONFIGS["text_encoder"],
        ParameterCounts(7_505_186_816), (ParameterCounts(218_112_000),) * 32, ("layers",),
    ),
    "text_encoder_2": FamilyNetwork(
        "CLIPTextModel", "CLIP", (*_ENCODER, "max_position_embeddings"), CONFIGS["text_encoder_2"],
        ParameterCounts(123_060_480),
    ),
    "image_encoder": FamilyNetwork(
        "SiglipVisionModel", "SigLIP", (*_ENCODER, "image_size", "patch_size"), CONFIGS["image_encoder"],
        ParameterCounts(428_225_600),
    ),
}  # fmt: skip
_REQUIREMENTS = (
    ("transformer", "in_channels", "transformer takes latents of %s channels", 16),
    ("transformer", "has_clean_x_embedder", "transformer takes history (has_clean_x_embedder %s)", True),
    ("transformer", "has_image_proj", "transformer takes the picture (has_image_proj %s)", True),
    ("vae", "latent_channels", "vae gives latents of %s channels", ("transformer", "in_channels")),
    ("vae", "spatial_compression_ratio", "vae shrinks pictures by %s", 8),
    ("vae", "temporal_compression_ratio", "vae shrinks time by %s", 4),
    (
        "text_encoder", "hidden_size", "text_encoder gives %s values per token",
        ("transformer", "text_embed_dim"),
    ),
    (
        "text_encoder_2", "hidden_size", "text_encoder_2 gives %s values",
        ("transformer", "pooled_projection_dim"),
    ),
    (
        "image_encoder", "hidden_size", "image_encoder gives %s values per token",
        ("transformer", "image_proj_dim"),
    ),
)  # fmt: skip
_SHARED = {
    "vae text_encoder tokenizer text_encoder_2 tokenizer_2": (
        "hunyuanvideo-community/HunyuanVideo", "e8c2aaa66fe3742a32c11a6766aecbf07c56e773",
    ),
    "image_encoder feature_extractor": (
        "lllyasviel/flux_redux_bfl", "45b801affc54ff2af4e5daf1b282e0921901db87",
    ),
}  # fmt: skip
_SOURCES = {
    component: (repo, component, revision)
    for components, (repo, revision) in _SHARED.items()
    for component in components.split()
}
COMPONENTS = ("transformer", *_SOURCES)


def _published(
    name: str, title: str, variant: str, file_pattern: str, repository: str, revision: str,
    mode: packing.Mode, purpose: str,
) -> PublishedModel:  # fmt: skip
    sources = {"transformer": (repository, "", revision), **_SOURCES}
    settings = {"modes": (mode,), "purpose": purpose}
    return PublishedModel(name, title, variant, file_pattern, sources, settings)


# Its transformers were trained with sections of nine latent frames alone.
FRAMEPACK = Family(
    "framepack", channels=16, spatial_compression=8, temporal_compression=4,
    fps=packing.FPS, buckets=buckets,
    networks=_NETWORKS, components=COMPONENTS, requirements=_REQUIREMENTS,
    signs=("clean_x_embedder.",), resembles=("HunyuanVideo", "Flux"),
    layer_names=LayerNames(
        _LAYERS, _HUNYUAN_NAMES, _COMFYUI_RESPELLINGS,
        skip_casting_pattern=r"x_embedder|con(?:text|dition)_embedder|norm|pos_embed|patch_embed|^proj_in\.|^proj_out\."
        r"|img_in|txt_in|_mod\.|modulation|^final_layer\.",
        lora_metadata_pattern="hunyuan|framepack", lora_models="FramePack or HunyuanVideo",
    ),
    published=(
        _published(
            "framepack-i2v", "FramePack I2V", "I2V", "i2v", "lllyasviel/FramePackI2V_HY",
            "86cef4396041b6002c957852daac4c91aaa47c79", "inverted",
            "For a long video that stays true to its picture.",
        ),
        _published(
            "framepack-f1", "FramePack F1", "F1", "f1(?![0-9])", "lllyasviel/FramePack_F1_I2V_HY_20250503",
            "ab239828e0b384fed75580f186f078717d4020f7", "forward",
            "For livelier motion, and for videos that are extended later.",
        ),
    ),
    small_decoder=SmallDecoder("safetensors/taehv.safetensors", "373253e5f877b3f6474a7ec874e5559f40381246"),
    prompt_format=PromptFormat(_TEMPLATE, 95, 256), tail_frames=packing.frames_of(packing.HISTORY),
    plan=packing.plan_sections, mag_ratios=_MAGNITUDES, unsupported=OF_CLIPS,
    licence="Its weights descend from HunyuanVideo, whose Tencent Hunyuan Community License grants no rights "
    "in the European Union, the United Kingdom and South Korea.",
)  # fmt: skip
