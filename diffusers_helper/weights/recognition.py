"""The recognition of models by the names, shapes and types of their tensors, and the names that they have."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.registry import FAMILIES
from diffusers_helper.units import count_text
from diffusers_helper.weights.tensors import TensorInfo

KeyStyle = Literal[
    "checkpoint", "diffusers", "transformers", "original", "comfyui", "llama.cpp", "lora", "unknown"
]

# The texts that only the names of one model contain, without the prefix of a whole checkpoint. All texts of a
# row must be found in the names, which `_lines` has joined. One of the alternatives between "|" is enough.
# A dot stands before each part of a name, and a line break before the dot where a name begins.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "LoRA",
        (".lora_A.|.lora_B.|.lora_down.|.lora_up.|\n.lora_unet|\n.lora_te|\n.lora_transformer",),
    ),
    *((family.title, family.signs) for family in FAMILIES.values()),
    ("HunyuanVideo", ("txt_in.individual_token_refiner.|context_embedder.token_refiner.",)),
    ("Flux", ("double_blocks.0.img_attn.norm.key_norm.|\n.transformer_blocks.0.norm1_context.",)),
    ("SD3", ("\n.joint_blocks.0.context_block.",)),
    ("LTX", ("\n.patchify_proj.|\n.adaln_single.emb.timestep_embedder.linear_1.",)),
    ("SDXL", ("\n.input_blocks.7.1.transformer_blocks.9.|\n.label_emb.",)),
    ("SD", ("\n.input_blocks.1.1.transformer_blocks.0.|\n.down_blocks.0.attentions.0.",)),
    ("T5", (".encoder.block.0.layer.0.SelfAttention.|\n.enc.blk.0.attn_q.",)),
    ("SigLIP", (".head.probe\n", ".encoder.layers.0.self_attn.")),
    ("CLIP", (".encoder.layers.0.self_attn.", ".embeddings.token_embedding.")),
    ("Llama", (".layers.0.self_attn.q_proj.", ".layers.0.mlp.gate_proj.")),
    ("Llama", ("\n.blk.0.attn_q.", "\n.blk.0.ffn_gate.")),
    ("Wan VAE", ("\n.decoder.middle.0.residual.0.gamma|\n.decoder.mid_block.resnets.0.norm1.gamma",)),
    ("Hunyuan VAE", ("\n.decoder.conv_in.conv.", "\n.post_quant_conv.")),
    ("TAESD", ("\n.taesd_decoder.1.",)),
    ("VAE", ("\n.decoder.conv_in.",)),
)
_PREFIX = re.compile(
    r"\n\.(?:model\.diffusion_model|diffusion_model|first_stage_model|vae|model\.model|transformer)(?=\.)"
)
# A model is left out if one of these more specific models is found, too.
_COVERED = {
    "HunyuanVideo": {"LoRA"}, "SD": {"SDXL", "LoRA"}, "VAE": {"Wan VAE", "Hunyuan VAE"},
    "Flux": {"HunyuanVideo", "LoRA"}, "SDXL": {"LoRA"}, "Llama": {"LoRA"}, "CLIP": {"LoRA"},
    **{family.title: {"LoRA"} for family in FAMILIES.values()},
}  # fmt: skip
_RESEMBLED = {model: {family.title} for family in FAMILIES.values() for model in family.resembles}
# The patterns of the naming schemes, of which the first that is found counts. A pattern that begins with
# literal text is found many times faster than one that begins with a choice.
_STYLES: tuple[tuple[KeyStyle, tuple[str, ...]], ...] = (
    ("lora", (r"\.lora_(?:A|B|down|up)\.", r"\n\.lora_")),
    ("comfyui", (r"individual_token_refiner\.blocks\.\d+\.self_attn\.qkv\.",)),
    ("checkpoint", (r"\n\.model\.diffusion_model\.", r"\n\.first_stage_model\.")),
    ("llama.cpp", (r"\n\.blk\.", r"\n\.enc\.blk\.")),
    (
        "diffusers",
        (r"transformer_blocks\.", r"down_blocks\.", r"up_blocks\.", r"mid_block\.", r"\.blocks\.0\.attn1\."),
    ),
    ("transformers", (r"layers\.\d+\.self_attn\.",)),
)


def _lines(names: Iterable[str]) -> str:
    """Join the names, because a search in one text is much faster than one in each name."""
    return "\n." + "\n.".join(names) + "\n"


def models_of(names: Iterable[str]) -> list[str]:
    lines = _PREFIX.sub("\n", _lines(names))
    models = [
        model
        for model, signs in _SIGNS
        if all(any(text in lines for text in pattern.split("|")) for pattern in signs)
    ]
    covered = {model: _COVERED.get(model, set[str]()) | _RESEMBLED.get(model, set[str]()) for model in models}
    return [model for model in dict.fromkeys(models) if not covered[model] & {*models}]


def variant_of(model: str, tensors: Mapping[str, TensorInfo], origin: str) -> str:
    """Find a model's variant; "" if unknown. `origin` has names of files and metadata in lower case."""
    for family in FAMILIES.values():  # their models have the same tensors, so only a name distinguishes them
        if model == family.title:
            variants = (
                model.variant for model in reversed(family.published) if re.search(model.file_pattern, origin)
            )
            return next(variants, "")
    if model == "HunyuanVideo":
        entries = (".img_in.proj.weight", ".x_embedder.proj.weight")
        shape = next((tensor.shape for name, tensor in tensors.items() if f".{name}".endswith(entries)), ())
        if len(shape) < 2:
            return ""
        return "I2V" if shape[1] > 16 else "T2V"
    lines = _PREFIX.sub("\n", _lines(tensors))
    if model == "Flux":
        return "dev" if "guidance_in." in lines or "guidance_embedder." in lines else "schnell"
    return ""


