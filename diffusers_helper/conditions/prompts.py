"""The number of a prompt's tokens in the template of the model's family, and the limit of its length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from diffusers_helper.conditions.timeline import Timeline
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.files import sign_of
from diffusers_helper.lora_choice import choices_of
from diffusers_helper.models.registry import ModelInfo, PartSource
from diffusers_helper.models.sizes import config_here
from diffusers_helper.request import GenerationRequest
from diffusers_helper.strangers.confined import confined

# FramePack's
TEMPLATE, HEAD_TOKENS = FRAMEPACK.reading.template, FRAMEPACK.reading.head_tokens
MAX_TEXT_TOKENS = FRAMEPACK.reading.most_tokens
# An upper bound of the tokens that the template adds after the prompt
_TAIL_TOKENS = 8
_MOST_BYTES = 64 * 10**6  # of a tokenizer's file; those of the largest vocabularies have half as many
_TOKENIZERS = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
_FEWEST_LAYERS = {"text_encoder": 2, "text_encoder_2": 1}  # the last two layers of the first one are left out


def texts_in(request: GenerationRequest) -> tuple[tuple[str, str], ...]:
    """Return each text that is encoded for a request's own sections, after the name of its setting."""
    prompts = tuple(("prompt", text) for text in Timeline.of(request.prompt).texts)
    return (*prompts, *(("negative", text) for text in request.texts[1:]))


def check_prompt(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse a text of the prompt, or a negative prompt that is used, if the model cannot encode it.

    Nothing is checked if the model's tokenizer is not on this machine.

    Raises:
        InputError: If a text has more tokens than the model reads, a cue of the prompt ends before it begins,
            a LoRA that it names is not chosen, the tokenizer's file cannot be used, or a text encoder cannot
            encode any text.
    """
    chosen = [one for one in choices_of(request.lora) if one.weight]
    for name in Timeline.of(request.prompt).loras:
        if not any(one.is_called(name) for one in chosen):
            raise InputError(
                setting="prompt", found=f"changes the LoRA {name}",
                expected="one that is chosen with a weight other than 0",
                remedy="Choose it in `lora`, or correct the name.",
            )  # fmt: skip
    sources = {part: info.parts[part] for part in _TOKENIZERS if part in info.parts}
    check_encoders(info.name, info.parts, {part: config_here(part, one) for part, one in sources.items()})
    without, most = _count("", info), info.family.reading.most_tokens
    for name, text in texts_in(request):
        if without is None or (all_of_it := _count(text, info)) is None:
            return
        count = all_of_it - without
        if count > most:
            raise InputError(
                setting=name, found=f"has {count} tokens",
                expected=f"at most {most}, the most that model {info.name} reads",
                remedy="Shorten it.",
            )  # fmt: skip


def encoded_tokens(text: str, info: ModelInfo) -> int:
    """Return the number of tokens that the transformer reads for a prompt in the template, without the head.

    The model's tokenizer counts them. If it is not on this machine, the result is one token per two bytes,
    which is more than a tokenizer makes of usual prompts.

    Raises:
        InputError: If the tokenizer's file cannot be used.
    """
    reading = info.family.reading
    if reading.padded_tokens:
        return reading.padded_tokens
    count = _count(text, info)
    if count is None:
        return min(reading.most_tokens, len(text.encode("utf-8")) // 2) + _TAIL_TOKENS
    return max(1, min(count, reading.head_tokens + reading.most_tokens) - reading.head_tokens)


def _count(text: str, info: ModelInfo) -> int | None:
    """Return the number of tokens of the whole template with a prompt, or None without a tokenizer."""
    file = _file(info.parts["tokenizer"])
    return None if file is None else _counted(*sign_of(file), info.family.reading.template.format(text))


def check_encoders(
    name: str, parts: Mapping[str, PartSource], configs: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse text encoders that do not know all tokens of their tokenizers, or have too few layers.

    Args:
        name: The name of the model.
        parts: Its parts; nothing is checked of those that are not on this machine.

    Raises:
        InputError: If one does not, or a tokenizer's file cannot be used.
    """
    for encoder, tokenizer in _TOKENIZERS.items():
        file, found = _file(parts.get(tokenizer)), configs.get(encoder, {})
        layers, words, problem = found.get("num_hidden_layers"), found.get("vocab_size"), ""
        if isinstance(layers, int) and layers < (least := _FEWEST_LAYERS[encoder]):
            problem = f"has num_hidden_layers {layers}; expected at least {least}."
        elif isinstance(words, int) and file and (largest := _largest(*sign_of(file))) >= words:
            problem = (
                f"knows {words:,} tokens (vocab_size), but its tokenizer gives token {largest:,}; expected "
                f"at least {largest + 1:,}, as in an encoder and a tokenizer of one model."
            )
        if problem:
            remedy = f"Use a {encoder} and a {tokenizer} that were made for each other."
            raise InputError(f"The {encoder} of model {name} {problem}", remedy, setting="model")


@confined
def largest_token(file: Path, changed: int, size: int) -> int:
    """Return the largest token that a tokenizer makes of the template with any prompt.

    Further special tokens, which no text contains, are left out; some conversions of encoders lack them.
    The arguments and errors are those of `count_tokens`.
    """
    tokenizer = _tokenizer(file, changed, size)
    plain = tokenizer.get_vocab(with_added_tokens=False).values()
    return max((*plain, *tokenizer.encode(TEMPLATE).ids), default=0)


@confined
def count_tokens(file: Path, changed: int, size: int, text: str) -> int:
    """Return the number of tokens that a tokenizer's file makes of a text.

    Args:
        changed: The time of its last change, in nanoseconds. It is read again if this or the size differs.
        text: The whole template with a prompt.

    Raises:
        InputError: If the file cannot be used.
    """
    return len(_tokenizer(file, changed, size).encode(text).ids)


# While somebody changes other settings, the same prompts are asked for again and again.
_counted, _largest = lru_cache(maxsize=64)(count_tokens), lru_cache(maxsize=8)(largest_token)


@lru_cache(maxsize=1)  # reading a large vocabulary takes a second
def _tokenizer(file: Path, changed: int, size: int) -> Any:
    from tokenizers import Tokenizer  # only a check of a prompt needs it

    if size > _MOST_BYTES:
        raise InputError(
            f"{file} has {size / 1e6:,.0f} MB; expected a tokenizer of at most {_MOST_BYTES // 10**6}.",
            "Download the model's files again.",
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exceptions
        raise InputError(
            f"{file} cannot be read ({error}); expected a tokenizer.", "Download the model's files again."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _file(source: PartSource | None) -> Path | None:
    file = source and source.folder / "tokenizer.json"
    return file if file and file.is_file() else None
