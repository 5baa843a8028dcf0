"""Helios without torch: its shapes, its plan of sections, its networks, and its published models.

Each section is made of nine latent frames and decoded by itself, so that neighbours share no frame. diffusers
cuts the whole video to 4 n + 1 frames; here every section keeps its 33.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

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
)
from diffusers_helper.untrusted.limited_json import read_json

FPS, LATENT_WINDOW_SIZE = 24, 9
SECTION_FRAMES = packing.frames_of(LATENT_WINDOW_SIZE)
# The number of sections that the end of a continued video is encoded in, which fill the history
TAIL_SECTIONS = 3
MAX_PROMPT_TOKENS = 512
# The scheduler of the published Base, and that of the distilled models, which sample in a pyramid of sizes
_BASE, DISTILLED = "HeliosScheduler", "HeliosDMDScheduler"
# The other caches need numbers that were measured for a model.
STEP_CACHES = ("first-block", "taylorseer", "easycache")
_SCHEDULER = "scheduler/scheduler_config.json"
# The size that Helios was trained in, as the side of a square of the same area, and the proportions to offer
SIDE = 496
_PROPORTIONS = ((5, 12), (9, 16), (3, 5), (3, 4), (1, 1), (4, 3), (5, 3), (16, 9), (12, 5))


def shapes(side: int, multiple: int) -> tuple[tuple[int, int], ...]:
    def edge(length: float) -> int:
        return max(multiple, round(length / multiple) * multiple)

    sizes = ((side * math.sqrt(h / w), side * math.sqrt(w / h)) for h, w in _PROPORTIONS)
    return tuple(dict.fromkeys((edge(height), edge(width)) for height, width in sizes))


def plan(seconds: float, mode: packing.Mode, *, has_picture: bool = True) -> packing.SectionPlan:
    """Plan a video of about `seconds`, or raise ValueError for a wrong length or an order besides forward."""
    if mode != "forward":
        raise ValueError(f"mode is {mode!r}; expected forward, the only order of Helios.")
    count = packing.count_sections(seconds, FPS, SECTION_FRAMES)
    sections = tuple(_section(number) for number in range(1, count + 1))
    return packing.SectionPlan(
        mode, LATENT_WINDOW_SIZE, sections, FPS, SECTION_FRAMES, encoded_latents=LATENT_WINDOW_SIZE
    )


def _section(number: int) -> packing.Section:
    return packing.Section(
        number=number,
        indices=packing.frame_indices("forward", LATENT_WINDOW_SIZE),
        decode_latents=LATENT_WINDOW_SIZE,
        total_frames=SECTION_FRAMES * number,
        video_index=number - 1,
        decode_start=LATENT_WINDOW_SIZE * (number - 1),
    )


def default_settings(folder: Path) -> dict[str, Any]:
    """Read from a model's folder which settings suit it.

    Distilled models take two steps at each size of their pyramid, whose smallest is a quarter, without
    classifier-free guidance. Their first section takes twice as many steps, as their authors recommend.
    """
    return settings_of(is_distilled=class_in(folder / _SCHEDULER) == DISTILLED)


def settings_of(*, is_distilled: bool) -> dict[str, Any]:
    shared = {"side": SIDE, "modes": ("forward",)}
    if is_distilled:
        pyramid = {"sizes": 3, "first_steps": 2}
        return {**shared, **pyramid, "multiple": 64, "steps": 6, "cfg": 1.0, "step_caches": ()}
    return {**shared, "multiple": 32, "steps": 50, "cfg": 5.0, "step_caches": STEP_CACHES}


def class_in(file: Path) -> str:
    try:
        config = read_json(file)
    except (OSError, ValueError):
        return ""
    return str(cast(dict[str, Any], config).get("_class_name", "")) if isinstance(config, dict) else ""


def remark(height: int, width: int, **video: object) -> str:
    """Warn of shapes in which users report jumps between sections (Helios' issues 2, 34 and 132)."""
    if height <= width and height * width <= 2 * SIDE**2:
        return ""
    return "Helios was trained lying, at about 640 × 384: upright and larger videos jump between sections."


def scheduler_fault(config: Mapping[str, Any]) -> str:
    if config.get("_class_name") == _BASE and config.get("stages", 3) != 1:
        return "it is that of Helios-Mid, which cannot be used; expected Helios-Base or -Distilled"
    return ""


_ATTENTION = {
    f"{wan_block}.{wan_layer}": f"{block}.{layer}"
    for wan_block, block in (("self_attn", "attn1"), ("cross_attn", "attn2"))
    for wan_layer, layer in (
        ("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"), ("norm_q", "norm_q"),
        ("norm_k", "norm_k"),
    )
}  # fmt: skip
_LAYER_NAMES = LayerNames(
    {
        "": "proj_out",
        "condition_embedder.": """
            time_embedder.linear_1 time_embedder.linear_2 time_proj text_embedder.linear_1
            text_embedder.linear_2""",
        "blocks.*.": """
            attn1.to_q attn1.to_k attn1.to_v attn1.to_out.0 attn2.to_q attn2.to_k attn2.to_v attn2.to_out.0
            ffn.net.0.proj ffn.net.2""",
    },
    # Wan's own names. ComfyUI's class for Helios (its pull request 12765) mixes them with diffusers' names.
    {
        ("blocks.*.", "blocks.*."): {
            **_ATTENTION, "norm3": "norm2", "ffn.0": "ffn.net.0.proj", "ffn.2": "ffn.net.2",
            "modulation": "scale_shift_table",
        },
        ("", "condition_embedder."): {
            "time_embedding.0": "time_embedder.linear_1", "time_embedding.2": "time_embedder.linear_2",
            "text_embedding.0": "text_embedder.linear_1", "text_embedding.2": "text_embedder.linear_2",
            "time_projection.1": "time_proj",
        },
        ("", ""): {"head.head": "proj_out", "head.modulation": "norm_out.scale_shift_table"},
    },
    skip_casting_pattern=r"condition_embedder|norm|patch_|^proj_out\.|(?:time|text)_embedding|time_projection|^head\.",
    lora_metadata_pattern="helios|wan", lora_models="Helios or Wan 2.1",
)  # fmt: skip
_NETWORKS = {
    "transformer": FamilyNetwork(
        "HeliosTransformer3DModel", "Helios", ("num_attention_heads", "attention_head_dim", "num_layers"),
        {
            "_class_name": "HeliosTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 13824,
            "in_channels": 16, "num_attention_heads": 40, "num_layers": 40, "out_channels": 16,
            "text_dim": 4096,
        },
        ParameterCounts(232_325_184, 14_050_918_400, fixed_bytes=4 * 29_184_000, rows=2_396_160),
        (ParameterCounts(80_384, 351_272_960, fixed_bytes=4 * 40_960, rows=59_904),) * 40,
        ("blocks",), "bfloat16",
        13824 * 5120,
        keep_in_fp32=(
            "time_embedder", "time_embedding", "scale_shift_table", "modulation", "norm1", "norm2", "norm3",
            "history_key_scale",
        ),
    ),
    "vae": FamilyNetwork(
        "AutoencoderKLWan", "Wan VAE", ("base_dim", "num_res_blocks"),
        {"_class_name": "AutoencoderKLWan", "base_dim": 96, "num_res_blocks": 2, "z_dim": 16},
        ParameterCounts(126_892_531), dtype="float32",
    ),
    "text_encoder": FamilyNetwork(
        "UMT5EncoderModel", "T5", ("d_model", "d_ff", "num_layers"),
        {
            "architectures": ["UMT5EncoderModel"], "d_ff": 10240, "d_kv": 64, "d_model": 4096,
            "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6,
            "model_type": "umt5", "num_heads": 64, "num_layers": 24, "pad_token_id": 0,
            "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
            "vocab_size": 256384,
        },
        ParameterCounts(5_680_910_336), (ParameterCounts(192_948_224),) * 24, ("encoder.block",), "bfloat16",
        keep_in_fp32_with_fp16=("wo", "ffn_down"),
    ),
}  # fmt: skip


def requirements(channels: int, spatial_compression: int, *transformers: str) -> tuple[tuple[Any, ...], ...]:
    return (
        *((name, "in_channels", f"{name} takes latents of %s channels", channels) for name in transformers),
        ("vae", "z_dim", "vae gives latents of %s channels", ("transformer", "out_channels")),
        ("vae", "scale_factor_spatial", "vae shrinks pictures by %s", spatial_compression),
        ("vae", "scale_factor_temporal", "vae shrinks time by %s", 4),
        ("text_encoder", "d_model", "text_encoder gives %s values per token", ("transformer", "text_dim")),
    )


_COMPONENTS = ("transformer", "vae", "text_encoder", "tokenizer", "scheduler")
# UMT5, its tokenizer and Wan's VAE are taken from the first.
_REPOSITORIES = {
    "Distilled": ("BestWishYsh/Helios-Distilled", "1999182614cb08d3bdcc46b9827504af2914b87b"),
    "Base": ("BestWishYsh/Helios-Base", "21cf91da9cae0270a9405000c2e798f83770b1dd"),
}


def _published(variant: str, file_pattern: str) -> PublishedModel:
    sources: dict[str, tuple[str, str, str]] = {}
    for component in _COMPONENTS:
        repository, revision = _REPOSITORIES[
            variant if component in ("transformer", "scheduler") else "Distilled"
        ]
        sources[component] = (repository, component, revision)
    is_distilled = variant == "Distilled"
    purpose = (
        "For a long landscape video in few steps."
        if is_distilled
        else "For a long landscape video, in many steps."
    )
    settings = {**settings_of(is_distilled=is_distilled), "purpose": purpose}
    name = f"helios-{variant.lower()}"
    return PublishedModel(name, f"Helios {variant}", variant, file_pattern, sources, settings)


HELIOS = Family(
    "helios", channels=16, spatial_compression=8, temporal_compression=4, fps=FPS,
    buckets=shapes,
    networks=_NETWORKS, components=_COMPONENTS, requirements=requirements(16, 8, "transformer"),
    layer_names=_LAYER_NAMES,
    signs=("\n.patch_mid.", "\n.patch_long."), resembles=("Wan",),
    published=(_published("Distilled", "distill"), _published("Base", "base")),
    small_decoder=SmallDecoder("safetensors/taew2_1.safetensors", "ec1a2be453a250aa406e912bb630c34463ba0b2f"),
    prompt_format=PromptFormat("{}", 0, MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS),
    tail_frames=TAIL_SECTIONS * SECTION_FRAMES, plan=plan, vae_precision="fp32",
    schedulers=(_BASE, DISTILLED), scheduler_fault=scheduler_fault, default_settings=default_settings,
    unsupported=("end_image", "pictures", "one_frame", "loop", *OF_CLIPS),
    ignored=("guidance", "vae_chunk", "vision_change"),
    remark=remark, licence="Its weights may be used under the Apache License 2.0.",
)  # fmt: skip
