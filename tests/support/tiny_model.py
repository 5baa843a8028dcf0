"""A complete model folder of the smallest size, with every part's real class and random fp32 weights.

The model is untrained, but its outputs are finite, vary over the picture, and depend on the prompt.
"""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanVideo, HunyuanVideoFramepackTransformer3DModel
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    SiglipVisionModel,
)

TEXT_DIM = 16
SIDE, MULTIPLE = 64, 16
WORDS = ("the", "a", "red", "blue", "green", "ball", "square", "moves", "left", "right", "slowly", "quickly")
PAD, BEGIN, END, UNKNOWN = "<|pad|>", "<|begin|>", "<|eot_id|>", "<|unknown|>"
SPECIAL = (PAD, BEGIN, END, UNKNOWN, "<|start_header_id|>", "<|end_header_id|>")
VOCABULARY = (*SPECIAL, *WORDS)
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_tiny_model(folder: Path) -> None:
    """Write all eight parts and longtake.json, with the same bytes each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        tiny_transformer().save_pretrained(folder / "transformer")
        tiny_vae().save_pretrained(folder / "vae")
        tiny_llama().save_pretrained(folder / "text_encoder")
        tiny_clip().save_pretrained(folder / "text_encoder_2")
        tiny_siglip().save_pretrained(folder / "image_encoder")
    llama_tokenizer().save_pretrained(folder / "tokenizer")
    clip_tokenizer().save_pretrained(folder / "tokenizer_2")
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder / "feature_extractor")
    facts = {
        "title": "Tiny test model", "modes": ["inverted", "forward"], "side": SIDE, "multiple": MULTIPLE,
        "vocabulary": {"words": list(WORDS)}, "examples": ["the red ball moves right"],
    }  # fmt: skip
    (folder / "longtake.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def tiny_transformer(**changes: Any) -> HunyuanVideoFramepackTransformer3DModel:
    config = {
        "num_attention_heads": 2, "attention_head_dim": 16, "rope_axes_dim": (4, 6, 6), "num_layers": 1,
        "num_single_layers": 1, "num_refiner_layers": 1, "text_embed_dim": TEXT_DIM,
        "pooled_projection_dim": TEXT_DIM, "image_proj_dim": TEXT_DIM, "has_image_proj": True,
        "has_clean_x_embedder": True,
    }  # fmt: skip
    return HunyuanVideoFramepackTransformer3DModel(**config | changes).eval()


def tiny_vae() -> AutoencoderKLHunyuanVideo:
    vae = AutoencoderKLHunyuanVideo(
        block_out_channels=(2, 4, 4, 4), layers_per_block=1, norm_num_groups=2
    ).eval()
    return spread(vae, vae.decoder.conv_out.conv, torch.randn(1, 16, 3, 8, 8))


def spread(vae: Any, last: Any, latents: Tensor) -> Any:
    """Spread what the latents decode to, which is nearly grey, over most of the range from -1 to 1."""
    with torch.no_grad():
        frames = vae.decode(latents).sample
        last.weight.mul_(0.4 / frames.std())
        last.bias.sub_(frames.mean((0, 2, 3, 4))).mul_(0.4 / frames.std())
    return vae


def tiny_llama(**changes: Any) -> LlamaModel:
    config = {
        "vocab_size": len(VOCABULARY), "hidden_size": TEXT_DIM, "intermediate_size": 2 * TEXT_DIM,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "initializer_range": 1.0, **_TOKENS,
    }  # fmt: skip
    return LlamaModel(LlamaConfig(**config | changes)).eval()


def tiny_clip(**changes: Any) -> CLIPTextModel:
    config = {
        "vocab_size": len(VOCABULARY), "hidden_size": TEXT_DIM, "intermediate_size": 2 * TEXT_DIM,
        "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": TEXT_DIM,
        "initializer_factor": 10.0, **_TOKENS,
    }  # fmt: skip
    return CLIPTextModel(CLIPTextConfig(**config | changes)).eval()


def tiny_siglip(**changes: Any) -> SiglipVisionModel:
    config = {
        "hidden_size": TEXT_DIM, "intermediate_size": 2 * TEXT_DIM, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 16,
    }  # fmt: skip
    return SiglipVisionModel(SiglipVisionConfig(**config | changes)).eval()


def _word_level() -> Tokenizer:
    words = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _wrapped(tokenizer: Tokenizer, length: int, single: str) -> PreTrainedTokenizerFast:
    numbers = [(token, VOCABULARY.index(token)) for token in (BEGIN, END)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=numbers)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN,
        padding_side="right", model_max_length=length,
    )  # fmt: skip


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer for which the template's head has as many tokens as the pipeline cuts off."""
    tokenizer = _word_level()
    crop = DEFAULT_PROMPT_TEMPLATE["crop_start"]
    head = tokenizer.encode(DEFAULT_PROMPT_TEMPLATE["template"].split("{}")[0]).ids
    assert len(head) < crop
    return _wrapped(tokenizer, crop + 256, " ".join([BEGIN] * (crop - len(head)) + ["$A"]))


def clip_tokenizer() -> PreTrainedTokenizerFast:
    return _wrapped(_word_level(), 77, f"{BEGIN} $A {END}")
