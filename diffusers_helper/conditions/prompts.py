"""The template around a prompt, as in HunyuanVideo's training, and the limit of a prompt's length."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from diffusers_helper.conditions.timeline import Timeline
from diffusers_helper.errors import InputError
from diffusers_helper.models.hub_cache import local_folder
from diffusers_helper.models.registry import ModelInfo, PartSource
from diffusers_helper.request import GenerationRequest
from diffusers_helper.strangers.confined import confined

# HunyuanVideo's template for videos. Its head takes 95 tokens, which are cut off after encoding.
TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)
HEAD_TOKENS = 95
MAX_TEXT_TOKENS = 256
# An upper bound of the tokens that the template adds after the prompt
_TAIL_TOKENS = 8


def texts_in(request: GenerationRequest) -> tuple[tuple[str, str], ...]:
    """Return each text that is encoded for a request's own sections, after the name of its setting.

    Raises:
        InputError: If a cue of the prompt ends before it begins.
    """
    prompts = tuple(("prompt", text) for text in Timeline.of(request.prompt).texts)
    return (*prompts, *(("negative", text) for text in request.texts[1:]))


def check_prompt(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse a text of the prompt, or a negative prompt that is used, if it is too long for the model.

    Nothing is checked if the model's tokenizer is not on this machine.

    Raises:
        InputError: If a text has more than 256 tokens, a cue of the prompt ends before it begins, or the
            tokenizer's file cannot be used.
    """
    without = _count("", info)
    for name, text in texts_in(request):
        if without is None or (all_of_it := _count(text, info)) is None:
            return
        count = all_of_it - without
        if count > MAX_TEXT_TOKENS:
            raise InputError(
                setting=name, found=f"has {count} tokens",
                expected=f"at most {MAX_TEXT_TOKENS}, the most that model {info.name} reads",
                remedy="Shorten it.",
            )  # fmt: skip


def encoded_tokens(text: str, info: ModelInfo) -> int:
    """Return the number of tokens that the transformer reads for a prompt in the template, without the head.

    The model's tokenizer counts them. If it is not on this machine, the result is one token per two bytes,
    which is more than a tokenizer makes of usual prompts.

    Raises:
        InputError: If the tokenizer's file cannot be used.
    """
    count = _count(text, info)
    if count is None:
        return min(MAX_TEXT_TOKENS, len(text.encode("utf-8")) // 2) + _TAIL_TOKENS
    return max(1, min(count, HEAD_TOKENS + MAX_TEXT_TOKENS) - HEAD_TOKENS)


def _count(text: str, info: ModelInfo) -> int | None:
    """Return the number of tokens of the whole template with a prompt, or None without a tokenizer."""
    file = _tokenizer_file(info.parts["tokenizer"])
    if file is None:
        return None
    facts = file.stat()
    return _counted(file, facts.st_mtime_ns, facts.st_size, text)


@confined
def count_tokens(file: Path, changed: int, size: int, text: str) -> int:
    """Return the number of tokens that a tokenizer's file makes of the whole template with a prompt.

    Args:
        changed: The time of its last change, in nanoseconds. It is read again if this or the size differs.

    Raises:
        InputError: If the file cannot be used.
    """
    return len(_tokenizer(file, changed, size).encode(TEMPLATE.format(text)).ids)


# While somebody changes other settings, the same prompts are asked for again and again.
_counted = lru_cache(maxsize=64)(count_tokens)


@lru_cache(maxsize=1)  # reading a large vocabulary takes a second
def _tokenizer(file: Path, changed: int, size: int) -> Any:
    from tokenizers import Tokenizer  # only a check of a prompt needs it

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exceptions
        raise InputError(
            f"{file} cannot be read ({error}); expected a tokenizer.", "Download the model's files again."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _tokenizer_file(source: PartSource) -> Path | None:
    folder = local_folder(source, "tokenizer.json")
    return folder and folder / "tokenizer.json"
