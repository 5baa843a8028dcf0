"""Where learned convolution routes lie, and which rung a person forces: LONGTAKE_CONV_RUNG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

RUNG_VARIABLE = "LONGTAKE_CONV_RUNG"


def routes_folder() -> Path:
    """In the user's own cache; not made by asking."""
    return Path(user_cache_dir("longtake"), "conv_routes")


def conv_settings() -> dict[str, Any]:
    """The arguments of `initialize_miopen_fallback`."""
    return {"folder": routes_folder(), "rung": os.environ.get(RUNG_VARIABLE) or "auto"}
