"""The notes of a LoRA's author or trainer in a file's metadata, which are of unknown origin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from diffusers_helper.lora.keys import Target

_ADAPTER = "lora_adapter_metadata"
_TRIGGERS = (
    "modelspec.trigger_phrase", "trigger_phrase", "trigger_words", "trigger_word", "activation text",
    "instance_prompt",
)  # fmt: skip
_MOST_TAGS, _MOST_CHARACTERS = 5, 200


def noted_triggers(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words by which a LoRA is called, as its author or its trainer has noted them."""
    for name in _TRIGGERS:
        if words := _clean(metadata.get(name)):
            return (words,)
    return _common_tags(metadata.get("ss_tag_frequency"))


def _common_tags(text: object) -> tuple[str, ...]:
    """Return the tags that the trainer has counted most often.

    Args:
        text: JSON of unknown origin: for each folder of pictures, the number of times that each tag occurs.
    """
    tags = Counter[str]()
    try:
        folders: Any = json.loads(text) if isinstance(text, str) else {}
        for counts in folders.values():
            tags.update({str(tag).strip(): int(count) for tag, count in counts.items()})
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return ()
    most = max(tags.values(), default=0)
    common = (_clean(tag) for tag, count in tags.most_common(_MOST_TAGS) if count >= most / 2)
    return tuple(tag for tag in common if tag)


def _clean(text: object) -> str:
    """Return a text of unknown origin as one short line."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MOST_CHARACTERS]


def noted_scale(metadata: Mapping[str, str]) -> Callable[[Target, int], float]:
    """Return a function for the scales in the metadata that diffusers writes, which may lack."""
    try:
        noted = cast(dict[str, Any], json.loads(metadata.get(_ADAPTER, "{}")))
        facts = {name.removeprefix("transformer."): value for name, value in noted.items()}
        alpha = float(facts.get("lora_alpha") or 0)
        pattern = cast(dict[str, Any], facts.get("alpha_pattern") or {})
        others = {name: float(value) for name, value in pattern.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return lambda target, rank: 1.0
    has_root = facts.get("use_rslora") is True

    def scale(target: Target, rank: int) -> float:
        own = (value for name, value in others.items() if f".{target.layers[0]}".endswith(f".{name}"))
        numerator = next(own, alpha)
        return numerator / (rank**0.5 if has_root else rank) if numerator else 1.0

    return scale
