"""Wan 2.2 without torch: its shapes, its plan of sections, its networks, and its published models.

It was trained on single clips. A longer video is a chain of them: each clip begins with the last frame of the
one before it, or with its last 4 m + 1, which are left out of it then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diffusers_helper.families import packing
from diffusers_helper.families.family import (
    LORA,
    Family,
    FamilyNetwork,
    LayerNames,
    ParameterCounts,
    PromptFormat,
    PublishedModel,
    SmallDecoder,
)
from diffusers_helper.families.helios import (
    HELIOS,
    MAX_PROMPT_TOKENS,
    STEP_CACHES,
    class_in,
    requirements,
    shapes,
)

_MIN_CLIP_FRAMES = 5
# Of the published schedulers; and the noise level from which on the first of A14B's transformers samples
_SHIFT, _BOUNDARY = 5.0, 0.9
# The side of a square of the area of 832x480 pixels
_SIDE = 632
# The absolute times at which FastWan was distilled (DMD). No shift of a scheduler gives them.
_FAST_TIMES = (1000, 757, 522)
_FAST_PIPELINE = "WanDMDPipeline"
_NEGATIVE = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走"
)  # fmt: skip


def _plan(
    seconds: float, mode: packing.Mode, *, has_picture: bool = True, clip_frames: int = 0,
    carried_frames: int = 1, fps: int, own_frames: int, encodes_clips: bool = False,
) -> packing.SectionPlan:  # fmt: skip
    """Plan a video of about `seconds`, or raise ValueError for a wrong length or an order besides forward.

    A clip has 4 n + 1 frames, at most `own_frames`, with which the model was trained. The first one is
    shorter by those that the others repeat beyond one, so that all sections add the same number.
    """
    if mode != "forward":
        raise ValueError(f"mode is {mode!r}; expected forward, the only order of Wan.")
    num_latents = (min(max(clip_frames or own_frames, _MIN_CLIP_FRAMES), own_frames) - 1) // 4 + 1
    num_repeated = min((carried_frames - 1) // 4, num_latents - 2)
    section_frames = packing.frames_of(num_latents - num_repeated) - 1
    count = packing.count_sections(seconds, fps, section_frames)
    sections = tuple(_section(number, num_latents, num_repeated) for number in range(1, count + 1))
    encoded_latents = num_latents if encodes_clips else num_repeated + 1
    return packing.SectionPlan(mode, num_latents, sections, fps, section_frames, encoded_latents)


def _section(number: int, num_latents: int, num_repeated: int) -> packing.Section:
    is_first = number == 1
    size = num_latents - num_repeated * is_first
    return packing.Section(
        number=number,
        indices=packing.FrameIndices((), tuple(range(size)), (), (), ()),
        decode_latents=size,
        total_frames=4 * (num_latents - num_repeated - 1) * number + 1,
        video_index=number - 1,
        decode_start=0 if is_first else num_latents * (number - 1) - num_repeated,
        overlap_frames=0 if is_first else packing.frames_of(num_repeated + 1),
    )


def default_settings(folder: Path) -> dict[str, Any]:
    return settings_of(is_fast=class_in(folder / "model_index.json") == _FAST_PIPELINE)


def settings_of(*, is_fast: bool) -> dict[str, Any]:
    shared = {"side": _SIDE, "multiple": 32, "modes": ("forward",), "weight_dtype": "bf16"}
    if is_fast:
        return {**shared, "steps": len(_FAST_TIMES), "cfg": 1.0, "times": _FAST_TIMES, "step_caches": ()}
    guided = {"negative": _NEGATIVE, "step_caches": STEP_CACHES, "file_dtype": "float32"}
    return {**shared, **guided, "steps": 50, "cfg": 5.0}


def high_steps(steps: int, shift: float) -> int:
    """Count the steps of a UniPC scheduler, with its shift for 0, that are at high noise."""
    ratio = shift or _SHIFT
    levels = (1 - 0.999 * step / steps for step in range(steps))
    return sum(ratio * level / (1 + (ratio - 1) * level) >= _BOUNDARY for level in levels)


def remark(height: int, width: int, *, has_picture: bool, sections: int, times: Sequence[int]) -> str:
    if has_picture and times:
        return (
            "This model was made for words alone: pictures were not tried. Wan 2.2 5B was trained for them."
        )
    return "Each clip knows only the end of the one before it." if sections > 1 else ""


def scheduler_fault(config: Mapping[str, Any]) -> str:
    if not config.get("use_flow_sigmas") or config.get("prediction_type") != "flow_prediction":
        return "it does not predict a flow; expected the scheduler of Wan 2.2"
    return ""


# Both descend from Wan 2.1, and differ in the table before the last layer.
_LAYER_NAMES = LayerNames(
    HELIOS.layer_names.layers,
    {
        **HELIOS.layer_names.other_names,
        ("", ""): {"head.head": "proj_out", "head.modulation": "scale_shift_table"},
    },
    skip_casting_pattern=HELIOS.layer_names.skip_casting_pattern,
    lora_metadata_pattern="wan", lora_models="Wan 2.2 5B",
)  # fmt: skip
# Those of the 5B's VAE, by channel
_MEAN = """
    -0.2289 -0.0052 -0.1323 -0.2339 -0.2799 0.0174 0.1838 0.1557 -0.1382 0.0542 0.2813 0.0891 0.1570 -0.0098
    0.0375 -0.1825 -0.2246 -0.1207 -0.0698 0.5109 0.2665 -0.2108 -0.2158 0.2502 -0.2055 -0.0322 0.1109 0.1567
    -0.0729 0.0899 -0.2799 -0.1230 -0.0313 -0.1649 0.0117 0.0723 -0.2839 -0.2083 -0.0520 0.3748 0.0152 0.1957
    0.1433 -0.2944 0.3573 -0.0548 -0.1681 -0.0667"""
_STD = """
    0.4765 1.0364 0.4514 1.1677 0.5313 0.4990 0.4818 0.5013 0.8158 1.0344 0.5894 1.0901 0.6885 0.6165 0.8454
    0.4978 0.5759 0.3523 0.7135 0.6804 0.5833 1.4146 0.8986 0.5659 0.7069 0.5338 0.4889 0.4917 0.4069 0.4999
    0.6866 0.4093 0.5709 0.6065 0.6415 0.4944 0.5726 1.2042 0.5458 1.6887 0.3971 1.0600 0.3943 0.5537 0.5444
    0.4089 0.7468 0.7744"""
_NETWORKS = {
    "transformer": FamilyNetwork(
        "WanTransformer3DModel", "Wan", ("num_attention_heads", "attention_head_dim", "num_layers"),
        {
            "_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 14336,
            "in_channels": 48, "num_attention_heads": 24, "num_layers": 30, "out_channels": 48,
            "text_dim": 4096,
        },
        ParameterCounts(81_478_848, 4_907_335_680, fixed_bytes=4 * 10_973_184, rows=1_259_520),
        (ParameterCounts(54_272, 163_577_856, fixed_bytes=4 * 24_576, rows=41_984),) * 30,
        ("blocks",), "bfloat16", 14336 * 3072,
        keep_in_fp32=(
            "time_embedder", "time_embedding", "scale_shift_table", "modulation", "norm1", "norm2", "norm3",
        ),
    ),
    "vae": FamilyNetwork(
        "AutoencoderKLWan", "Wan VAE", ("base_dim", "num_res_blocks"),
        {
            "_class_name": "AutoencoderKLWan", "base_dim": 160, "decoder_base_dim": 256, "in_channels": 12,
            "is_residual": True, "latents_mean": [*map(float, _MEAN.split())],
            "latents_std": [*map(float, _STD.split())], "num_res_blocks": 2, "out_channels": 12,
            "patch_size": 2, "scale_factor_spatial": 16, "z_dim": 48,
        },
        ParameterCounts(704_688_668), dtype="float32",
    ),
    "text_encoder": HELIOS.networks["text_encoder"],
}  # fmt: skip
_EXPERT = replace(
    _NETWORKS["transformer"],
    config={
        "_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 13824,
        "in_channels": 36, "num_attention_heads": 40, "num_layers": 40, "out_channels": 16, "text_dim": 4096,
    },
    total=ParameterCounts(208_798_784, 14_050_918_400, fixed_bytes=4 * 29_184_000, rows=2_396_160),
    blocks=HELIOS.networks["transformer"].blocks, largest_layer=13824 * 5120,
)  # fmt: skip
# The revisions that other public programs pin
_BASE = ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "b8fff7315c768468a5333511427288870b2e9635")
_FAST = ("FastVideo/FastWan2.2-TI2V-5B-FullAttn-Diffusers", "3e187042a324f6f5fb68fd22110a78725253de8f")


def _published(name: str, title: str, variant: str, file_pattern: str) -> PublishedModel:
    is_fast = variant == "5B Fast"
    sources = {
        **{component: (_BASE[0], component, _BASE[1]) for component in ("vae", "scheduler")},
        # The same encoder as in Wan's own repository, which may be here already
        **{component: HELIOS.published[0].sources[component] for component in ("text_encoder", "tokenizer")},
    }
    repository, revision = _FAST if is_fast else _BASE
    purpose = "For five quick seconds from words." if is_fast else "For five seconds from words or a picture."
    return PublishedModel(
        name, title, variant, file_pattern,
        {"transformer": (repository, "transformer", revision), **sources},
        {**settings_of(is_fast=is_fast), "purpose": purpose},
    )  # fmt: skip


_SMALL_DECODER = SmallDecoder(
    "safetensors/taew2_2.safetensors", "9d0ef19504c0b918eb6a8efea1ed8596cf666400", 22_848_048
)
WAN = Family(
    "wan", channels=48, spatial_compression=16, temporal_compression=4, fps=24, buckets=shapes,
    networks=_NETWORKS, components=HELIOS.components, requirements=requirements(48, 16, "transformer"),
    layer_names=_LAYER_NAMES,
    signs=("\n.blocks.0.self_attn.q.|\n.condition_embedder.time_embedder.",), resembles=(),
    published=(
        _published("wan-5b", "Wan 2.2 5B", "5B", "5b"),
        _published("wan-5b-fast", "Wan 2.2 5B Fast", "5B Fast", "fast"),
    ),
    small_decoder=_SMALL_DECODER,
    prompt_format=PromptFormat("{}", 0, MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS),
    tail_frames=1, plan=partial(_plan, fps=24, own_frames=121), is_chain=True, vae_tile=1024,
    schedulers=("UniPCMultistepScheduler",), scheduler_fault=scheduler_fault,
    default_settings=default_settings,
    unsupported=("end_image", "pictures", "one_frame", "loop"),
    ignored=("guidance", "vae_chunk", "vision_change"),
    remark=remark, licence="Its weights may be used under the Apache License 2.0.",
)  # fmt: skip
_OF_A14B = ("transformer", "transformer_2", "scheduler")
_A14B = ("Wan-AI/Wan2.2-I2V-A14B-Diffusers", "596658fd9ca6b7b71d5057529bbf319ecbc61d74")


def _a14b_settings(folder: Path | None = None) -> dict[str, Any]:
    return {**settings_of(is_fast=False), "steps": 40, "cfg": 3.5, "step_caches": ()}


# A LoRA of rank 64 for each transformer, in the revision that public programs pin
_LIGHTNING = (
    "lightx2v/Wan2.2-Lightning", "Wan2.2-I2V-A14B-4steps-lora-rank64-Seko-V1",
    "18bccf8884ec0a078eed79785eb4ef13ea16ce1e",
)  # fmt: skip
_A14B_SOURCES = {
    **HELIOS.published[0].sources, **{name: (_A14B[0], name, _A14B[1]) for name in _OF_A14B},
}  # fmt: skip
# Two transformers, of which one samples at high noise and the other one goes on at low noise
WAN_A14B = replace(
    WAN, name="wan-a14b", channels=16, spatial_compression=8, fps=16,
    networks={
        "transformer": _EXPERT, "transformer_2": _EXPERT,
        **{name: HELIOS.networks[name] for name in ("vae", "text_encoder")},
    },
    components=("transformer", "transformer_2", *HELIOS.components[1:]),
    requirements=requirements(36, 8, "transformer", "transformer_2"),
    published=(
        PublishedModel(
            "wan-a14b", "Wan 2.2 A14B", "A14B", "a14b", _A14B_SOURCES,
            {**_a14b_settings(), "purpose": "For the finest five seconds from a picture, with time."},
        ),
        PublishedModel(  # whose own files are LoRAs, so no name of a file leads to it
            "wan-a14b-fast", "Wan 2.2 A14B Fast", "A14B Fast", "(?!)", {**_A14B_SOURCES, LORA: _LIGHTNING},
            {
                **_a14b_settings(), "steps": 4, "cfg": 1.0,
                "purpose": "For five fine seconds from a picture, in four steps.",
            },
        ),
    ),
    small_decoder=HELIOS.small_decoder, plan=partial(_plan, fps=16, own_frames=81, encodes_clips=True),
    needs_picture=True, high_steps=high_steps,
    default_settings=_a14b_settings, unsupported=("pictures", "one_frame", "loop"),
)  # fmt: skip
