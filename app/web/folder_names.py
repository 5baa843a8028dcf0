"""What folders are called outside, so that no message says where they lie.

Gradio gives out the path of an upload and expects it back: a page gets `uploads/...` and sends that. Other
folders can stand in the text of an error; nobody sends them back.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

_UPLOADS = "uploads/"
_PROGRAM = Path(__file__).resolve().parents[2]


class FolderNames:
    """Translates the messages between a page, or a program, and gradio.

    Args:
        uploads: gradio's folder for uploads, absolute.
        outputs: the folder of the jobs, absolute.
    """

    def __init__(self, uploads: Path, outputs: Path) -> None:
        self._uploads = f"{uploads}/"
        named = {uploads: _UPLOADS, outputs: "outputs/", _PROGRAM: "longtake/", Path(sys.prefix): "python/"}
        self._names = {form: name.encode() for folder, name in named.items() for form in _spellings(folder)}
        # The innermost folder first, and none in the middle of an address that happens to go on like it.
        forms = b"|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._forms = re.compile(rb"(?<![\w.-])(?:" + forms + rb")")

    def outward(self, text: bytes) -> bytes:
        """A part of an answer in JSON, HTML or as an event stream."""
        return self._forms.sub(lambda found: self._names[found[0]], text)

    def inward(self, message: bytes) -> bytes:
        """A message in JSON; anything else stays as it is."""
        if _UPLOADS.encode() not in message:
            return message
        try:
            return json.dumps(self._real(json.loads(message))).encode()
        except (ValueError, RecursionError):
            return message

    def _real(self, value: Any) -> Any:
        """With the paths of gradio's descriptions of files, and nothing else, as gradio has them."""
        if isinstance(value, list):
            return [self._real(one) for one in value]
        if not isinstance(value, dict):
            return value
        path = value.get("path")
        real = {name: self._real(one) for name, one in value.items()}
        if isinstance(path, str) and path.startswith(_UPLOADS):
            real["path"] = self._uploads + path.removeprefix(_UPLOADS)
        return real


def _spellings(folder: Path) -> set[bytes]:
    """How the path may stand in a message: as JSON writes it, with letters beyond ASCII or without, and as an
    address does."""
    paths = {f"{form}/" for form in (folder, folder.resolve())}
    forms = {json.dumps(path, ensure_ascii=plain)[1:-1] for path in paths for plain in (False, True)}
    return {form.encode() for form in forms | {quote(path) for path in paths}}
