"""What ComfyUI's page shows of the nodes: their inputs, and their reports.

A report appears in ComfyUI's log, below the node on its page and in its history. Below a node there is room
for two short lines, which show the beginning of the first sentence. The whole text is in the history, from
where a script of the page (`pack/web/nodes.js`) shows it on a click.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rocm_nodes.host import show_text

_MOST_LETTERS = 80
_log = logging.getLogger("rocm_nodes")
# What ComfyUI calls the type of an input, or a list of choices, and what else it is told of it.
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


def reported(title: str, lines: Sequence[str], result: tuple[Any, ...]) -> dict[str, Any]:
    """Log a node's report and show it on the page, and return the node's result with the report."""
    text = "\n".join(line for line in lines if line)
    show_text(textwrap.shorten(text.partition("\n")[0], _MOST_LETTERS, placeholder=" ..."))
    _log.info("%s: %s", title, text.replace("\n", " "))
    return {"ui": {"text": [text]}, "result": result}
