"""A complete Helios model of the smallest size, with every part's real class and random fp32 weights."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, HeliosDMDScheduler, HeliosScheduler, HeliosTransformer3DModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from tests.support.tiny_model import TEXT_DIM, WORDS, spread

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
VOCABULARY = (PAD, END, UNKNOWN, *WORDS)


def write_tiny_helios(folder: Path, *, is_distilled: bool = False) -> Path:
    """Write all five parts, as diffusers writes the pipeline, and return the folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(22)
        tiny_transformer().save_pretrained(folder / "transformer")
        tiny_vae().save_pretrained(folder / "vae")
        tiny_umt5().save_pretrained(folder / "text_encoder")
    tokenizer().save_pretrained(folder / "tokenizer")
    scheduler(is_distilled=is_distilled).save_pretrained(folder / "scheduler")
    return folder


def scheduler(*, is_distilled: bool) -> HeliosScheduler | HeliosDMDScheduler:
    """Return the scheduler of the published models."""
    shared = {"use_dynamic_shifting": True, "time_shift_type": "linear"}
    return HeliosDMDScheduler(stages=3, **shared) if is_distilled else HeliosScheduler(stages=1, **shared)


def tiny_transformer() -> HeliosTransformer3DModel:
    return HeliosTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, text_dim=TEXT_DIM, freq_dim=32, ffn_dim=48,
        num_layers=3, rope_dim=(4, 4, 4),
    ).eval()  # fmt: skip


def tiny_vae() -> AutoencoderKLWan:
    vae: Any = AutoencoderKLWan(base_dim=4, num_res_blocks=1).eval()
    return spread(vae, vae.decoder.conv_out, torch.randn(1, 16, 3, 8, 8))


def tiny_umt5() -> UMT5EncoderModel:
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(VOCABULARY), d_model=TEXT_DIM, d_kv=8, d_ff=2 * TEXT_DIM, num_layers=2,
            num_heads=2, initializer_factor=3.0,
        )
    ).eval()  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([PAD, END, UNKNOWN])
    words.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, VOCABULARY.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="right",
        model_max_length=512,
    )  # fmt: skip
