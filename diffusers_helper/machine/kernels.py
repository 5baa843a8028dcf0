"""Which attention kernel SDPA ran on a card: found by `doctor`, kept for plans."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

from diffusers_helper.machine.facts import Facts


def seen_kernel(facts: Facts, card: str) -> str:
    """The operation that SDPA became on this card (`Machine.card`) with the torch that is installed.

    Returns: its name; "" if nobody has looked.
    """
    kernel = facts.read(_key(card, _torch_version())).get("kernel")
    return kernel if isinstance(kernel, str) else ""


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    facts.write(_key(card, torch_version), {"kernel": kernel})


def _key(card: str, torch_version: str) -> str:
    return f"{card}, torch {torch_version}"


@lru_cache(maxsize=1)
def _torch_version() -> str:
    """As torch itself says, without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
