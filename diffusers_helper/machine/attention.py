"""What was seen of attention on this machine: the kernel that SDPA runs, and the fastest way for each shape.

Entries belong to a card and a version of torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any, cast

from diffusers_helper.attention.ways import NATIVE, SLICED, WAYS
from diffusers_helper.machine.local import Facts

_log = logging.getLogger(__name__)
_TOKENS = 1024  # Shapes whose numbers of tokens differ by less share an entry.
# Another way than the preferred one has to be faster by this factor, so that noise does not decide.
_GAIN = 1.1


def seen_kernel(facts: Facts, card: str) -> str:
    """Return the stored attention kernel of a card with the installed torch, or "" if there is none."""
    kernel = facts.read(_key(card, installed_torch())).get("kernel")
    return kernel if isinstance(kernel, str) else ""


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    """Store the attention kernel that SDPA ran on a card with a version of torch."""
    facts.write(_key(card, torch_version), {**facts.read(_key(card, torch_version)), "kernel": kernel})


def seen_ways(facts: Facts, card: str) -> dict[str, str]:
    """Return the stored ways to compute attention on a card with the installed torch, by `shape_key`."""
    ways = facts.read(_key(card, installed_torch())).get("ways")
    if not isinstance(ways, dict):
        return {}
    return {key: way for key, way in cast(dict[str, Any], ways).items() if way in WAYS}


def keep_trial(facts: Facts, card: str, key: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Store and return the fastest way to compute attention of one shape, and store the kernel of SDPA.

    A way that stores the scores of all tokens does not count, since attention in slices does the same work.

    Args:
        key: The shape's `shape_key`.
        found: The results of `attention.trial.try_ways`, in the order of preference.
    """
    good = {one["way"]: one for one in found if "failed" not in one and "math" not in one["kernel"]}
    most = min((one["seconds"] for one in good.values()), default=0.0) * _GAIN
    way = next((name for name, one in good.items() if one["seconds"] <= most), SLICED)
    for one in found:
        _log.info("attention of %s: %s", key, ", ".join(f"{name} {value}" for name, value in one.items()))
        if one["way"] == NATIVE and "kernel" in one:
            keep_kernel(facts, card, installed_torch(), one["kernel"])
    entry = facts.read(_key(card, installed_torch()))
    ways = {**seen_ways(facts, card), key: way}
    facts.write(_key(card, installed_torch()), {**entry, "ways": ways})
    return way


def shape_key(heads: int, tokens: int, head_dim: int, dtype: str) -> str:
    """Return the key of a shape of attention."""
    return f"{heads} heads of {head_dim}, up to {-(-tokens // _TOKENS) * _TOKENS} tokens, {dtype}"


def _key(card: str, torch_version: str) -> str:
    return f"{card}, torch {torch_version}"


@lru_cache(maxsize=1)
def installed_torch() -> str:
    """Return torch's version without importing torch; "" if it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
