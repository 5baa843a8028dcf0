"""A warning where another pack has nodes with the ids of ours, since ComfyUI keeps the last one of an id.

Workflows hold these ids, so both packs need them, and neither can know whether it is loaded last.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger("rocm_nodes")


def watch(ours: Mapping[str, Any]) -> None:
    """Warn of ids that another pack has, now, and again when ComfyUI has loaded all packs.

    Without ComfyUI's server nothing is done.
    """
    _warn("replaces", _others(ours))
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    program = getattr(server, "app", None)
    if program is not None:

        async def warn(_: Any) -> None:
            _warn("is replaced by", _others(ours))

        program.on_startup.append(warn)


def _others(ours: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of ours that now stand for another pack's nodes, with the name of that pack."""
    theirs = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
    return {
        name: str(getattr(theirs[name], "RELATIVE_PYTHON_MODULE", "another pack")).partition(".")[2]
        for name, kind in ours.items()
        if name in theirs and theirs[name] is not kind
    }


def _warn(verb: str, found: Mapping[str, str]) -> None:
    for pack in dict.fromkeys(found.values()):
        names = ", ".join(name for name, owner in found.items() if owner == pack)
        _log.warning("Longtake %s %s in these nodes, which both packs have: %s.", verb, pack, names)
