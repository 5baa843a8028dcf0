"""The page's scripts and styles, served unchanged at an address that changes whenever one of them does."""

import hashlib
from functools import cache
from pathlib import Path

ROUTE = "scripts"
# The order counts: of two rules for one element, the later one applies.
_STYLES = (
    "theme.css", "style.css", "form/form.css", "live/live.css", "queue/queue.css", "history/history.css",
    "models/models.css",
)  # fmt: skip
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent


def folder() -> str:
    return f"{ROUTE}/{version()}"


def styles() -> list[str]:
    return [f"{folder()}/{name}" for name in _STYLES]


def content(address: str) -> tuple[bytes, str] | None:
    requested_version, _, name = address.partition("/")
    data = _files().get(name) if requested_version == version() else None
    return None if data is None else (data, _KINDS[Path(name).suffix])


@cache
def _files() -> dict[str, bytes]:
    files = sorted(file for file in _FOLDER.rglob("*") if file.suffix in _KINDS)
    return {file.relative_to(_FOLDER).as_posix(): file.read_bytes() for file in files}


@cache
def version() -> str:
    """Name a version that changes with any file; all share it, so that scripts can import each other."""
    return hashlib.sha256(repr(_files()).encode()).hexdigest()[:12]
