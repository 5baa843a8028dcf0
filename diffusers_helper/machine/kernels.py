"""The attention kernel that SDPA runs on a card, which `doctor` determines and plans use."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

from diffusers_helper.machine.facts import Facts


def seen_kernel(facts: Facts, card: str) -> str:
    """Return the stored attention kernel of a card with the installed torch, or "" if there is none."""
    kernel = facts.read(_key(card, installed_torch())).get("kernel")
    return kernel if isinstance(kernel, str) else ""


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    """Store the attention kernel that SDPA ran on a card with a version of torch."""
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
