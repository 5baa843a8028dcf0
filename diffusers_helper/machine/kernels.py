"""The attention kernel that SDPA runs on a card, which `doctor` finds out and plans use."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

from diffusers_helper.machine.facts import Facts


def seen_kernel(facts: Facts, card: str) -> str:
    """Return the operation that SDPA became on a card with the installed torch; "" if nobody has looked."""
    kernel = facts.read(_key(card, installed_torch())).get("kernel")
    return kernel if isinstance(kernel, str) else ""


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    """Keep the attention kernel that SDPA ran on a card, with the version of torch."""
    facts.write(_key(card, torch_version), {"kernel": kernel})


def _key(card: str, torch_version: str) -> str:
    return f"{card}, torch {torch_version}"


@lru_cache(maxsize=1)
def installed_torch() -> str:
    """Return torch's version without importing torch; "" if it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
