"""The reports of nodes, which appear in ComfyUI's log, below the node on its page and in its history.

Below a node there is room for two short lines, which show the beginning of the first sentence. The whole text
is in the history, from where a script of the page (`pack/web/nodes.js`) shows it on a click.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Sequence
from typing import Any

from rocm_nodes.host import show_text

_MOST_LETTERS = 80
_log = logging.getLogger("rocm_nodes")


def reported(title: str, lines: Sequence[str], result: tuple[Any, ...]) -> dict[str, Any]:
    """Log a node's report and show it on the page, and return the node's result with the report."""
    text = "\n".join(line for line in lines if line)
    show_text(textwrap.shorten(text.partition("\n")[0], _MOST_LETTERS, placeholder=" ..."))
    _log.info("%s: %s", title, text.replace("\n", " "))
    return {"ui": {"text": [text]}, "result": result}
