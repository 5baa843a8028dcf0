"""What a node has to say: in ComfyUI's log, below the node on the page, and in the history."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from rocm_nodes.host import show_text

_log = logging.getLogger("rocm_nodes")


def told(title: str, lines: Sequence[str], result: tuple[Any, ...]) -> dict[str, Any]:
    """Return a node's result with its report, which is logged and shown on the page, too."""
    text = "\n".join(line for line in lines if line)
    show_text(text)
    _log.info("%s: %s", title, text.replace("\n", " "))
    return {"ui": {"text": [text]}, "result": result}
