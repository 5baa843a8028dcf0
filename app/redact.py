"""The removal of paths, names and secrets from texts that others may read."""

import contextlib
import getpass
import os
import re
import socket
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER_NAMES: dict[Path, str] = {}
_VARIABLE = re.compile("LONGTAKE_|XDG_|HF_")


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


def name_folder(folder: Path, name: str) -> None:
    _FOLDER_NAMES[folder] = name
    without_paths.cache_clear()


def known_folders() -> list[tuple[Path, str]]:
    """List the folders of this machine that texts may name, each with the name that others may read.

    These are those of `name_folder` and of variables, and the program's, Python's, the current, the home and
    the temporary folder.
    """
    folders = [
        *_FOLDER_NAMES.items(),
        (Path(tempfile.gettempdir()), "tmp"),
        (Path(os.path.expanduser("~")), "home"),
        (_ROOT, "longtake"),
        (Path(sys.prefix), "python"),
        (Path(sys.base_prefix), "python"),
    ]
    with contextlib.suppress(OSError):  # it was removed
        folders.insert(0, (Path.cwd(), "here"))
    variables = ((name, Path(value)) for name, value in os.environ.items() if _VARIABLE.match(name))
    folders += [(path, name) for name, path in variables if path.is_absolute()]
    return [(path, name) for path, name in folders if len(path.parts) > 1]


@lru_cache(maxsize=256)
def without_paths(text: str, outputs: Path | None = None) -> str:
    """Remove absolute paths from a text.

    Paths in the outputs folder and in those of `known_folders` begin with a name for that folder; any other
    path keeps only its last part.
    """
    folders = known_folders() + ([(outputs, "outputs")] if outputs else [])
    replacements = {str(form): f"<{name}>" for path, name in folders for form in (path, path.resolve())}
    for path in sorted(replacements, key=len, reverse=True):  # the innermost folder comes first
        text = re.sub(rf"{re.escape(path)}(?![\w.-])", replacements[path], text)
    for pattern in _PATHS:
        text = pattern.sub(r"<path>/\1", text)
    return text


def plain_paths(text: str, outputs: Path | None = None) -> str:
    names = {name for _, name in known_folders()} | {"outputs", "path"}

    def plain(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            return match[0]
        if name in ("path", "here") and match[2]:
            return ""
        if name == "home":
            return f"~{match[2]}"
        return f"{'$' if name.isupper() else ''}{name}{match[2]}"

    return re.sub(r"<(\w+)>(/?)", plain, without_paths(text, outputs))


def without_names(text: str) -> str:
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    words = {socket.gethostname(): "<host>"}
    with contextlib.suppress(KeyError, OSError):  # the user id has no name, for example in a container
        words = {getpass.getuser(): "<user>", **words}
    for word, replacement in words.items():
        # Replacing shorter or common names would garble the rest of the text.
        if len(word) > 2 and word not in ("root", "localhost", "user"):
            text = re.sub(rf"(?i)(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", replacement, text)
    return text
