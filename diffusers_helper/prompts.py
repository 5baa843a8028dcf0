"""The text around a prompt as HunyuanVideo was trained with it, and how long a prompt may be."""

from __future__ import annotations

from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.registry import ModelInfo, PartSource
from diffusers_helper.request import GenerationRequest

# HunyuanVideo's template for videos; its head fills 95 tokens, which are cut off after encoding.
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


def check_prompt(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuses a prompt that the model would have to cut. The negative prompt counts only where it is used.

    Does nothing where the model's tokenizer is not on this machine yet.

    Raises:
        InputError: if a text has more than 256 tokens.
    """
    file = _tokenizer_file(info.parts["tokenizer"])
    if file is None:
        return
    from tokenizers import Tokenizer  # here: only a prompt to check has to pay for it

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exceptions
        raise InputError(
            f"{file} cannot be read ({error}); expected a tokenizer.", "Get the model's files anew."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    without = len(tokenizer.encode(TEMPLATE.format("")).ids)
    texts = {"prompt": request.prompt} | ({"negative": request.negative} if request.cfg > 1 else {})
    for name, text in texts.items():
        count = len(tokenizer.encode(TEMPLATE.format(text)).ids) - without
        if count > MAX_TEXT_TOKENS:
            raise InputError(
                f"{name} has {count} tokens; model {info.name} expects at most {MAX_TEXT_TOKENS}.",
                "Shorten it.",
            )


def _tokenizer_file(source: PartSource) -> Path | None:
    local = Path(source.location, source.subfolder, "tokenizer.json")
    if local.is_file():
        return local
    if Path(source.location).is_absolute():
        return None
    from huggingface_hub import try_to_load_from_cache  # here: only a model of the hub needs it

    found = try_to_load_from_cache(
        source.location, f"{source.subfolder}/tokenizer.json".lstrip("/"), revision=source.revision
    )
    return Path(found) if isinstance(found, str) else None
