"""What a node has to say: in ComfyUI's log, and as text that its page and its history show."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

_log = logging.getLogger("rocm_nodes")


def told(title: str, lines: Sequence[str], result: tuple[Any, ...]) -> dict[str, Any]:
    """Return a node's result with its report, which is logged too."""
    text = "\n".join(line for line in lines if line)
    _log.info("%s: %s", title, text.replace("\n", " "))
    return {"ui": {"text": [text]}, "result": result}
