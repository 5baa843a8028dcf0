"""Toy-size models in the layout of the published ones, in a hub cache with sharded fp16 and bf16 files."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import SiglipImageProcessorPil

from diffusers_helper.conditions.prompts import HEAD_TOKENS, TEMPLATE
from diffusers_helper.models.registry import ModelInfo
from tests.support.tiny_model import tiny_clip, tiny_llama, tiny_siglip, tiny_transformer, tiny_vae

BEGIN = "<|begin_of_text|>"
SPECIAL = (BEGIN, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>")
CLIP_SPECIAL = ("<|startoftext|>", "<|endoftext|>")


def part_folder(cache: Path, info: ModelInfo, part: str) -> Path:
    """Return the folder in which huggingface_hub stores a part: a repository's snapshot at its revision."""
    source = info.components[part]
    repository = "models--" + source.location.replace("/", "--")
    return cache / repository / "snapshots" / str(source.revision) / source.subfolder


def write_published(cache: Path, info: ModelInfo) -> None:
    """Fill a hub cache like a download of the model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(21)
        llama_words = _write_llama_tokenizer(part_folder(cache, info, "tokenizer"))
        clip_words = _write_clip_tokenizer(part_folder(cache, info, "tokenizer_2"))
        transformer = tiny_transformer().to(torch.bfloat16)
        transformer.save_pretrained(part_folder(cache, info, "transformer"), max_shard_size="200KB")
        tiny_vae().half().save_pretrained(part_folder(cache, info, "vae"))
        llama = tiny_llama(vocab_size=llama_words, pad_token_id=None).half()
        llama.save_pretrained(part_folder(cache, info, "text_encoder"), max_shard_size="30KB")
        end = {"eos_token_id": clip_words - 1, "pad_token_id": clip_words - 1}
        clip = tiny_clip(vocab_size=clip_words, bos_token_id=clip_words - 2, **end).half()
        clip.save_pretrained(part_folder(cache, info, "text_encoder_2"))
        tiny_siglip().half().save_pretrained(part_folder(cache, info, "image_encoder"))
    processor = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    processor.save_pretrained(part_folder(cache, info, "feature_extractor"))


def _write_llama_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE under the class name of the real one, which would load it as another kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    text = TEMPLATE
    for special in SPECIAL:
        text = text.replace(special, "\n")
    tokenizer.train_from_iterator([text] * 3, trainer)
    begin = tokenizer.token_to_id(BEGIN)
    missing = HEAD_TOKENS - len(tokenizer.encode(TEMPLATE.split("{}")[0]).ids)
    assert missing > 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([BEGIN] * missing + ["$A"]), special_tokens=[(BEGIN, begin)]
    )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "LlamaTokenizerFast", "bos_token": BEGIN, "eos_token": "<|end_of_text|>",
        "pad_token": "<|pad|>", "model_max_length": 256, "padding_side": "right",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tokenizer.get_vocab_size()


def _write_clip_tokenizer(folder: Path) -> int:
    """Write the two files of the old format, without tokenizer.json."""
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), *CLIP_SPECIAL]
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    config = {
        "tokenizer_class": "CLIPTokenizer", "bos_token": CLIP_SPECIAL[0], "eos_token": CLIP_SPECIAL[1],
        "pad_token": CLIP_SPECIAL[1], "unk_token": CLIP_SPECIAL[1], "model_max_length": 77,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return len(words)
