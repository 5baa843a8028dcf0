"""The number of a prompt's tokens in the template of the model's family, and the limit of its length."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from diffusers_helper.conditions.timeline import Timeline
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.files import file_signature
from diffusers_helper.lora_choice import choices_of
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.request import GenerationRequest
from diffusers_helper.untrusted.confined import confined

# FramePack's
TEMPLATE = FRAMEPACK.prompt_format.template
HEAD_TOKENS = FRAMEPACK.prompt_format.head_tokens
MAX_PROMPT_TOKENS = FRAMEPACK.prompt_format.max_tokens
# An upper bound of the tokens that the template adds after the prompt
_TAIL_TOKENS = 8
_MAX_FILE_BYTES = 64 * 10**6  # of a tokenizer's file; those of the largest vocabularies have half as many


def named_prompts(request: GenerationRequest) -> tuple[tuple[str, str], ...]:
    prompts = tuple(("prompt", text) for text in Timeline.of(request.prompt).prompts)
    return (*prompts, *(("negative", text) for text in request.prompts[1:]))


def check_prompt(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse texts that the model cannot encode, if its tokenizer is on this machine."""
    choices = [choice for choice in choices_of(request.lora) if choice.weight]
    for name in Timeline.of(request.prompt).loras:
        if not any(choice.is_called(name) for choice in choices):
            raise InputError(
                setting="prompt", problem=f"changes the LoRA {name}",
                expected="one that is chosen with a weight other than 0",
                remedy="Choose it in `lora`, or correct the name.",
            )  # fmt: skip
    template_tokens = _count_template_tokens("", info)
    max_tokens = info.family.prompt_format.max_tokens
    for name, prompt in named_prompts(request):
        if template_tokens is None or (total := _count_template_tokens(prompt, info)) is None:
            return
        num_tokens = total - template_tokens
        if num_tokens > max_tokens:
            raise InputError(
                setting=name, problem=f"has {num_tokens} tokens",
                expected=f"at most {max_tokens}, the most that model {info.name} reads",
                remedy="Shorten it.",
            )  # fmt: skip


def encoded_tokens(text: str, info: ModelInfo) -> int:
    """Count the tokens of a prompt in the template that the transformer reads, without the head.

    Without a tokenizer on this machine, that is one token per two bytes, which is more than usual prompts
    have.
    """
    prompt_format = info.family.prompt_format
    if prompt_format.padded_tokens:
        return prompt_format.padded_tokens
    num_tokens = _count_template_tokens(text, info)
    if num_tokens is None:
        return min(prompt_format.max_tokens, len(text.encode("utf-8")) // 2) + _TAIL_TOKENS
    return max(1, min(num_tokens - prompt_format.head_tokens, prompt_format.max_tokens))


def _count_template_tokens(text: str, info: ModelInfo) -> int | None:
    file = info.components["tokenizer"].folder / "tokenizer.json"
    if not file.is_file():
        return None
    return _count_cached(*file_signature(file), info.family.prompt_format.template.format(text))


@confined
def count_tokens(file: Path, mtime_ns: int, size: int, text: str) -> int:
    return len(_load_tokenizer(file, mtime_ns, size).encode(text).ids)


# While somebody changes other settings, the same prompts are counted again and again.
_count_cached = lru_cache(maxsize=64)(count_tokens)


@lru_cache(maxsize=1)  # reading a large vocabulary takes a second
def _load_tokenizer(file: Path, mtime_ns: int, size: int) -> Any:
    from tokenizers import Tokenizer  # only a check of a prompt needs it

    if size > _MAX_FILE_BYTES:
        raise InputError(
            f"{file} has {size / 1e6:,.0f} MB; expected a tokenizer of at most {_MAX_FILE_BYTES // 10**6}.",
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