def key_style_of(names: Collection[str]) -> KeyStyle:
    lines = _lines(names)
    for style, signs in _STYLES:
        if any(re.search(pattern, lines) for pattern in signs):
            return style
    return "original" if names else "unknown"


def quantisation_of(tensors: Mapping[str, TensorInfo], by_type: Mapping[str, int]) -> str:
    lines = _lines(tensors)
    bitsandbytes_kinds = set(re.findall(r"\.quant_state\.bitsandbytes__(\w{1,9})\n", lines))
    if bitsandbytes_kinds:
        return f"bitsandbytes {' '.join(sorted(bitsandbytes_kinds)[:3])}"
    blocks = [name for name in by_type if name[:1].isupper()]
    if blocks:
        return f"gguf {max(blocks, key=lambda name: by_type[name])}"
    matrices = {tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1}
    if "int8" in matrices and ".SCB\n" in lines:
        return "bitsandbytes int8"
    scales = ("scaled_fp8\n", ".scale_weight\n", ".weight_scale\n", ".comfy_quant\n")
    scaled = "scaled " if any(ending in lines for ending in scales) else ""
    for prefix, name in (("float8", "fp8"), ("int8", "int8"), ("float4", "fp4")):
        if any(dtype.startswith(prefix) for dtype in matrices):
            return scaled + name
    return ""


# What files hold beside the weights of a component: marks, and parts of larger models
_EXTRA = re.compile(
    r"(?:^|\.)(?:scaled_fp8|lm_head\.weight|logit_scale|logit_bias|text_projection\.weight|position_ids"
    r"|rotary_emb\.inv_freq|spiece_model|tekken_model|comfy_quant)$|\.(?:scale_input|input_scale)$"
    r"|^(?:output|rope_freqs)\.weight$"
)
_WITHOUT_BIAS = re.compile(r"\.attn\.norm_(?:added_)?[qk]$")
_MAX_BLOCKS = 1000  # of one kind; far more than any model has
_PRECISE = re.compile("|".join(family.layer_names.skip_casting_pattern for family in FAMILIES.values()))
SCALE = re.compile(r"\.(?:scale_weight|weight_scale|weight_scale_inv)$")


def is_extra(name: str) -> bool:
    return _EXTRA.search(name) is not None


def is_precise(name: str) -> bool:
    return _PRECISE.search(name) is not None


def expected_names(names: Collection[str]) -> set[str]:
    """Build the names, in diffusers' layout, of FramePack's transformer with as many blocks as are named."""
    expected = set[str]()
    for prefix, layers in FRAMEPACK.layer_names.layers.items():
        group, star, _ = prefix.partition("*")
        blocks = {name[len(group) :].partition(".")[0] for name in names if star and name.startswith(group)}
        for index in range(min(len(blocks) or 1, _MAX_BLOCKS)):
            for layer in layers.split():
                layer_name = prefix.replace("*", str(index)) + layer
                expected.add(f"{layer_name}.weight")
                if not _WITHOUT_BIAS.search(layer_name):
                    expected.add(f"{layer_name}.bias")
    return expected


def names_problem(names: Collection[str], expected: Collection[str]) -> str:
    """Say what is missing or unexpected, as the end of a sentence about the file; "" if nothing is."""
    missing, unexpected = sorted({*expected} - {*names}), sorted({*names} - {*expected})
    if missing:
        return (
            f"lacks {len(missing)} of {len(expected)} tensors, such as {missing[0]}; weights are missing, so "
            "download it again or use another file"
        )
    if unexpected:
        unexpected_text = count_text(len(unexpected), "tensor")
        return f"contains {unexpected_text} foreign to the network, such as {unexpected[0]}; use another file"
    return ""
