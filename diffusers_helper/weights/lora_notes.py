"""The notes of a LoRA's author or trainer in a file's metadata, which are of unknown origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.weights.lora_keys import Target

_ADAPTER = "lora_adapter_metadata"
_TRIGGERS = (
    "modelspec.trigger_phrase", "trigger_phrase", "trigger_words", "trigger_word", "activation text",
    "instance_prompt",
)  # fmt: skip
_MOST_TAGS, _MOST_CHARACTERS, _MOST_VALUES = 5, 200, 200_000


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
        folders: Any = parse_json(text.encode(), most_values=_MOST_VALUES) if isinstance(text, str) else {}
        for counts in folders.values():
            tags.update({str(tag).strip(): int(count) for tag, count in counts.items()})
    except (ValueError, TypeError, AttributeError, OverflowError):
        return ()
    most = max(tags.values(), default=0)
    common = (_clean(tag) for tag, count in tags.most_common(_MOST_TAGS) if count >= most / 2)
    return tuple(tag for tag in common if tag)


def _clean(text: object) -> str:
    """Return a text of unknown origin as one short line."""
    if not isinstance(text, str):
        return ""
    start = text[: 10 * _MOST_CHARACTERS]
    return " ".join("".join(c if c.isprintable() else " " for c in start).split())[:_MOST_CHARACTERS]


def noted_scale(metadata: Mapping[str, str]) -> Callable[[Target, int], float]:
    """Return a function for the scales in the metadata that diffusers writes, which may lack."""
    try:
        text = metadata.get(_ADAPTER, "{}").encode()
        noted = cast(dict[str, Any], parse_json(text, most_values=_MOST_VALUES))
        facts = {name.removeprefix("transformer."): value for name, value in noted.items()}
        alpha = float(facts.get("lora_alpha") or 0)
        pattern = cast(dict[str, Any], facts.get("alpha_pattern") or {})
        others = {name: (place, float(value)) for place, (name, value) in enumerate(pattern.items())}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return lambda target, rank: 1.0
    has_root = facts.get("use_rslora") is True

    def scale(target: Target, rank: int) -> float:
        parts = target.layers[0].split(".")
        ends = (".".join(parts[place:]) for place in range(len(parts)))
        # Of several names that fit, the first one counts.
        _, numerator = min((others[end] for end in ends if end in others), default=(0, alpha))
        return numerator / (rank**0.5 if has_root else rank) if numerator else 1.0

    return scale
