"""The recognition of models by the names, shapes and types of their tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from diffusers_helper.models.formats.tensors import Tensor

KeyStyle = Literal["checkpoint", "diffusers", "transformers", "original", "llama.cpp", "lora", "unknown"]

# The names that only one model has, once the prefix of a whole checkpoint is cut off. All patterns of a row
# must be found in the names as lines; each name begins and ends with a line break there.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("LoRA", (r"\.lora_(?:A|B|down|up)\.|\nlora_(?:unet|te|transformer)",)),
    ("FramePack", (r"clean_x_embedder\.",)),
    ("HunyuanVideo", (r"txt_in\.individual_token_refiner\.|context_embedder\.token_refiner\.",)),
    ("Flux", (r"double_blocks\.0\.img_attn\.norm\.key_norm\.|\ntransformer_blocks\.0\.norm1_context\.",)),
    ("Wan", (r"\nblocks\.0\.self_attn\.q\.|\ncondition_embedder\.time_embedder\.",)),
    ("SD3", (r"\njoint_blocks\.0\.context_block\.",)),
    ("LTX", (r"\npatchify_proj\.|\nadaln_single\.emb\..*\blinear_1\b",)),
    ("SDXL", (r"\ninput_blocks\.7\.1\.transformer_blocks\.9\.|\nlabel_emb\.",)),
    ("SD", (r"\ninput_blocks\.1\.1\.transformer_blocks\.0\.|\ndown_blocks\.0\.attentions\.0\.",)),
    ("T5", (r"[\n.]encoder\.block\.0\.layer\.0\.SelfAttention\.|\nenc\.blk\.0\.attn_q\.",)),
    ("SigLIP", (r"[\n.]head\.probe\n", r"[\n.]encoder\.layers\.0\.self_attn\.")),
    ("CLIP", (r"[\n.]encoder\.layers\.0\.self_attn\.", r"[\n.]embeddings\.token_embedding\.")),
    ("Llama", (r"[\n.]layers\.0\.self_attn\.q_proj\.", r"[\n.]layers\.0\.mlp\.gate_proj\.")),
    ("Llama", (r"\nblk\.0\.attn_q\.", r"\nblk\.0\.ffn_gate\.")),
    (
        "Wan VAE",
        (r"\ndecoder\.(?:middle\.0\.residual\.0|mid_block\.resnets\.0\.norm1)\.gamma",),
    ),
    ("Hunyuan VAE", (r"\ndecoder\.conv_in\.conv\.", r"\npost_quant_conv\.")),
    ("TAESD", (r"\ntaesd_decoder\.1\.",)),
    ("VAE", (r"\ndecoder\.conv_in\.(?:conv\.)?",)),
)
_PREFIX = re.compile(
    r"\n(?:model\.diffusion_model\.|diffusion_model\.|first_stage_model\.|vae\.|model\.model\.|transformer\.)"
)
# A model is left out if one of these more specific ones is found, too.
_COVERED = {
    "HunyuanVideo": {"FramePack", "LoRA"}, "SD": {"SDXL", "LoRA"}, "VAE": {"Wan VAE", "Hunyuan VAE"},
    "Flux": {"HunyuanVideo", "FramePack", "LoRA"}, "FramePack": {"LoRA"}, "Wan": {"LoRA"}, "SDXL": {"LoRA"},
    "Llama": {"LoRA"}, "CLIP": {"LoRA"},
}  # fmt: skip
# The signs of the naming schemes; the first one that is found counts.
_STYLES: tuple[tuple[KeyStyle, str], ...] = (
    ("lora", r"\.lora_(?:A|B|down|up)\.|\nlora_"),
    ("checkpoint", r"\nmodel\.diffusion_model\.|\nfirst_stage_model\."),
    ("llama.cpp", r"\nblk\.|\nenc\.blk\."),
    ("diffusers", r"transformer_blocks\.|(?:down|up)_blocks\.|mid_block\."),
    ("transformers", r"layers\.\d+\.self_attn\."),
)
# The model that each part of FramePack must be.
PART_MODELS = {
    "transformer": "FramePack",
    "vae": "Hunyuan VAE",
    "text_encoder": "Llama",
    "text_encoder_2": "CLIP",
    "image_encoder": "SigLIP",
}


def _lines(names: Collection[str]) -> str:
    """Return the names as one text, because a search in it is much faster than one in each name."""
    return "\n" + "\n".join(names) + "\n"


def models_of(names: Collection[str]) -> list[str]:
    """Return the models to which the names belong."""
    lines = _PREFIX.sub("\n", _lines(names))
    found = [model for model, signs in _SIGNS if all(re.search(sign, lines) for sign in signs)]
    return [model for model in dict.fromkeys(found) if not _COVERED.get(model, set[str]()) & {*found}]


def variant_of(model: str, tensors: Mapping[str, Tensor], origin: str) -> str:
    """Return the variant of a model, or "" if nothing shows it.

    Args:
        model: The model, as `models_of` names it.
        tensors: Its tensors.
        origin: The names of file and folders and the file's metadata, in lower case.
    """
    plain = {_PREFIX.sub("\n", "\n" + name)[1:]: tensor for name, tensor in tensors.items()}
    if model == "FramePack":  # both have the same tensors, so only a name distinguishes them
        return "F1" if re.search(r"f1(?![0-9])", origin) else "I2V" if "i2v" in origin else ""
    if model == "HunyuanVideo":
        entry = plain.get("img_in.proj.weight") or plain.get("x_embedder.proj.weight")
        return "" if entry is None or len(entry.shape) < 2 else "I2V" if entry.shape[1] > 16 else "T2V"
    if model == "Flux":
        guided = any("guidance_in." in name or "guidance_embedder." in name for name in plain)
        return "dev" if guided else "schnell"
    if model == "Wan":
        takes_pictures = any(name.startswith(("img_emb.", "condition_embedder.image")) for name in plain)
        return "I2V" if takes_pictures else "T2V"
    return ""


def key_style_of(names: Collection[str]) -> KeyStyle:
    """Return the naming scheme of the tensors."""
    lines = _lines(names)
    for style, sign in _STYLES:
        if re.search(sign, lines):
            return style
    return "original" if names else "unknown"


def quantisation_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the kind of quantisation that types and names show, or "" for none."""
    kinds = set(re.findall(r"\.quant_state\.bitsandbytes__(\w+)\n", _lines(tensors)))
    if kinds:
        return f"bitsandbytes {' '.join(sorted(kinds))}"
    types = {tensor.dtype: 0 for tensor in tensors.values() if len(tensor.shape) > 1}
    for tensor in tensors.values():
        types[tensor.dtype] = types.get(tensor.dtype, 0) + tensor.num_bytes
    blocks = [name for name in types if name[:1].isupper()]
    if blocks:
        return f"gguf {max(blocks, key=lambda name: types[name])}"
    matrices = {tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1}
    if "int8" in matrices and any(name.endswith(".SCB") for name in tensors):
        return "bitsandbytes int8"
    scaled = any(
        name.endswith(("scaled_fp8", ".scale_weight", ".weight_scale", ".comfy_quant")) for name in tensors
    )
    for prefix, name in (("float8", "fp8"), ("int8", "int8"), ("float4", "fp4")):
        if any(kind.startswith(prefix) for kind in matrices):
            return f"scaled {name}" if scaled else name
    return ""
