"""What folders are called outside, so that no message says where they lie.

Gradio gives out the path of an upload and expects it back: a page gets `uploads/...` and sends that. Other
folders can stand in the text of an error; nobody sends them back.
"""

from __future__ import annotations

import json
import os
import re
import stat
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
        """Return a part of an answer, in JSON, HTML or as an event stream, with our names of folders."""
        return self._forms.sub(lambda found: self._names[found[0]], text)

    def inward(self, message: bytes) -> bytes:
        """Return a message in JSON with gradio's names of uploads; leave anything else alone.

        Gradio opens, copies or downloads what a description of a file names before any handler sees it. So
        what is no upload, such as an address of the network, is not described, and handlers refuse it.
        """
        try:
            return json.dumps(self._real(json.loads(message))).encode()
        except ValueError:
            return message
        except RecursionError:
            return b"null"  # nobody's own page nests so deep

    def _real(self, value: Any) -> Any:
        """Return a value with uploads as gradio names them, and without descriptions of other files."""
        if isinstance(value, list):
            return [self._real(one) for one in value]
        if not isinstance(value, dict):
            return value
        path = value.get("path")
        real = {name: self._real(one) for name, one in value.items()}
        if isinstance(path, str) and path.startswith(_UPLOADS):
            real["path"] = self._uploads + path.removeprefix(_UPLOADS)
            if _is_missing_or_plain(real["path"]):
                return real
        if "path" in value:
            real.pop("meta", None)
        return real


def _is_missing_or_plain(path: str) -> bool:
    """Return whether opening a path cannot wait, as it does for a pipe."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return True


def _spellings(folder: Path) -> set[bytes]:
    """Return how a path may stand in a message: as JSON writes it, in ASCII or not, or as addresses do."""
    paths = {f"{form}/" for form in (folder, folder.resolve())}
    forms = {json.dumps(path, ensure_ascii=plain)[1:-1] for path in paths for plain in (False, True)}
    return {form.encode() for form in forms | {quote(path) for path in paths}}
