"""The names that replace folders in Gradio's messages, so that these do not reveal where the folders are.

Gradio sends the path of an upload and expects it back; the page and programs get and return `uploads/...`
instead. Other folders appear only in the texts of errors, which are not sent back.
"""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.redact import known_folders

_UPLOADS = "uploads/"


class FolderNames:
    def __init__(self, uploads: Path, outputs: Path) -> None:
        self._uploads = f"{uploads}/"
        named = [*known_folders(), (outputs, "outputs"), (uploads, _UPLOADS[:-1])]
        self._names = {form: name.encode() for folder, name in named for form in _spellings(folder)}
        # The innermost folder comes first. A path in the middle of a longer address is left alone.
        forms = b"|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._forms = re.compile(rb"(?<![\w.-])(?:" + forms + rb")(?![\w.-])")

    def outward(self, text: bytes) -> bytes:
        return self._forms.sub(lambda match: self._names[match[0]], text)

    def inward(self, value: Any) -> Any:
        """Return a message, or a value in it, with gradio's paths in place of the names.

        Gradio opens, copies or downloads a described file before any handler sees it. Therefore descriptions
        of anything but uploads, such as network addresses, are removed here, and handlers refuse the rest.
        """
        if isinstance(value, list):
            return [self.inward(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        path = value.get("path")
        real = {name: self.inward(entry) for name, entry in value.items()}
        if isinstance(path, str) and path.startswith(_UPLOADS):
            real["path"] = os.path.normpath(self._uploads + path.removeprefix(_UPLOADS))
            if real["path"].startswith(self._uploads):
                return real
        if "path" in value:
            real.pop("meta", None)
        return real


def _spellings(folder: Path) -> set[bytes]:
    """Return the spellings of a path in JSON, with and without ASCII escapes, and in addresses."""
    paths = {str(folder), str(folder.resolve())}
    forms = {json.dumps(path, ensure_ascii=plain)[1:-1] for path in paths for plain in (False, True)}
    return {form.encode() for form in forms | {quote(path) for path in paths}}
