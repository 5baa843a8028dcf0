"""The inputs of nodes in the form in which ComfyUI describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Input = tuple[Any, dict[str, Any]]


def of_type(kind: str, tooltip: str, **facts: Any) -> Input:
    """Return an input of a kind that ComfyUI names, such as a VAE that another node makes, or a text."""
    return (kind, {"tooltip": tooltip, **facts})


def switch(default: bool, tooltip: str, **facts: Any) -> Input:
    """Return an input that is on or off."""
    return ("BOOLEAN", {"default": default, "tooltip": tooltip, **facts})


def number(default: float, low: float, high: float, tooltip: str, **facts: Any) -> Input:
    """Return an input for a number, which is a whole one if its default is."""
    kind = "INT" if isinstance(default, int) else "FLOAT"
    return (kind, {"default": default, "min": low, "max": high, "tooltip": tooltip, **facts})


def choice(options: Iterable[str], tooltip: str, **facts: Any) -> Input:
    """Return an input for one of several words, of which ComfyUI's page takes the first without a default."""
    return (list(options), {"tooltip": tooltip, **facts})


def idle(default: float | str, why: str, options: Iterable[str] = (), **facts: Any) -> Input:
    """Return an input that old workflows have and that has no effect, which the page shows on request."""
    kinds = {bool: "BOOLEAN", int: "INT", float: "FLOAT"}
    kind = list(options) or kinds[type(default)]
    return (kind, {"default": default, "tooltip": f"This has no effect: {why}.", "advanced": True, **facts})
