"""The recognition of models by the names, shapes and types of their tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from diffusers_helper.models.formats.tensors import Tensor

KeyStyle = Literal["checkpoint", "diffusers", "transformers", "original", "llama.cpp", "lora", "unknown"]

# The names that only one model has, once the prefix of a whole checkpoint is cut off. All patterns of a row
# must be found.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("LoRA", (r"\.lora_(?:A|B|down|up)\.|^lora_(?:unet|te|transformer)",)),
    ("FramePack", (r"clean_x_embedder\.",)),
    ("HunyuanVideo", (r"txt_in\.individual_token_refiner\.|context_embedder\.token_refiner\.",)),
    ("Flux", (r"double_blocks\.0\.img_attn\.norm\.key_norm\.|^transformer_blocks\.0\.norm1_context\.",)),
    ("Wan", (r"^blocks\.0\.self_attn\.q\.|^condition_embedder\.time_embedder\.",)),
    ("SD3", (r"^joint_blocks\.0\.context_block\.",)),
    ("LTX", (r"^patchify_proj\.|^adaln_single\.emb\..*\blinear_1\b",)),
    ("SDXL", (r"^input_blocks\.7\.1\.transformer_blocks\.9\.|^label_emb\.",)),
    ("SD", (r"^input_blocks\.1\.1\.transformer_blocks\.0\.|^down_blocks\.0\.attentions\.0\.",)),
    ("T5", (r"(?:^|\.)encoder\.block\.0\.layer\.0\.SelfAttention\.|^enc\.blk\.0\.attn_q\.",)),
    ("SigLIP", (r"(?:^|\.)head\.probe$", r"(?:^|\.)encoder\.layers\.0\.self_attn\.")),
    ("CLIP", (r"(?:^|\.)encoder\.layers\.0\.self_attn\.", r"(?:^|\.)embeddings\.token_embedding\.")),
    ("Llama", (r"(?:^|\.)layers\.0\.self_attn\.q_proj\.", r"(?:^|\.)layers\.0\.mlp\.gate_proj\.")),
    ("Llama", (r"^blk\.0\.attn_q\.", r"^blk\.0\.ffn_gate\.")),
    ("Wan VAE", (r"^decoder\.middle\.0\.residual\.0\.gamma|^decoder\.mid_block\.resnets\.0\.norm1\.gamma",)),
    ("Hunyuan VAE", (r"^decoder\.conv_in\.conv\.", r"^post_quant_conv\.")),
    ("TAESD", (r"^taesd_decoder\.1\.",)),
    ("VAE", (r"^decoder\.conv_in\.(?:conv\.)?",)),
)
_PREFIX = re.compile(
    r"(?m)^(?:model\.diffusion_model\.|diffusion_model\.|first_stage_model\.|vae\.|model\.model\.|transformer\.)"
)
# A model is left out if one of these more specific ones is found, too.
_COVERED = {
    "HunyuanVideo": {"FramePack", "LoRA"}, "SD": {"SDXL", "LoRA"}, "VAE": {"Wan VAE", "Hunyuan VAE"},
    "Flux": {"HunyuanVideo", "FramePack", "LoRA"}, "FramePack": {"LoRA"}, "Wan": {"LoRA"}, "SDXL": {"LoRA"},
    "Llama": {"LoRA"}, "CLIP": {"LoRA"},
}  # fmt: skip
# The model that each part of FramePack must be.
PART_MODELS = {
    "transformer": "FramePack",
    "vae": "Hunyuan VAE",
    "text_encoder": "Llama",
    "text_encoder_2": "CLIP",
    "image_encoder": "SigLIP",
}


def models_of(names: Collection[str]) -> list[str]:
    """Return the models to which the names belong."""
    # The names are joined as lines, because one search per sign is much faster than one per name.
    plain = _PREFIX.sub("", "\n".join(names))
    found = [model for model, signs in _SIGNS if all(re.search(sign, plain, re.MULTILINE) for sign in signs)]
    return [model for model in dict.fromkeys(found) if not _COVERED.get(model, set[str]()) & {*found}]


def variant_of(model: str, tensors: Mapping[str, Tensor], origin: str) -> str:
    """Return the variant of a model, or "" if nothing shows it.

    Args:
        model: The model, as `models_of` names it.
        tensors: Its tensors.
        origin: The names of file and folders and the file's metadata, in lower case.
    """
    plain = {_PREFIX.sub("", name): tensor for name, tensor in tensors.items()}
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
    if any(re.search(r"\.lora_(?:A|B|down|up)\.|^lora_", name) for name in names):
        return "lora"
    if any(name.startswith(("model.diffusion_model.", "first_stage_model.")) for name in names):
        return "checkpoint"
    if any(name.startswith(("blk.", "enc.blk.")) for name in names):
        return "llama.cpp"
    signs = ("transformer_blocks.", "down_blocks.", "up_blocks.", "mid_block.")
    if any(sign in name for name in names for sign in signs):
        return "diffusers"
    if any(re.search(r"layers\.\d+\.self_attn\.", name) for name in names):
        return "transformers"
    return "original" if names else "unknown"


def quantisation_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the kind of quantisation that types and names show, or "" for none."""
    marked = (re.search(r"\.quant_state\.bitsandbytes__(\w+)$", name) for name in tensors)
    kinds = {match[1] for match in marked if match}
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
