"""The removal of paths, names and secrets from texts that others may read."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


_SECRETS = (
    (re.compile(r"\b(hf|sk|ghp|gho|github_pat)_[A-Za-z0-9_]{8,}"), "<secret>"),
    (re.compile(r"(?i)\b(authorization|cookie|password|passwd|token|secret|api[_-]?key)(\s*[:=]\s*)\S+"),
     r"\1\2<secret>"),
    (re.compile(r"(?<=://)[^\s/@]+@"), "<secret>@"),
)  # fmt: skip


# Known folders are replaced first; any other absolute path then keeps only its last part.
_PATHS = (
    re.compile(r"(?<=')(?:~\w*)?/(?:[^/'\n<>]+/)+([^/'\n<>]*)(?=')"),
    re.compile(r'(?<=")(?:~\w*)?/(?:[^/"\n<>]+/)+([^/"\n<>]*)(?=")'),
    re.compile(r"(?:(?<=file://)|(?<![\w<>/.:~-]))(?:~\w*)?/(?:[^\s/'\"`,;()<>|]+/)+([^\s/'\"`,;()<>|]*)"),
)


@lru_cache(maxsize=256)
def without_paths(text: str, outputs: Path | None = None) -> str:
    """Return the text without absolute paths.

    Paths in the outputs folder, the program, Python and the home folder begin with a name for that folder;
    any other path keeps only its last part.
    """
    folders = [
        *([(outputs, "<outputs>")] if outputs else []),
        (_ROOT, "<longtake>"),
        (Path(sys.prefix), "<python>"),
        (Path(sys.base_prefix), "<python>"),
        (Path(os.path.expanduser("~")), "<home>"),
    ]
    known = {str(form): name for path, name in folders for form in (path, path.resolve())}
    for path in sorted(known, key=len, reverse=True):  # the innermost folder comes first
        if len(path) > 1:
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", known[path], text)
    for pattern in _PATHS:
        text = pattern.sub(r"<path>/\1", text)
    return text


def without_names(text: str) -> str:
    """Return the text without the names of the user and the machine, and without secrets."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for word, replacement in ((_user(), "<user>"), (socket.gethostname(), "<host>")):
        # Replacing shorter or common names would garble the rest of the text.
        if len(word) > 2 and word not in ("root", "localhost", "user"):
            text = re.sub(rf"(?i)(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", replacement, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, for example in a container
        return ""
